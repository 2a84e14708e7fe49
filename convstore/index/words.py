"""Split texts of any script into search terms, and queries into groups of alternative terms.

A word is folded (case, accents, width), and stemmed if the language of its text is recognised. Scripts without spaces
are split into pairs of characters. Identifiers, paths and versions are terms as a whole and in parts.
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

import Stemmer

from convstore.messages.text import fold

_RULES = 2
"""Version of the rules for terms and windows; part of `analyzer`."""

_QUERY_CHARACTERS = 4_096
"""Maximum characters of a query; the rest is ignored."""

_TERM_CHARACTERS = 64
_LONG_TOKEN = 200
"""Length above which a token counts as data; only its beginning is a term."""

_PAIRED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Scripts without spaces between words, and Hangul, whose words carry particles."""

_JOINT = re.compile(r"[._/\\:@#+~-]+")
_SEPARATOR = re.compile(r"[/\\:@]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrtbf\"\\/])")

_STOP_WORDS = {
    "english": (
        "the of and to in is that it was for on with as are this be at by from have you "
        "what how not"
    ),
    "german": (
        "der die das und ist nicht ein eine zu mit von den auf für im dem des sich wie wir "
        "sie ich auch es"
    ),
    "french": (
        "le la les et est une des du que dans pour qui pas sur au avec ce sont nous vous "
        "il elle je ne"
    ),
    "spanish": "el la los las y es una de que en por para con no del se lo su al como más pero sus",
    "italian": (
        "il lo gli e è una di che per con non del della sono si come anche più ma le nel alla i"
    ),
    "portuguese": (
        "o os as e é uma de que em para com não do da se no na por mais dos das como mas ao"
    ),
    "dutch": (
        "de het een en van is dat niet op te zijn met voor in er maar om aan ook als bij ik je wat"
    ),
    "russian": "и в не на что с по это как из у к за от о но для бы же так вы мы он она",
}
_LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _words in _STOP_WORDS.items():
    for _word in _words.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_language)
_local = threading.local()
_QUESTION_WORDS = """
    a an and or if then so but about who whom whose which when where why do does did has had can
    could would should
    will i he she we they me my our your his her their its any some
    wann wo wer wen wem warum welche welchem welchen welcher welches ich er wir ihr mein unser als
    an aus bei nach vor
    quand ou quoi quel quelle quels quelles pourquoi comment combien cuando donde quien cual
    cuales cuanto cuanta
    quando dove chi cosa quale quali perche quanto onde quem qual quais wanneer waar wie welke
    waarom hoe
    когда где кто какой какая какие почему сколько 什么 多少 哪里 哪个 怎么 时候 何時
"""
_MEANINGFUL = "come den die hat hoe man no not on over plus se si son sur van war"
"""Common words of one language with a meaning in another; they count in full, and BM25 lowers frequent words itself."""
_COMMON = frozenset(" ".join((*_STOP_WORDS.values(), _QUESTION_WORDS)).split()) - frozenset(
    _MEANINGFUL.split()
)

_IRREGULAR_FORMS = """
    be was were been; become became; begin began begun; bite bit bitten; blow blew blown; break
    broke broken; bring brought; build built; buy bought; catch caught; choose chose chosen; deal
    dealt; dig dug; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate
    eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; fly flew flown; forget
    forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave
    given; go went gone; grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep
    kept; know knew known; leave left; lend lent; lose lost; make made; mean meant; meet met; pay
    paid; ride rode ridden; ring rang rung; rise rose risen; run ran; say said; see saw seen; sell
    sold; send sent; shake shook; shoot shot; show shown; sing sang sung; sink sank sunk; sit sat;
    sleep slept; speak spoke spoken; spend spent; stand stood; steal stole stolen; swear swore
    sworn; sweep swept; swim swam swum; take took taken; teach taught; tear tore torn; tell told;
    think thought; throw threw thrown; understand understood; wake woke woken; wear wore worn; weep
    wept; win won; write wrote written; child children; foot feet; goose geese; knife knives; leaf
    leaves; life lives; man men; mouse mice; person people; shelf shelves; tooth teeth; wife wives;
    woman women; good better best; bad worse worst
"""
_IRREGULAR = {
    form: base for base, *forms in map(str.split, _IRREGULAR_FORMS.split(";")) for form in forms
}
"""Irregular forms of English words, which a stemmer does not know."""

_CLEAR = 3
"""Minimum number of common words that identify the language of a text."""


@cache
def _token() -> re.Pattern[str]:
    """Return the pattern of tokens; it is built at the first use, because that takes 10 ms."""
    marks = "".join(  # combining ones, which Python's \w does not match
        re.escape(sign)
        for sign in map(
            chr,
            (*range(0x300, 0x1D00), *range(0x1DC0, 0x1E00), *range(0xA800, 0xAC00), 0x200C, 0x200D),
        )
        if unicodedata.category(sign) in ("Mn", "Mc", "Me", "Cf") and not _paired().match(sign)
    )
    word = rf"[^\W_{_PAIRED}]+(?:[{marks}]+[^\W_{_PAIRED}]*)*"
    return re.compile(rf"[{_PAIRED}]+|{word}(?:[._/\\:@#+~-]{{1,2}}{word})*(?:\+\+|#)?")


@cache
def _paired() -> re.Pattern[str]:
    return re.compile(f"[{_PAIRED}]")


def terms(text: str, language: str = "") -> list[str]:
    """Return the terms of a text in order, including repeated ones.

    >>> terms("The getUserName of src/app.py", "english")
    ['the', 'getusernam', 'get', 'user', 'name', 'of', 'src/app.py', 'src', 'app.py', 'app', 'py']
    >>> terms("She sold two mice", "english")
    ['she', 'sell', 'two', 'mous']
    >>> terms("Zürich 東京都")
    ['zurich', '東京', '京都']
    """
    return [term for piece in text.split() for term in piece_terms(piece, language)]


def spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and text of each token of a text; for scripts without spaces, of each pair of characters."""
    for found in _token().finditer(text):
        start, end = found.span()
        if end - start <= 2 or not _paired().match(found[0]):
            yield start, end, found[0]
            continue
        for index in range(start, end - 1):
            yield index, index + 2, text[index : index + 2]


def unescaped(text: str) -> str:
    r"""Return JSON text with resolved escapes; escaped white space and quotes become spaces.

    >>> print(unescaped(r'{"a": "M\u00fcller\nKoch"}'))
    {"a": "Müller Koch"}
    """
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)


def language_of(text: str) -> str:
    """Return the language for stemming the words of a text; "" if it is not recognised.

    >>> language_of("Wo ist das Haus und wie komme ich zu dem See?"), language_of("Running shoes"), language_of("Größe")
    ('german', 'english', '')
    """
    sample = text[:2_000]
    counts = Counter[str]()
    words = Counter(sample.casefold().split())
    for word in words.keys() & _LANGUAGES_OF.keys():
        for language in _LANGUAGES_OF[word]:
            counts[language] += words[word]
    (first, most), (_, second) = [*counts.most_common(2), ("", 0), ("", 0)][:2]
    if most >= _CLEAR and most > second:
        return first
    # `first` is not used: for languages with equal counts it differs between processes.
    return "english" if sample.isascii() or 0 < most == counts["english"] else ""


def query_groups(text: str) -> list[tuple[str, ...]]:
    """Return the words of a query without duplicates, each with the terms that it may have in a text.

    A word has one term for each language, because a text with the word may be in any of them.

    >>> query_groups("Häuser")
    [('haus', 'hauser')]
    """
    groups: dict[tuple[str, ...], None] = {}
    for token in _token().findall(text[:_QUERY_CHARACTERS]):
        by_language = [piece_terms(token, language) for language in ("", *_STOP_WORDS)]
        for alternatives in zip(*by_language, strict=True):
            groups[tuple(sorted(set(alternatives)))] = None
    return list(groups)


def is_common(group: Iterable[str]) -> bool:
    """Return True for question words, pronouns and articles, which say little about the topic of a query.

    >>> [is_common(group) for group in query_groups("When did the cat die")]
    [True, True, True, False, False]
    """
    return not _COMMON.isdisjoint(group)


def is_single(group: Iterable[str]) -> bool:
    """Return True for a single character of a script without spaces; terms of texts have two characters."""
    return all(len(term) == 1 and _paired().match(term) for term in group)


def token_terms(token: str, language: str) -> set[str]:
    """Return the terms that a token may have in a text of a language."""
    return {*piece_terms(token, ""), *piece_terms(token, language)}


def piece_terms(piece: str, language: str) -> tuple[str, ...]:
    """Return the terms of a piece of text between spaces."""
    return (_cached_terms if len(piece) <= _TERM_CHARACTERS else _split_piece)(piece, language)


def _split_piece(piece: str, language: str) -> tuple[str, ...]:
    return tuple(term for token in _token().findall(piece) for term in _split_any(token, language))


_cached_terms = lru_cache(maxsize=50_000)(_split_piece)


def _split_any(token: str, language: str) -> tuple[str, ...]:
    if _paired().match(token):
        folded = _folded(token)
        return tuple(folded[index : index + 2] for index in range(len(folded) - 1)) or (folded,)
    if len(token) <= _LONG_TOKEN:
        return _split(token, language)
    return (_folded(token[:_TERM_CHARACTERS]),)


def _split(token: str, language: str) -> tuple[str, ...]:
    """Return a token and its parts, each folded and stemmed.

    >>> _split("src/app/main.py", "english")
    ('src/app/main.py', 'src', 'app', 'main.py', 'main', 'py')
    """
    if _is_plain_word(token):
        return (_stemmed(token.lower(), language),)
    token = unicodedata.normalize("NFC", token)
    pieces = list(filter(None, _JOINT.split(token)))
    words = [word for piece in pieces for word in _CAMEL.split(piece)]
    if words == [token]:
        return (_stemmed(_folded(token), language),)
    parts = _parts_of_names(token, language) or words
    if not _is_hyphenated(token) or len(parts) != len(pieces):
        parts = [token, *parts]
    return tuple(_stemmed(_folded(part)[:_TERM_CHARACTERS], language) for part in parts)


def _is_plain_word(token: str) -> bool:
    return token.isascii() and token.isalpha() and (token.islower() or token.istitle())


def _parts_of_names(token: str, language: str) -> list[str]:
    """Return the parts of each name in a token such as a path; empty for a token without separators."""
    names = [name for name in _SEPARATOR.split(token) if name]
    if len(names) < 2:
        return []
    return [part for name in names for part in _split(name, language)]


def _is_hyphenated(token: str) -> bool:
    """Return True for words with hyphens; such a token as a whole is not a term."""
    return "-" in token and token.replace("-", "").isalpha()


def _folded(text: str) -> str:
    """Fold case, width, and the accents of Latin, Greek, Cyrillic, Arabic and Hebrew letters."""
    if text.isascii():
        return text.lower()
    folded = fold(text)
    if folded.isascii():
        return folded
    decomposed = _ACCENTS.sub("", unicodedata.normalize("NFKD", folded))
    return unicodedata.normalize("NFKC", decomposed)


def _stemmed(word: str, language: str) -> str:
    if language == "english" and word in _IRREGULAR:
        word = _IRREGULAR[word]
    if language and len(word) > 3 and word.isalpha():
        return str(_stemmer(language).stemWord(word))
    return word


def _stemmer(language: str) -> Stemmer.Stemmer:
    # Stemmers are not thread-safe, so each thread has its own.
    stemmers: dict[str, Stemmer.Stemmer] = _local.__dict__
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(language, 0)
    return stemmers[language]


_CANARIES = """
    organization international added generously nationally houses news dying freundlichkeiten
    häuser aufgegessen größte
    continuellement nationaux mangeraient rápidamente organizaciones corriendo organizzazione
    velocemente parlavano
    organizações rapidamente falavam mogelijkheden organisatie gelopen организация международный
    добавленный
"""


@cache
def analyzer() -> str:
    """Return the fingerprint of everything that terms depend on: the rules here, the stemmer and the Unicode version.

    Segments of another analyzer are ignored; only processes with that analyzer use them.
    """
    stems = [piece_terms(word, language) for language in _STOP_WORDS for word in _CANARIES.split()]
    return hashlib.sha256(repr((_RULES, unicodedata.unidata_version, stems)).encode()).hexdigest()[
        :12
    ]

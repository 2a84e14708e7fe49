r"""Find the sources of a tool result in the text that the tool wrote, and the marks with which the tool counts them.

A source is found by its text, by the beginning of its text, or by a paragraph from its middle; else by its title, its
address or its file name. Sources are found in their order, so that repeated passages are matched correctly. The search
is limited to a multiple of the length of all texts; beyond it a source counts as not found.

A tool counts its sources with ``[1]``, ``(1)``, ``1.``, ``Source 1`` or ``<doc id="1">``. These are marks only if one
begins the first line of every item and they count from 0 or 1 without a gap. So a list ``1.`` or a footnote ``[2]`` in
a passage is not a mark.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import NamedTuple

from convstore.sources.naming import own_names
from convstore.sources.source import FoundSource

HEAD_CHARACTERS = 80
"""Number of characters by which a text is recognised, because many tools show only its beginning."""

_KEY_CHARACTERS = 16
_PARAGRAPH_CHARACTERS = 40
_NAME_CHARACTERS = 4
"""Minimum length of a title to search for, because a shorter one may occur by chance."""
_MAX_CANDIDATES = 16
_HALF_LINE = 40
"""Maximum characters before an index that still counts as the beginning of its line."""
_SCANS = 64
"""Limit of the search, in scans of all texts."""

_SHIELDED = re.compile(
    r"`[^`\n]+`"
    r"|!?\[[^\[\]\n]{0,500}\]\([^()\s]{0,2000}\)"
    r"|</?[A-Za-z!?][^<>\n]{0,2000}>"
    r"|\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s<>\"]+"
    r"|\"[^\"\n]*\"|“[^“”\n]*”|„[^„“”\n]*[“”]|«[^«»\n]*»"
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_BEGINNING = re.compile(r"(?:^|(?<=>))(?![\n>])[^\w\n<>]{0,20}(?:\d{1,4}[\W_]{1,5})?", re.MULTILINE)
_AROUND = " \t.…\"“”«»'>*#-•·|"
_SIGNS = string.punctuation + string.whitespace + string.digits
_MARK = re.compile(r"^[\[(]?\d{1,4}[\]).:][ \t]+")


class TextMatch(NamedTuple):
    """A match of a source in a text.

    Attributes:
        at: Index at which a number can be inserted.
        start: Start of the matching characters.
        end: End of the matching characters.
    """

    at: int
    start: int
    end: int


class Shield:
    """The parts of a text in which numbers must not be inserted: code, links, tags and quotations."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans = list(_shielded(text))
        self._starts = [start for start, _, _ in self._spans]

    def span_around(self, index: int) -> tuple[int, int, bool] | None:
        """Return start and end of the part that contains an index, and True if it is a block of code."""
        before = bisect_left(self._starts, index) - 1
        if before < 0 or self._spans[before][1] <= index:
            return None
        return self._spans[before]

    def is_code(self, index: int) -> bool:
        """Return True if an index is inside of code.

        >>> [Shield("a `b[0]` [1]").is_code(index) for index in (4, 9)]
        [True, False]
        """
        span = self.span_around(index)
        return span is not None and self._text[span[0]] in "`~ "

    def outside(self, index: int) -> int | None:
        """Return the index at which the number of a text at `index` is inserted; None inside a shielded part.

        If a text begins with a quotation or a link, the number is inserted before that.
        """
        span = self.span_around(index)
        if span is None:
            return index
        start, _, is_block = span
        has_words = any(sign.isalnum() for sign in self._text[start:index])
        if is_block or has_words or not is_at_line_start(self._text, start):
            return None
        return start


def _shielded(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each shielded part in order, and True for a block of code."""
    start = 0
    for block_start, block_end in [*_blocks_of_code(text), (len(text), len(text))]:
        for found in _SHIELDED.finditer(text, start, block_start):
            yield *found.span(), False
        yield block_start, block_end, True
        start = block_end


def _blocks_of_code(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each block between two fences; an open fence at the end is ignored."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2].strip():
            yield opened.start(), fence.end()
            opened = None


def is_at_line_start(text: str, index: int) -> bool:
    """Return True if only signs and digits precede an index in its line or element.

    >>> [is_at_line_start("- [1] Seals sleep.", index) for index in (6, 12)]
    [True, False]
    """
    line = text[max(0, index - _HALF_LINE) : index]
    start = max(line.rfind("\n"), line.rfind(">")) + 1
    is_known = start > 0 or index <= _HALF_LINE
    return is_known and not any(sign.isalpha() for sign in line[start:])


def find_places(
    text: str, sources: Sequence[FoundSource], shield: Shield
) -> list[TextMatch] | None:
    r"""Return the match of each source in a text, in order; None unless every source has its own match.

    >>> text = "Seals\nThey sleep on land.\n\nOrcas\nThey never sleep."
    >>> sources = [FoundSource(None, "They sleep on land.", {}), FoundSource(None, "", {"title": "Orcas"})]
    >>> [(place.at, place.end) for place in find_places(text, sources, Shield(text))]
    [(6, 25), (27, 32)]
    """
    if not text.strip():
        return None
    search = _MatchFinder(text, sources, shield)
    search.find_texts()
    search.find_paragraphs()
    search.find_names()
    places = [place for place in search.places if place is not None]
    indexes = {place.at for place in places}
    return places if len(places) == len(indexes) == len(sources) else None


class _MatchFinder:
    """Finds the sources in a text, within a limit of compared characters."""

    def __init__(self, text: str, sources: Sequence[FoundSource], shield: Shield) -> None:
        self.places: list[TextMatch | None] = [None] * len(sources)
        self._text = text
        self._sources = sources
        self._shield = shield
        self._budget = _SCANS * (len(text) + sum(len(source.text) for source in sources))
        self._beginnings = self._indexed()

    def find_texts(self) -> None:
        """Find each text, completely or by its beginning, after the previous one."""
        start = 0
        for index, source in enumerate(self._sources):
            place = self._place_of_text(source.text.strip(), start)
            if place is not None:
                self.places[index] = place
                start = place.end

    def find_paragraphs(self) -> None:
        """Find a paragraph of each source that is not found yet, between its neighbours."""
        if None not in self.places:
            return
        paragraphs = list(self._paragraphs())
        starts = [start for start, _ in paragraphs]
        for index, low, high in self._missing():
            text = self._sources[index].text
            if len(text) < _PARAGRAPH_CHARACTERS:
                continue
            between = paragraphs[bisect_left(starts, low) : bisect_left(starts, high)]
            self.places[index] = self._place_of_paragraph(text, between)

    def find_names(self) -> None:
        """Find a name of each source that is not found yet, between its neighbours."""
        for index, low, high in self._missing():
            for name in own_names(self._sources[index].fields):
                place = self._place_of_name(name.strip(), low, high)
                if place is not None:
                    self.places[index] = place
                    break

    def _missing(self) -> Iterator[tuple[int, int, int]]:
        """Yield the index of each source that is not found yet, and the range of the text between its neighbours."""
        ends = [len(self._text)]
        for place in reversed(self.places):
            ends.append(ends[-1] if place is None else place.start)
        ends.reverse()
        low = 0
        for index in range(len(self.places)):
            place = self.places[index]
            if place is None:
                yield index, low, ends[index + 1]
                place = self.places[index]
            low = place.end if place is not None else low

    def _indexed(self) -> dict[str, list[int]]:
        """Return the indexes at which lines and elements begin, by the characters that follow."""
        found = defaultdict(list)
        for beginning in _BEGINNING.finditer(self._text):
            for index in {beginning.start(), beginning.end()}:
                found[self._text[index : index + _KEY_CHARACTERS]].append(index)
        return found

    def _place_of_text(self, text: str, start: int) -> TextMatch | None:
        head = text[:HEAD_CHARACTERS].rstrip()
        if not head:
            return None
        best: TextMatch | None = None
        for index in self._candidates(head, start):
            at = self._shield.outside(index)
            if at is None or at < start:
                continue
            if self._text.startswith(text, index):
                return TextMatch(at, index, index + len(text))
            # Signs and digits at the end may belong to the next mark, and equal the text of the source by chance.
            beginnings = [text, self._text[index : index + len(text)]]
            common = commonprefix(beginnings)  # noqa: RUF071 - of texts
            best = best or TextMatch(at, index, index + len(common.rstrip(_SIGNS)))
        return best

    def _candidates(self, head: str, start: int) -> Iterator[int]:
        """Yield indexes at which a text may begin: beginnings of lines or elements; if none matches, any others."""
        known = self._beginnings.get(head[:_KEY_CHARACTERS], [])
        first = bisect_left(known, start)
        is_known = False
        for index in known[first : first + _MAX_CANDIDATES]:
            self._budget -= len(head)
            if self._text.startswith(head, index):
                is_known = True
                yield index
        index = start - 1
        for _ in range(0 if is_known else _MAX_CANDIDATES):
            index = self._find(head, index + 1, len(self._text))
            if index < 0:
                return
            yield index

    def _find(self, part: str, start: int, end: int) -> int:
        if self._budget <= 0:
            return -1
        index = self._text.find(part, start, end)
        self._budget -= (end if index < 0 else index) - start + len(part)
        return index

    def _paragraphs(self) -> Iterator[tuple[int, str]]:
        """Yield start and text of each line that is long enough, without marks and signs around it."""
        start = 0
        for line in self._text.split("\n"):
            words = line.lstrip(_AROUND)
            if mark := _MARK.match(words):
                words = words[mark.end() :].lstrip(_AROUND)
            index = start + len(line) - len(words)
            words = words.rstrip(_AROUND)
            if len(words) >= _PARAGRAPH_CHARACTERS:
                yield index, words
            start += len(line) + 1

    def _place_of_paragraph(
        self, text: str, paragraphs: Sequence[tuple[int, str]]
    ) -> TextMatch | None:
        for index, words in paragraphs:
            if self._budget <= 0:
                return None
            self._budget -= len(text)
            at = self._shield.outside(index) if words in text else None
            if at is not None:
                return TextMatch(at, index, index + len(words))
        return None

    def _place_of_name(self, name: str, low: int, high: int) -> TextMatch | None:
        """Return the match of a name that occurs once in a range, at the beginning of a line or an element."""
        if len(name) < _NAME_CHARACTERS:
            return None
        index = self._find(name, low, high)
        if index < 0 or not is_at_line_start(self._text, index):
            return None
        if self._find(name, index + 1, high) >= 0 or self._budget <= 0:
            return None
        at = self._shield.outside(index)
        return None if at is None or at < low else TextMatch(at, index, index + len(name))


_START = r"(?:^|(?<=>)(?!>))[ \t>*#_•-]{0,20}"
_NUMBER = r"(?P<number>\d{1,4})"
_WORD = r"(?i:source|document|doc|result|passage|chunk|hit|reference|ref)"
_COUNTER = r"(?i:id|index|n|number|rank|source_id)"

_KINDS = (
    re.compile(rf"{_START}[\[【]{_NUMBER}[\]】](?![(\[])", re.MULTILINE),
    re.compile(
        rf"<[A-Za-z][^<>\n]{{0,300}}?\s{_COUNTER}\s*=\s*[\"']?{_NUMBER}\b[\"']?[^<>\n]{{0,300}}>"
    ),
    re.compile(rf"{_START}[\[<(]?{_WORD}[ _]?#?{_NUMBER}\b(?!\.\d)", re.MULTILINE),
    re.compile(rf"{_START}\({_NUMBER}\)", re.MULTILINE),
    re.compile(rf"{_START}{_NUMBER}[.)](?=[ \t\n*])", re.MULTILINE),
)
_USES = {
    _KINDS[0]: re.compile(rf"[\[【]{_NUMBER}[\]】](?![(\[])"),
    _KINDS[2]: re.compile(rf"\b{_WORD}[ _]?#?{_NUMBER}\b(?!\.\d)"),
    _KINDS[3]: re.compile(rf"\({_NUMBER}\)"),
}
"""Forms of the marks elsewhere in a text. ``1.`` is not one of them, because it may begin any list."""

_LINES = 8
"""Maximum number of line breaks between a mark and its source."""
_CONTEXT = 12
"""Number of characters before a mark; if they and the mark are in a source's text, the mark belongs to that text."""
_MAX_COMPARED = 50_000_000


class MarkDigits(NamedTuple):
    """The digits of a mark in a text, and the index of the source that they count."""

    start: int
    end: int
    source: int


def own_marks(
    text: str, sources: Sequence[FoundSource], places: Sequence[TextMatch], shield: Shield
) -> list[MarkDigits]:
    r"""Return the digits of a tool's own marks, in order; empty if its text has no such marks.

    >>> text = "Best: [2]\n[1] Seals sleep.\n[2] Orcas sing [1].\n"
    >>> sources = [FoundSource(None, "Seals sleep.", {}), FoundSource(None, "Orcas sing [1].", {})]
    >>> places = find_places(text, sources, shield := Shield(text))
    >>> [(found.start, found.source) for found in own_marks(text, sources, places, shield)]
    [(7, 1), (11, 0), (28, 1)]
    """
    gaps = _gaps(places)
    for kind in _KINDS:
        found = [mark for mark in kind.finditer(text) if not shield.is_code(mark.start("number"))]
        for first in (1, 0):
            marks = _counting(text, found, gaps, first)
            if marks:
                own = [*gaps, (places[-1].end, len(text))]
                uses = _USES.get(kind)
                others = _other_uses(text, uses, own, sources, first) if uses else ()
                return sorted({*marks, *(use for use in others if not shield.is_code(use.start))})
    return []


def counted_passages(text: str) -> list[int]:
    r"""Return the numbers in brackets at the beginnings of lines, if they count two passages or more from 0 or 1.

    >>> counted_passages("[1] Seals sleep.\n[2] Orcas sing."), counted_passages("[1] once, [2]")
    ([1, 2], [])
    """
    marks = list(_KINDS[0].finditer(text))
    if len(marks) < 2:
        return []
    shield = Shield(text)
    numbers = [int(mark["number"]) for mark in marks if not shield.is_code(mark.start("number"))]
    return numbers if len(numbers) > 1 and _counts(numbers) else []


def leading_numbers(texts: Sequence[str]) -> list[int]:
    """Return the numbers in brackets with which texts begin, if all of them do and they count from 0 or 1.

    >>> leading_numbers(["[1] Seals sleep.", "[2] Orcas sing."]), leading_numbers(["[2] Orcas sing."])
    ([1, 2], [])
    """
    marks = [_KINDS[0].match(text.lstrip()) for text in texts]
    numbers = [int(mark["number"]) for mark in marks if mark]
    return numbers if len(numbers) == len(texts) and _counts(numbers) else []


def _counts(numbers: Sequence[int]) -> bool:
    """Return True if numbers count from 0 or 1 without a gap."""
    first = numbers[0] if numbers else 2
    return first < 2 and list(numbers) == list(range(first, first + len(numbers)))


def _gaps(places: Sequence[TextMatch]) -> list[tuple[int, int]]:
    """Return for each source the range of the text between the previous source and this one."""
    ends = [0, *(place.end for place in places)]
    return [(end, place.start) for end, place in zip(ends, places, strict=False)]


def _counting(
    text: str, found: Sequence[re.Match[str]], gaps: Sequence[tuple[int, int]], first: int
) -> list[MarkDigits]:
    """Return the mark of each source, counted from `first`; empty unless every source has one."""
    starts = [mark.start() for mark in found]
    marks = []
    for index, (low, high) in enumerate(gaps):
        between = found[bisect_left(starts, low) : bisect_left(starts, high)]
        mark = _last_of(text, between, first + index, high)
        if mark is None:
            return []
        marks.append(MarkDigits(mark.start("number"), mark.end("number"), index))
    return marks


def _last_of(
    text: str, found: Sequence[re.Match[str]], number: int, end: int
) -> re.Match[str] | None:
    """Return the last mark with a number, if it is near enough to the end of its gap."""
    lines = 0
    before = end
    for mark in reversed(found):
        lines += text.count("\n", mark.end(), before)
        if lines > _LINES:
            return None
        if int(mark["number"]) == number and mark.end() <= end:
            return mark
        before = mark.start()
    return None


def _other_uses(
    text: str,
    uses: re.Pattern[str],
    own: Sequence[tuple[int, int]],
    sources: Sequence[FoundSource],
    first: int,
) -> Iterator[MarkDigits]:
    """Yield further uses of the marks in the tool's `own` parts of the text, around the sources."""
    budget = _MAX_COMPARED
    texts = ["", *(source.text for source in sources), ""]
    for (low, high), before, after in zip(own, texts, texts[1:], strict=False):
        around = f"{before}\n{after}"
        for use in uses.finditer(text, low, high):
            source = int(use["number"]) - first
            context = text[max(low, use.start() - _CONTEXT) : use.end()]
            budget -= len(around)
            if budget < 0:
                return
            if 0 <= source < len(sources) and context not in around:
                yield MarkDigits(use.start("number"), use.end("number"), source)

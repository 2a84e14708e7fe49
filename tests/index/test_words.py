"""Words of every script, windows and snippets."""

from __future__ import annotations

import unicodedata

from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from convstore.index.texts import Snippets, windows_of
from convstore.index.words import language_of, query_groups, terms, token_terms

TEXT = st.text(
    st.characters(codec="utf-8")
    | st.sampled_from("aBc dé_ü/.-#+:猫が好ไทยहि\u0301\u200d İıß\ufb01\n"),
    max_size=300,
)


@each_case(
    ("text", "query"),
    [
        ("getUserName(id)", "user name"),
        ("max_retry_count", "retry"),
        ("see src/app/main.py:42", "main.py"),
        ("released v1.2.3", "v1.2.3"),
        ("order ZX-3Q", "zx-3q"),
        ("Zürich", "zurich"),
        ("Zu\u0308rich", "Zürich"),
        ("STRASSE", "straße"),
        ("\uff26\uff55\uff4c\uff4cwidth", "fullwidth"),
        ("Die Häuser und die Gärten der Stadt", "Haus"),
        ("Les maisons et les jardins de la ville", "maison"),
        ("I was running and the dogs are barking", "run dog"),
        ("the house", "houses"),
        ("東京都の水族館", "水族館"),
        ("ภาษาไทยง่าย", "ภาษา"),
        ("학교에서", "학교"),
        ("हिन्दी भाषा", "हिन्दी"),
        ("Всё про кошек и не про собак, но как и на них", "кошек"),
        ("C++ or C#", "c++"),
        ("ISTANBUL İstanbul", "istanbul"),
    ],
)
def test_a_query_meets_a_text_in_another_form(text: str, query: str) -> None:
    """Every word of the query has a term of the text among its alternatives."""
    found = set(terms(text, language_of(text)))
    assert all(found.intersection(group) for group in query_groups(query))


@each_case("words", ["der the", "les the", "los the", "gli the", "uma the", "het the", "не the"])
def test_english_is_the_language_where_it_is_as_common_as_another(words: str) -> None:
    """In every process: a set's order is each process's own, and a segment is compared with one of another process."""
    assert language_of(f"{words} Ω") == "english"


@given(TEXT)
@examples(300)
def test_a_text_meets_itself(text: str) -> None:
    """A query of a text's own words finds each of its terms, whichever language is detected."""
    for language in ("", language_of(text), "english", "german", "russian"):
        groups = query_groups(text)
        assert set(terms(text, language)) <= {term for group in groups for term in group}


@given(TEXT)
@examples(200)
def test_composed_and_decomposed_texts_have_the_same_terms(text: str) -> None:
    """A file system's accents are the keyboard's."""
    letters = "".join(sign for sign in text if ord(sign) < 0x250)
    assert terms(unicodedata.normalize("NFD", letters)) == terms(
        unicodedata.normalize("NFC", letters)
    )


@given(st.text(max_size=30).map(lambda text: text * 150))
@examples(100)
def test_windows_cover_a_text(text: str) -> None:
    """The windows of a text cover it without gaps, and each has at most 1,000 characters."""
    windows = windows_of(text)
    assert "".join(text[start:end] for start, end in windows) == text
    assert all(0 < end - start <= 1_000 for start, end in windows)


@given(TEXT, st.data())
@examples(200)
def test_a_snippet_is_cut_from_the_text(text: str, data: st.DataObject) -> None:
    """A snippet is a part of the text and has at most 300 characters."""
    whole = "lorem " * 100 + text + " ipsum" * 100
    words = [token for token in text.split() if token_terms(token, "") and len(token) < 20]
    query = data.draw(st.sampled_from(words)) if words else "nothing"
    groups = query_groups(query)
    shown = Snippets(groups).of(whole)
    assert shown in whole
    assert len(shown) <= 300


def test_junk_is_cheap() -> None:
    """A long token without spaces is data: one term for each 200 characters at most."""
    assert len(terms("QUJD+/" * 100_000)) <= 1
    assert len(query_groups("QUJD+/" * 100_000)) <= 1

"""Ranking by BM25 over windows, however a log is divided into parts."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from steps import finish

from convstore.index.part import IndexBuilder
from convstore.index.ranking import ranked
from convstore.index.texts import SearchableText
from convstore.index.words import query_groups
from convstore.log.entry import EntryMessage

AT = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = st.lists(
    st.sampled_from(["orca", "orcas", "seal", "the", "猫", "猫が好き", "getUserName", "user"]),
    max_size=12,
)


def part_of(texts: list[str], first: int = 1) -> IndexBuilder:
    """Return a part with one message for each text, every third of them human."""
    builder = IndexBuilder()
    for ordinal, text in enumerate(texts, first):
        type_ = "human" if ordinal % 3 == 1 else "ai"
        finish(
            builder.adding(
                EntryMessage(ordinal, f"m{ordinal}", type_, "", b"", 1, 1),
                [SearchableText(text)],
                first=ordinal,
                at=AT,
            )
        )
    return builder


@given(
    st.lists(WORDS.map(" ".join), min_size=1, max_size=12), WORDS.map(" ".join), st.integers(0, 12)
)
@examples(200)
def test_parts_do_not_change_the_ranking(texts: list[str], query: str, cut: int) -> None:
    """Scores and order are those of one part, exactly."""
    cut = min(cut, len(texts))
    groups = query_groups(query)
    whole = ranked([part_of(texts)], groups, is_allowed=lambda *_: True, limit=20)
    parts = [part_of(texts[:cut]), part_of(texts[cut:], cut + 1)]
    divided = ranked(parts, groups, is_allowed=lambda *_: True, limit=20)
    assert [(found.message.ordinal, found.score) for found in whole] == [
        (message.message.ordinal, message.score) for message in divided
    ]


@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=12), WORDS.map(" ".join))
@examples(100)
def test_a_part_with_the_needed_terms_ranks_like_a_whole_one(texts: list[str], query: str) -> None:
    """A scan keeps only what the query asks for."""
    groups = query_groups(query)
    lean = IndexBuilder()
    for ordinal, text in enumerate(texts, 1):
        type_ = "human" if ordinal % 3 == 1 else "ai"
        finish(
            lean.adding(
                EntryMessage(ordinal, f"m{ordinal}", type_, "", b"", 1, 1),
                [SearchableText(text)],
                first=ordinal,
                at=AT,
            )
        )
        lean.keep(groups)
    results = [
        ranked([part], groups, is_allowed=lambda *_: True, limit=20)
        for part in (part_of(texts), lean)
    ]
    assert results[0] == results[1]


def test_the_rarer_word_wins() -> None:
    """A message with the rare word comes before those with the common one; equal ones by ordinal."""
    part = part_of(["orca", "seal seal", "seal", "orca", "seal", *["orca"] * 6, "orca narwhal"])
    found = ranked([part], query_groups("seal narwhal"), is_allowed=lambda *_: True, limit=3)
    assert [place.message.ordinal for place in found] == [12, 2, 3]


def test_an_answer_counts_the_words_of_its_question() -> None:
    """A message counts the words of its question too: of two equal messages, the one after such a word is first."""
    part = part_of(["it is narwhal", *["seal"] * 5, "which orca", "it is narwhal", *["seal"] * 5])
    found = ranked([part], query_groups("orca narwhal"), is_allowed=lambda *_: True, limit=9)
    assert [place.message.ordinal for place in found] == [7, 8, 1]


def test_question_words_count_less_than_others() -> None:
    """A message with the word that is asked for comes before one that asks in the same way."""
    part = part_of(["when did they say so", *["seal"] * 9, "an orca"])
    found = ranked(
        [part], query_groups("when did they see the orca"), is_allowed=lambda *_: True, limit=20
    )
    assert [place.message.ordinal for place in found] == [11, 1]


def test_what_follows_the_same_question_comes_before_other_matches() -> None:
    """The answer that was given to it shares one word with the query, another message two."""
    question = "where did the orca leave her calf"
    texts = [
        "seal",
        "seal",
        "seal",
        question,
        "an orca",
        "seal",
        "seal",
        "seal",
        "seal",
        "seal",
        "seal",
    ]
    part = part_of([*texts, "orca and calf in the bay on a day in May", *["orca"] * 4])
    found = ranked([part], query_groups(question), is_allowed=lambda *_: True, limit=20)
    assert [place.message.ordinal for place in found[:2]] == [4, 5]

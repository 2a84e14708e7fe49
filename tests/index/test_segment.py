"""Segments hold exactly what the part that they were made from holds."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples
from steps import finish

from convstore.index.part import IndexBuilder
from convstore.index.ranking import ranked
from convstore.index.segment import Segment, merged, sections_of
from convstore.index.texts import MAX_CHARACTERS, SearchableText, cut_to_fit, without_copies
from convstore.index.words import query_groups
from convstore.log.entry import EntryMessage, PayloadRef
from convstore.messages.compression import compress_bytes, decompress_bytes

AT = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = st.lists(
    st.sampled_from(["orca", "orcas", "the", "猫", "猫が好き", "userId", "\x00", "\ud800"]),
    max_size=400,
)


TEXTS = st.builds(
    SearchableText,
    WORDS.map(" ".join),
    start=st.integers(-1, 2**31),
    source_id=st.integers(0, 2**31),
    label=st.sampled_from(["", "Title (https://example.org/x)"]),
    is_rest=st.booleans(),
)
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["human", "ai", "tool", "system"]),
        st.booleans(),
        st.lists(TEXTS, max_size=3),
    ),
    max_size=8,
)


def part_of(
    messages: list[tuple[str, bool, list[SearchableText]]], first: int = 1, in_entry: int = 1
) -> IndexBuilder:
    """Return a part with some messages; the flag gives one a payload."""
    part = IndexBuilder()
    for ordinal, (type_, has_payload, texts) in enumerate(messages, first):
        ref = PayloadRef("65f0c0ffee", ordinal, (5, 9), 0, b"", 0) if has_payload else None
        turn = ordinal if type_ == "human" else ordinal // 2
        message = EntryMessage(
            ordinal, f"m{ordinal}\ud800", type_, "", b"", 1, 1, turn=turn, payload=ref, tool="run"
        )
        finish(
            part.adding(
                message,
                texts,
                first=ordinal - (ordinal - first) % in_entry,
                at=AT + timedelta(milliseconds=ordinal),
            )
        )
    return part


def contents(part: IndexBuilder | Segment) -> tuple[object, ...]:
    """Return everything that a part answers."""
    windows = [part.windows[number] for number in range(len(part.windows))]
    postings = sorted((term, list(found)) for term, found in part.items() if found)
    return (
        [part.message(index) for index in range(part.size)],
        part.labels,
        windows,
        list(part.windows.lengths),
        list(part.windows.message_of),
        list(part.windows.source_of),
        list(part.humans),
        list(part.questions),
        postings,
        [(term, part.frequency(term), list(part.postings(term))) for term, _ in postings],
        sorted(part.containing("猫")),
    )


@given(MESSAGES)
@examples(150)
def test_a_segment_is_its_part(messages: Any) -> None:
    """Messages, windows and terms come back."""
    part = part_of(messages, in_entry=3)
    assert contents(Segment(finish(sections_of(part)))) == contents(part)


@given(MESSAGES, st.integers(0, 8), st.integers(0, 8))
@example([("tool", True, [SearchableText("orca", start=-1, source_id=1)])] * 3, 1, 2)
@examples(100)
def test_merged_segments_are_one(messages: Any, first_cut: Any, second_cut: Any) -> None:
    """Merging the segments of a log gives the segment of the whole log, however it was divided."""
    first, two = sorted((min(first_cut, len(messages)), min(second_cut, len(messages))))
    pieces = [
        part_of(messages[:first]),
        part_of(messages[first:two], first + 1),
        part_of(messages[two:], two + 1),
    ]
    segments = [Segment(finish(sections_of(piece))) for piece in pieces[:2]]
    assert contents(finish(merged(segments, pieces[2]))) == contents(part_of(messages))


@given(
    MESSAGES,
    st.sampled_from(["orca the", "猫", "猫が", "user id", "title", "orcas"]),
    st.booleans(),
)
@examples(150)
def test_segments_rank_like_parts(messages: Any, query: Any, by_source: Any) -> None:
    """The same hits, scores and windows; with the words of the query alone, too."""
    part, groups = part_of(messages), query_groups(query)
    segment = Segment(finish(sections_of(part)))
    results = [
        ranked([piece], groups, is_allowed=lambda *_: True, limit=20, by_source=by_source)
        for piece in (part, segment, segment.only(groups))
    ]
    assert results[0] == results[1] == results[2]


def test_a_rest_counts_only_terms_that_its_message_has_nowhere_else() -> None:
    """The content of a result that repeats its sources does not count their words twice."""
    part = part_of(
        [
            (
                "tool",
                False,
                [
                    SearchableText("orca pod", source_id=1),
                    SearchableText("orca pod seals", is_rest=True),
                ],
            )
        ]
    )
    assert list(part.windows.lengths) == [2, 1]


@pytest.mark.parametrize(
    "escape", [str, json.dumps, lambda text: json.dumps(text, ensure_ascii=False)]
)
def test_a_copy_in_a_rest_is_not_split_again(escape: Any) -> None:
    """The copy of a source in a tool's own text is not indexed again, plain or as JSON."""
    source = 'Orcas "hunt"\ntogether in groups, they say in Zürich. ' * 3
    texts = [
        SearchableText(source, source_id=1),
        SearchableText(f"1. {escape(source)} seals", is_rest=True),
    ]
    part = part_of([("tool", False, texts)])
    assert without_copies(texts[1], texts[:1]).replace('"', " ").split() == ["1.", "seals"]
    assert [(window.text, window.length) for window in part.windows][-1] == (1, 2)


@pytest.mark.parametrize("section", ["terms", "postings", "windows", "details"])
def test_a_damaged_section_is_an_error(section: str) -> None:
    """A checksum is in each section."""
    sections = finish(sections_of(part_of([("human", False, [SearchableText("orca")])])))
    damaged = sections[section][:-1] + bytes([sections[section][-1] ^ 1])
    with pytest.raises(ValueError, match="zstd"):
        contents(Segment({**sections, section: damaged}))


@pytest.mark.slow
def test_the_largest_segment_of_any_texts_fits_into_a_document() -> None:
    """Random pairs of rare characters take the most space; the share of each grows a little less than the text."""
    dice = random.Random(1)
    text = "".join(chr(dice.randrange(0x20000, 0x40000 - 2)) for _ in range(50_000))
    part = part_of([("human", False, [SearchableText(text)])])
    assert (
        MAX_CHARACTERS / len(text) * sum(map(len, finish(sections_of(part)).values())) < 16 * 2**20
    )


def test_the_longest_texts_of_an_append_are_cut() -> None:
    """To one length, and only as far as needed."""
    texts = [
        [SearchableText("a" * 1_500_000), SearchableText("b")],
        [],
        [SearchableText("c" * 900_000), SearchableText("d" * 400_000)],
    ]
    assert [[len(text.text) for text in parts] for parts in cut_to_fit(texts)] == [
        [799_999, 1],
        [],
        [799_999, 400_000],
    ]
    assert cut_to_fit(texts[2:]) == texts[2:]


def test_a_frame_is_decompressed_up_to_its_maximum() -> None:
    """A frame that decompresses beyond its maximum is refused, so that damage cannot exhaust the memory."""
    frame = compress_bytes(b"x" * 11)
    assert decompress_bytes(frame, maximum=11) == b"x" * 11
    with pytest.raises(ValueError, match="larger than it may be"):
        decompress_bytes(frame, maximum=10)

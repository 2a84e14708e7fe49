"""Detection and numbering of sources."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from strategies import PureLog, any_text, keys, values

from convstore.exceptions import SourceIdClashError
from convstore.log.entry import EntrySource
from convstore.messages.values import Codec
from convstore.sources.source import MAX_SOURCES, read_ids, source_in, write_ids
from convstore.values.models import Source, SourcePage

_HITS = [
    {"title": "A", "url": "https://a", "text": "first", "score": 1},
    {"name": "B", "link": "b", "content": "second"},
]


def _message(content: Any = "see artifact", artifact: Any = None, **fields: Any) -> ToolMessage:
    return ToolMessage(
        content, artifact=artifact, **({"id": "m", "tool_call_id": "c", "name": "search"} | fields)
    )


def _numbered(log: PureLog, message: ToolMessage) -> list[EntrySource]:
    return list(log.append([message]).sources)


# ---------------------------------------------------------------------------------------------------------------------
# Items


def test_what_was_read_back_gets_no_numbers() -> None:
    """Pages of the store's own tool keep the numbers that they show, whatever else they hold."""
    page = SourcePage(sources=[Source(source_id=3, content="x")])
    log = PureLog()
    assert _numbered(log, _message(json.dumps(_HITS), page, id="m1")) == []
    assert (
        _numbered(
            log, _message(json.dumps(_HITS), _HITS, id="m2", name="retrieve_previous_sources")
        )
        == []
    )
    assert log.totals.sources_through == 0


@given(
    st.builds(
        Document,
        any_text,
        id=st.none() | any_text,
        metadata=st.dictionaries(keys | st.integers(), values, max_size=3),
    )
    | st.tuples(any_text, st.dictionaries(keys | st.none(), values, max_size=3))
    | st.dictionaries(
        st.sampled_from(["text", "title", "url", "metadata", "source_id"]) | st.integers(), values
    )
)
def test_any_source_can_be_shown(item: Any) -> None:
    """An item with any keys and values gives texts and a valid `Source`."""
    found = source_in(item)
    assert found is not None
    title, url, metadata = found.label()
    source = Source(source_id=1, title=title, url=url, content=found.text, metadata=metadata)
    assert source.metadata.keys() <= found.fields.keys()
    Codec().encode(found.with_text("text"))


def test_metadata_is_all_that_is_not_shown_elsewhere() -> None:
    """Number, title and address have places of their own; all else that the tool said is metadata, other ids too."""
    item = {
        "text": "x",
        "title": "T",
        "name": "N",
        "url": "u",
        "link": "l",
        "source_id": 3,
        "": 0,
        "metadata": {"a": 1},
    }
    assert source_in(item).label()[2] == {
        "name": "N",
        "link": "l",
        "": 0,
        "metadata": {"a": 1},
        "a": 1,
    }
    assert source_in({"source_id": "doc-7", "": 0}).label()[2] == {"source_id": "doc-7", "": 0}


@each_case(
    ("fields", "title", "url", "rest"),
    [
        ({"filename": "a.pdf", "source": "https://a"}, "a.pdf", "https://a", {}),
        ({"name": "N", "filename": "a.pdf"}, "N, a.pdf", "", None),
        ({"source": "/books/a.pdf", "title": 7}, "/books/a.pdf", "", {"title": 7}),
        ({"source": "s3://b/k", "uri": "u"}, "", "u", {"source": "s3://b/k"}),
        ({"source": ["https://a"], "filename": None, "url": None}, "", "", None),
        ({"source": "C://x"}, "C://x", "", {}),
        ({"source": "see https://a"}, "see https://a", "", {}),
    ],
)
def test_other_labels_are_known(
    fields: dict[str, Any], title: str, url: str, rest: dict[str, Any] | None
) -> None:
    """A file is a title if there is no other; `source` is the address if it looks like one, else the file."""
    for hit in (("x", fields), Document("x", metadata=fields), {"text": "x", **fields}):
        found = source_in(hit)
        assert found is not None
        assert found.label() == (
            title,
            url,
            fields if rest is None else rest,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        *((number, number) for number in (7, 1, 2**53 - 1)),
        *((other, None) for other in (True, 0, -1, "7", 7.0, None, 2**53, 10**5_000, [7], {})),
    ],
    ids=range(13),
)
def test_only_a_positive_int_is_a_number(given_: Any, kept: Any) -> None:
    """A tool's own `source_id` is kept if it is a whole number from 1 to 2**53 - 1, else allotted anew."""
    for item in (
        {"text": "x", "source_id": given_},
        ("x", {"source_id": given_}),
        Document("x", metadata={"source_id": given_}),
    ):
        found = source_in(item)
        assert found is not None
        assert found.kept_id == kept
    assert source_in({"text": "x", "metadata": {"source_id": given_}}).kept_id == kept


def test_numbers_are_assigned_in_order_after_all_others() -> None:
    """Free numbers follow the highest one in use or kept, in the order of the batch, and are never given again."""
    log = PureLog()
    first = log.append(
        [_message(artifact=_HITS, id="m1"), _message(artifact=[{"text": "x"}] * 3, id="m2")]
    )
    assert [(source.id, source.message_id) for source in first.sources] == [
        (1, "m1"),
        (2, "m1"),
        *((n, "m2") for n in (3, 4, 5)),
    ]
    mixed = [{"text": "a"}, {"text": "b", "source_id": 40}, {"text": "c"}]
    assert [source.id for source in _numbered(log, _message(artifact=mixed, id="m3"))] == [
        41,
        40,
        42,
    ]
    assert [source.id for source in _numbered(log, _message(artifact=_HITS, id="m4"))] == [43, 44]
    assert log.totals.sources_through == 44


@pytest.mark.costly
@pytest.mark.parametrize("others", [0, 3_000])
def test_one_number_for_two_sources_is_refused(others: int) -> None:
    """A batch with the same number twice, in one result or in two, is refused with the number, at any size."""
    rest = [
        _message(
            artifact=[{"text": "x", "source_id": 100 + start + index} for index in range(1_000)],
            id=f"r{start}",
        )
        for start in range(0, others, 1_000)
    ]
    twice = [{"text": "x", "source_id": 7}]
    for batch in (
        [_message(artifact=twice * 2)],
        [_message(artifact=twice), _message(artifact=twice, id="n")],
    ):
        with pytest.raises(SourceIdClashError) as clash:
            PureLog().append([*rest, *batch])
        assert clash.value.source_id == 7


def test_labels_are_kept_with_the_number() -> None:
    """Title and address stand with the number, cut to a useful length."""
    sources = _numbered(
        PureLog(), _message(artifact=[{"text": "x" * 400, "title": "T" * 300, "url": "u" * 600}])
    )
    assert [(len(source.title), len(source.url)) for source in sources] == [(200, 500)]


@given(st.sets(st.integers(1, 60) | st.integers(1, 2**53)))
def test_written_ids_can_be_read_back(ids: Any) -> None:
    """Ranges are sorted, joined as far as they go, and say exactly which ids there are."""
    text = write_ids([*ids, *ids])
    runs = [tuple(map(int, run.split("-"))) for run in text.split(", ")] if text else []
    if all(run[-1] - run[0] < 1_000 for run in runs):
        assert [number for run in runs for number in range(run[0], run[-1] + 1)] == sorted(ids)
    assert all(after[0] > run[-1] + 1 for run, after in pairwise(runs))
    assert all(len(run) == 1 or run[0] < run[1] for run in runs)
    if (
        len(ids) <= MAX_SOURCES
        and all(run[-1] - run[0] < MAX_SOURCES for run in runs)
        and max(ids, default=0) < 10**15
    ):
        assert read_ids(text) == sorted(ids)


@each_case(
    ("text", "ids"),
    [
        ("", []),
        ("7", [7]),
        (" [3], 11-13 ,3,", [3, 11, 12, 13]),
        ("13-11", []),
        ("1-1000", list(range(1, 1_001))),
        ("1-999999999999999", list(range(1, 1_002))),
        ("1-600, 2000-2600", [*range(1, 601), *range(2_000, 2_401)]),
    ],
)
def test_what_a_model_writes_is_read_within_bounds(text: str, ids: Any) -> None:
    """Numbers and ranges in any order; of more than a thousand one too many, which shows that there are more."""
    assert read_ids(text) == ids


def test_ranges_that_repeat_ids_are_bounded() -> None:
    """Each is expanded once, and not more than a thousand of them, however long the text is."""
    assert read_ids("1-1000," * 30_000) == list(range(1, 1_001))
    with pytest.raises(ValueError, match="the same source ids"):
        read_ids(",".join(f"{1_000 - number % 2}-{1_000 + number}" for number in range(-900, 900)))
    assert len(read_ids(",".join(map(str, range(1, 3_000))))) == MAX_SOURCES + 1


@each_case(
    "text", ["x", "1-x", "-3", "1.5", "1--3", "\u00b2", "\u0661", "9" * 16, "1 2", "[", "m1"]
)
def test_what_is_no_list_of_ids_is_a_value_error(text: str) -> None:
    """Anything else is a ValueError that the tool can answer with."""
    with pytest.raises(ValueError, match="not a source id"):
        read_ids(text)

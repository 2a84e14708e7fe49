"""Documents are read as they were written, and damage is recognised."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from strategies import NOW, PureLog, any_text, turn, turns

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import UNREAD, Entry, Totals
from convstore.mongo.bson_values import encoded, from_stored, to_stored
from convstore.mongo.documents import entry_document, entry_from, totals_document, totals_from
from convstore.mongo.indexes import indexes_for
from convstore.mongo.keys import (
    chunk_id,
    chunk_range,
    conversation_range,
    end_range,
    entry_id,
    entry_range,
    head_id,
    state_id,
)

_ODD = "\ud83d\ude00 \0 é"


def _document(entry: Entry) -> dict[str, Any]:
    return entry_document("conv", entry)


def _through_bson(document: dict[str, Any], *, tz_aware: bool = True) -> dict[str, Any]:
    return bson.decode(encoded(document), codec_options=CodecOptions(tz_aware=tz_aware))


def _odd_log() -> PureLog:
    """A log with lone surrogates wherever a message may have them, and with every optional field."""
    call = {"name": _ODD, "args": {_ODD: _ODD}, "id": _ODD, "type": "tool_call"}
    asked = AIMessage(_ODD, id="a", tool_calls=[call], usage_metadata=_USAGE)
    hits = [(_ODD * 200, {"title": _ODD, "url": _ODD}), ("x", {})]
    listed = json.dumps({"results": [{"text": "x" * 400, "title": _ODD}]})
    log = PureLog()
    log.append([SystemMessage("s", id="s"), HumanMessage(_ODD, id="h"), asked])
    log.append([ToolMessage("y", id="t", tool_call_id=_ODD, artifact=hits)])
    log.append(
        [
            ToolMessage(listed, id="u", tool_call_id="c"),
            *turn(2),
            asked.model_copy(update={"id": "b"}),
        ]
    )
    return log


_USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


@given(st.lists(turns, min_size=1, max_size=3))
def test_an_entry_comes_back_equal(script: Any) -> None:
    """Entry to document to BSON to document to entry changes nothing."""
    log = PureLog()
    for number, (rounds, asked, said) in enumerate(script):
        entry = log.append(turn(number, rounds, asked=asked, said=said))
        assert entry_from(_through_bson(_document(entry))) == entry


def test_texts_that_bson_can_not_hold_come_back_equal() -> None:
    """Bodies, names, titles and calls with lone surrogates are stored as bytes and read as they were."""
    for entry in _odd_log().entries:
        assert entry_from(_through_bson(_document(entry))) == entry


def test_a_zone_that_the_driver_lost_is_utc() -> None:
    """A client without time zones gives the same moments."""
    entry = _odd_log().entries[0]
    assert entry_from(_through_bson(_document(entry), tz_aware=False)).at == entry.at


def test_a_projection_without_messages_gives_the_totals() -> None:
    """The tail is read without messages and sources; a preview that was not read is not one that is not there."""
    entry = _odd_log().entries[-1]
    document = _document(entry)
    del document["messages"], document["sources"], document["totals"]["preview"]
    assert entry_from(document).totals == replace(entry.totals, preview=UNREAD)


def test_the_newest_sources_are_read_with_the_tail_only() -> None:
    """An entry stores the digests of its own sources; an empty log has none."""
    read = [entry_from(_through_bson(_document(entry))).totals for entry in _odd_log().entries]
    assert [totals.shown_at for totals in read] == [0, 2, 3]
    assert [totals.shown for totals in read] == [{}, None, None]


@given(any_text)
@example("\ud83d\ude00")
def test_any_text_can_be_stored(text: Any) -> None:
    """A text is stored as a str wherever UTF-8 can hold it, else as bytes, and is the same text again."""
    stored = to_stored(text)
    assert from_stored(bson.decode(bson.encode({"x": stored}))["x"]) == text
    assert isinstance(stored, bytes) == any("\ud800" <= character <= "\udfff" for character in text)


def test_totals_come_back_equal() -> None:
    """The head's copy of the totals too, for an empty log and for a full one."""
    for totals in (Totals(), _odd_log().totals):
        assert totals_from(_through_bson(totals_document(totals))) == totals


def test_only_what_is_indexed_has_the_field() -> None:
    """Entries without messages or results stay out of the partial indexes over them."""
    empty = Entry(first=1, at=NOW, messages=(), totals=Totals(entries=1, sources_through=10))
    assert not {"messages", "results_at"} & entry_document("conv", empty).keys()
    assert [document.get("results_at") for document in _DOCUMENTS] == [None, 4, 5]
    assert entry_from(entry_document("conv", empty)).totals.sources_through == 10


# ---------------------------------------------------------------------------------------------------------------------
# Damage


_DOCUMENTS = [_document(entry) for entry in _odd_log().entries]


@pytest.mark.parametrize(
    "change",
    [
        {"first": 2},
        {"count": 2},
        {"_id": "conv:000000000002"},
        {"conversation": "other"},
        {"results_at": 1},
    ],
)
def test_numbers_that_do_not_agree_are_recognised(change: dict[str, Any]) -> None:
    """Key, conversation, entry number, ordinals and count have to fit each other."""
    with pytest.raises(CorruptDocumentError):
        entry_from(_DOCUMENTS[0] | change)


# ---------------------------------------------------------------------------------------------------------------------
# Keys and indexes


def test_indexes_cover_what_is_looked_up() -> None:
    """Message and source ids are unique in a conversation; each index holds only documents that have its field."""
    conversation = ("conversation", 1)
    assert [(index.keys, index.unique, index.present) for index in indexes_for([])["log"]] == [
        ((conversation, ("messages.id", 1)), True, "messages.id"),
        ((conversation, ("kept_source_ids", 1)), True, "kept_source_ids"),
        ((conversation, ("lookup", 1), ("_id", 1)), False, "lookup"),
        ((conversation, ("first", 1), ("_id", 1)), False, "first"),
        ((conversation, ("results_at", 1)), False, "results_at"),
        ((conversation,), False, "revision"),
    ]
    newest = (("updated_at", -1), ("_id", -1))
    assert [
        (index.keys, index.unique, index.present) for index in indexes_for(["a", "b"])["heads"]
    ] == [
        ((("scope.a", 1), *newest), False, "scope.a"),
        ((("scope.b", 1), *newest), False, "scope.b"),
        ((("scope.a", 1), ("scope.b", 1), *newest), False, "scope.a"),
        (newest, False, "updated_at"),
        ((conversation,), False, ""),
        ((("parent", 1), ("_id", 1)), False, "parent"),
        ((("sweep_at", 1),), False, "sweep_at"),
    ]
    names = [index.name for index in (*indexes_for([])["log"], *indexes_for(["a", "b"])["heads"])]
    assert len(names) == len(set(names))
    with pytest.raises(dataclasses.FrozenInstanceError):
        indexes_for([])["log"][0].name = "x"  # type: ignore[misc]


_ids = st.text("0123456789abcdef", min_size=24, max_size=24)


@given(_ids, _ids, st.integers(0, 10**12 - 3), st.integers(0, 999_998))
def test_keys_order_as_numbers_do_in_ranges_of_their_own(
    item: Any, other: Any, number: Any, chunk: Any
) -> None:
    """'#' < ':' < ';' gives entries, chunks and the conversation one range each, and no range touches another's."""
    assert entry_id(item, number) < entry_id(item, number + 1)
    assert chunk_id(item, "t", chunk) < chunk_id(item, "t", chunk + 1)
    low, high = conversation_range(item)
    keys = [entry_id(item, number), chunk_id(item, "t", chunk)]
    assert all(low <= key < high for key in keys)
    first, last = entry_range(item)
    assert [first < key < last for key in keys] == [True, False]
    assert last < state_id(item) < end_range(item, start=number)[1]
    first, last = entry_range(item, start=number + 1, before=number + 2)
    assert first == end_range(item, start=number + 1)[0]
    assert keys[0] < first < entry_id(item, number + 1) < last < entry_id(item, number + 2)
    first, last = chunk_range(item, "t", chunk, 1)
    assert first <= keys[1] < last <= chunk_id(item, "t", chunk + 1)
    if item != other:
        assert not any(
            low <= key < high for key in (entry_id(other, number), chunk_id(other, "t", chunk))
        )


_scopes = st.dictionaries(
    st.sampled_from(["a", "b", "user_id"]),
    st.text(max_size=3) | st.sampled_from(['","', '"],["', "a"]),
)


@given(_scopes, _scopes)
@example({"a": "b", "b": "a"}, {"a": "a", "b": "b"})
@example({"a": 'x"],["b","y'}, {"a": "x", "b": "y"})
@example({"a": "é"}, {"a": "\\u00e9"})
@example({"a": "1"}, {"a": "1\0"})
def test_a_head_is_found_by_its_scope_alone(scope: dict[str, str], other: Any) -> None:
    """The order of keys does not matter; two scopes that differ in anything never have the same head."""
    assert head_id(dict(reversed(scope.items()))) == head_id(scope)
    assert (head_id(scope) == head_id(other)) == (scope == other)

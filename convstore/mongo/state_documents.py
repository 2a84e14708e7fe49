"""Convert the state of a conversation to its document and back; sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import bson

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry
from convstore.log.rewind import NO_REWINDS
from convstore.log.rows import rows_of
from convstore.log.state import LeadingSystem, State, ViewStart, system_of
from convstore.log.summary import SummaryRecord
from convstore.mongo.bson_values import (
    from_stored,
    storable,
    stored_bytes,
    stored_list,
    stored_number,
    stored_text,
    to_stored,
    utc,
)
from convstore.mongo.documents import message_document, message_from, summary_document, summary_from
from convstore.mongo.keys import entry_id, state_id

_SUMMARY_BYTES = 32_000
"""Larger summaries are stored without their text, which is in ``summaries``."""

_ALWAYS = ("token", "digest", "totals", "tokens")


def new_state(conversation: str, entry: Entry) -> dict[str, Any]:
    """Return the document of the state that is inserted with the first entry of a log."""
    key = entry_id(conversation, entry.number)
    stored = replace(entry, messages=tuple(replace(message, entry=key) for message in entry.messages))
    system = system_of(rows_of([stored]), NO_REWINDS, entry.totals.counter)
    return state_document(State(conversation, entry.at, system=system))


def state_document(state: State) -> dict[str, Any]:
    """Return the document of a state."""
    document: dict[str, Any] = {
        "_id": state_id(state.conversation),
        "conversation": state.conversation,
        "at": state.at,
        "revision": state.revision,
    }
    optional = {
        "summary": copied_summary(state.summary),
        "newest": state.newest,
        "aside": state.aside,
        "versions": state.versions,
        "starts": [start_document(start) for start in state.starts],
        "system": system_document(state.system) if state.system else None,
        "changes": [list(change) for change in state.changes],
    }
    return document | {name: value for name, value in optional.items() if value}


def state_from(document: Mapping[str, Any], summary: SummaryRecord | None) -> State:
    """Return the state of a document, given its current summary; raise a CorruptDocumentError if it is damaged."""
    key = str(document.get("_id"))
    try:
        conversation = stored_text(document["conversation"])
        if key != state_id(conversation):
            raise ValueError("the key does not match the conversation")
        return State(
            conversation,
            utc(document["at"]),
            revision=stored_number(document["revision"]),
            summary=summary,
            newest=stored_text(document.get("newest", "")),
            aside=stored_text(document.get("aside", "")),
            versions=stored_number(document.get("versions", 0)),
            failures=stored_number(document.get("failures", 0)),
            wait_until=utc(wait) if (wait := document.get("wait_until")) is not None else None,
            starts=starts_in(document),
            system=_system_from(system) if (system := document.get("system")) is not None else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDocumentError(key, repr(error)) from error


def current_summary(document: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return token and digest of a state's current summary, empty for none; a CorruptDocumentError if it is damaged."""
    if (summary := document.get("summary")) is None:
        return "", b""
    try:
        return stored_text(summary["token"]), stored_bytes(summary["digest"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDocumentError(str(document.get("_id")), f"a summary: {error!r}") from error


def changes_in(document: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the changes of the current summary in a state: last entries and tokens; CorruptDocumentError if not."""
    try:
        pairs = [stored_list(one) for one in stored_list(document.get("changes", ()))]
        return [(stored_number(entry), stored_text(token)) for entry, token in pairs]
    except (TypeError, ValueError) as error:
        raise CorruptDocumentError(str(document.get("_id")), repr(error)) from error


def summary_in(document: Mapping[str, Any]) -> SummaryRecord | None:
    """Return the current summary in a state's document; None if it is large, so that its text is elsewhere."""
    summary = document["summary"]
    return summary_from(summary, state=str(document.get("_id"))) if "text" in summary else None


def start_document(start: ViewStart) -> list[Any]:
    """Return a start in the form that states and heads store; later starts compare greater."""
    results = [[to_stored(part) for part in result] for result in start.results]
    return [
        start.rewind_entry,
        start.revision,
        start.entry,
        start.first,
        start.through,
        start.turn,
        start.link,
        to_stored(start.counter),
        start.policy,
        results,
    ]


def start_from(value: Any) -> ViewStart:
    """Return the start that `start_document` wrote."""
    *numbers, counter, policy, results = stored_list(value)
    rewind_entry, revision, entry, first, through, turn, link = map(stored_number, numbers)
    names = tuple((from_stored(id_), from_stored(about)) for id_, about in map(stored_list, stored_list(results)))
    return ViewStart(
        rewind_entry,
        revision,
        entry,
        first,
        through,
        turn,
        link,
        from_stored(counter),
        stored_text(policy),
        names,
    )


def starts_in(document: Mapping[str, Any]) -> tuple[ViewStart, ...]:
    """Return the starts of views in a state's document; raise a CorruptDocumentError if they are damaged."""
    try:
        return tuple(map(start_from, stored_list(document.get("starts", ()))))
    except (TypeError, ValueError) as error:
        raise CorruptDocumentError(str(document.get("_id")), repr(error)) from error


def copied_summary(summary: SummaryRecord | None) -> dict[str, Any] | None:
    """Return the copy of a summary in a state; of a large one, its digest and sizes."""
    if summary is None:
        return None
    document = summary_document(summary)
    is_large = len(bson.encode(document)) > _SUMMARY_BYTES
    return {name: document[name] for name in _ALWAYS} if is_large else document


def system_document(system: LeadingSystem) -> dict[str, Any]:
    """Return leading system messages in the form that states store."""
    messages = [{**message_document(one), "ordinal": one.ordinal, "entry": one.entry} for one in system.messages]
    return {
        "messages": storable(messages),
        "through": system.through,
        "rewound": [list(one) for one in system.rewound],
        "counter": to_stored(system.counter),
    }


def _system_from(document: Mapping[str, Any]) -> LeadingSystem:
    messages = (
        message_from(one, stored_number(one["ordinal"]), stored_text(one["entry"]))
        for one in stored_list(document["messages"])
    )
    ranges = (
        (stored_number(low), stored_number(high)) for low, high in map(stored_list, stored_list(document["rewound"]))
    )
    return LeadingSystem(
        tuple(messages), stored_number(document["through"]), tuple(ranges), from_stored(document["counter"])
    )

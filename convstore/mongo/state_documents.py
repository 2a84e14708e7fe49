"""Convert the state of a conversation to its document and back; sends no command."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import bson

from convstore.log.entry import Entry
from convstore.log.rows import rows_of
from convstore.log.state import LeadingSystem, Move, NamedMessage, State, ViewRecord, system_of
from convstore.log.summary import SummaryRecord
from convstore.messages.encoding import DIGEST_BYTES
from convstore.mongo.bson_values import (
    from_stored,
    reading,
    storable,
    stored_bytes,
    stored_list,
    stored_number,
    stored_text,
    to_stored,
    utc,
)
from convstore.mongo.documents import message_document, message_from
from convstore.mongo.keys import entry_id, state_id
from convstore.mongo.summaries import summary_document, summary_from
from convstore.mongo.versions import stamped

_SUMMARY_BYTES = 32_000
"""Size above which a state has its summary without the text, which is in ``summaries``."""


def new_state(conversation: str, entry: Entry) -> dict[str, Any]:
    """Return the document of the state that is inserted with the first entry of a log."""
    key = entry_id(conversation, entry.number)
    stored = replace(
        entry, messages=tuple(replace(message, entry=key) for message in entry.messages)
    )
    system = system_of(rows_of([stored]), entry.totals.counter)
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
        "aside": list(state.aside),
        "versions": state.versions,
        "views": {key: record_document(key, record) for key, record in state.views.items()},
        "moved": state.moves,
        "system": system_document(state.system, state.conversation) if state.system else None,
        "changes": [list(change) for change in state.changes],
    }
    return stamped(document | {name: value for name, value in optional.items() if value}, "state")


def state_from(document: Mapping[str, Any], summary: SummaryRecord | None) -> State:
    """Return the state in a document, given its current summary; raise a CorruptDocumentError if it is damaged."""
    with reading(document):
        conversation = stored_text(document["conversation"])
        if document["_id"] != state_id(conversation):
            raise ValueError("the key does not match the conversation")
        newest = stored_text(document.get("newest", ""))
        versions = stored_number(document.get("versions", 0))
        if bool(newest) != bool(versions):
            raise ValueError("its newest summary and its number of summaries do not agree")
        return State(
            conversation,
            utc(document["at"]),
            revision=stored_number(document["revision"]),
            summary=summary,
            newest=newest,
            aside=tuple(map(stored_text, stored_list(document.get("aside", [])))),
            versions=versions,
            failures=stored_number(document.get("failures", 0)),
            wait_until=utc(wait) if (wait := document.get("wait_until")) is not None else None,
            views=views_in(document),
            moves=stored_number(document.get("moved", 0)),
            system=system_in(document),
        )


def current_summary(document: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return token and digest of a state's current summary; empty if it has no summary.

    Raises:
        CorruptDocumentError: The state is damaged.
    """
    if (summary := document.get("summary")) is None:
        return "", b""
    with reading(document):
        return stored_text(summary["token"]), stored_bytes(summary["digest"])


def changes_in(document: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the changes of the current summary in a state: the log's last entry at that time, and the token.

    Raises:
        CorruptDocumentError: The state is damaged.
    """
    with reading(document):
        pairs = [stored_list(change) for change in stored_list(document.get("changes", ()))]
        return [(stored_number(entry), stored_text(token)) for entry, token in pairs]


def summary_in(document: Mapping[str, Any]) -> SummaryRecord | None:
    """Return the current summary in a state's document; None if its text is only in ``summaries``."""
    summary = document["summary"]
    return summary_from(summary, state=str(document.get("_id"))) if "text" in summary else None


def record_document(key: str, record: ViewRecord) -> dict[str, Any]:
    """Return the record of a policy's views in the form that states store, with a digest of record and key."""
    results = [[result.ordinal, *map(to_stored, result.name)] for result in record.results or ()]
    document = record._asdict() | {"results": results}
    return document | {"digest": _digest(key, document)}


def _digest(owner: str, document: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(owner.encode() + bson.encode(document)).digest()[:DIGEST_BYTES]


def record_from(key: str, value: Mapping[str, Any]) -> ViewRecord:
    """Return the record that `record_document` wrote; raise a ValueError if it is damaged."""
    document = dict(value)
    if document.pop("digest", None) != _digest(key, document):
        raise ValueError("a record of views does not match its digest")
    moved_at = utc(document.pop("moved_at"))
    results = tuple(
        NamedMessage(row[0], (from_stored(row[1]), from_stored(row[2])))
        for row in document.pop("results")
    )
    return ViewRecord(**document, moved_at=moved_at, results=results)


def views_in(document: Mapping[str, Any]) -> dict[str, ViewRecord]:
    """Return the records of views in a state's document. A damaged record is ignored, and `verify` reports it."""
    found: dict[str, ViewRecord] = {}
    stored = document.get("views")
    for key, value in stored.items() if isinstance(stored, Mapping) else ():
        with suppress(KeyError, TypeError, ValueError):
            found[key] = record_from(key, value)
    return found


def move_document(key: str, move: Move) -> dict[str, Any]:
    """Return a move of a record in the form that states store for past views."""
    return {
        "seen": move.seen,
        **record_document(_owner(key, move.seen), move.record._replace(results=None)),
    }


def _owner(key: str, seen: int) -> str:
    return f"{key} {seen}"  # the digest covers both


def moves_in(document: Mapping[str, Any], key: str) -> list[Move]:
    """Return the stored moves of a policy's record, oldest first; raise a CorruptDocumentError if they are damaged."""
    with reading(document):
        found = []
        for move in document.get("moves", {}).get(key, ()):
            record = dict(move)
            seen = stored_number(record.pop("seen"))
            found.append(Move(seen, record_from(_owner(key, seen), record)._replace(results=None)))
        return found


def copied_summary(summary: SummaryRecord | None) -> dict[str, Any] | None:
    """Return the copy of a summary for a state; a large one is without its text."""
    if summary is None:
        return None
    document = summary_document(summary)
    if len(bson.encode(document)) > _SUMMARY_BYTES:
        del document["text"]
    return document


def system_document(system: LeadingSystem, conversation: str) -> dict[str, Any]:
    """Return leading system messages in the form that states store, with a digest of them and the conversation."""
    # views do not read content digests
    messages = [replace(message, content_digest=b"") for message in system.messages]
    document = {
        "messages": storable(
            [message_document(message) | {"ordinal": message.ordinal} for message in messages]
        ),
        "through": system.through,
        "rewound": [list(gap) for gap in system.gaps],
        "counter": to_stored(system.counter),
    }
    return document | {"digest": _digest(conversation, document)}


def system_in(state: Mapping[str, Any]) -> LeadingSystem | None:
    """Return the leading system messages in a state's document; None if they are missing or damaged there."""
    try:
        document = dict(state["system"])
        key = str(state["_id"])
        if document.pop("digest") != _digest(stored_text(state["conversation"]), document):
            return None
        messages = tuple(
            message_from(message, message["ordinal"], key, 0) for message in document["messages"]
        )
        gaps = tuple((low, high) for low, high in document["rewound"])
        return LeadingSystem(messages, document["through"], gaps, from_stored(document["counter"]))
    except (KeyError, TypeError, ValueError):
        return None

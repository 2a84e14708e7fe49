"""Reads conversations that the ``MongoStepStore`` of pydantic-ai-harness stored as snapshots of their history.

The newest snapshot of each conversation is read, with the messages that it refers to. The collections are not changed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from convstore.edges import collection_of
from convstore.integration import documents_of
from convstore.transfer.dicts import moment_of
from convstore.transfer.records import (
    DAMAGED,
    BadRecord,
    ConversationRecord,
    merged_fields,
    record_or_bad,
    where_of,
)
from convstore.values.log_records import RecordItem
from convstore.wire.pydantic_ai import read_pydantic_ai

_NEWEST = [("seq", -1)]


async def read_step_store(database: Any) -> AsyncGenerator[ConversationRecord | BadRecord, None]:
    """Yield the conversations of a database one at a time, from the newest complete snapshot of each.

    Runs without a conversation become conversations of their own; runs that another run started are left out. The
    fields of a record for its scope are those of its runs: ``conversation_id``, ``agent_name``, ``metadata.…``.

    Args:
        database: Of PyMongo's async client, Motor or mongomock-motor.

    Raises:
        InvalidInputError: `database` is not a database.
        StoreError: The server does not answer, or refuses a command.
    """
    snapshots = collection_of(database, "snapshots")
    newest: dict[str, dict[str, Any]] = {}
    runs_by_id: dict[str, set[str]] = {}
    query = {"parent_run_id": None}
    fields = {"run_id": 1, "conversation_id": 1, "state": 1}
    async for snapshot in documents_of(snapshots.find(query, fields).sort(_NEWEST)):
        id_ = str(snapshot.get("conversation_id") or snapshot.get("run_id") or snapshot["_id"])
        runs_by_id.setdefault(id_, set()).add(str(snapshot.get("run_id")))
        if newest.setdefault(id_, snapshot).get("state") == "interrupted" != snapshot.get("state"):
            newest[id_] = snapshot
    for id_ in sorted(newest):
        where = where_of("conversation", id_)
        yield await record_or_bad(
            where, _record(database, id_, newest[id_]["_id"], runs_by_id[id_], where)
        )


async def _record(
    database: Any, id_: str, snapshot_id: Any, run_ids: set[str], where: str
) -> ConversationRecord:
    found = documents_of(database["snapshots"].find({"_id": snapshot_id}))
    [snapshot] = [document async for document in found]
    runs: list[dict[str, Any]] = []
    for run_id in sorted(run_ids):
        runs += [
            document async for document in documents_of(database["runs"].find({"_id": run_id}))
        ]
    items: list[RecordItem] = []
    has_instructions = False
    for index, message in enumerate(await _history(database, snapshot["messages"]), 1):
        items += _items(message, f"message {index} of run {snapshot['run_id']}")
        has_instructions |= isinstance(message, Mapping) and bool(message.get("instructions"))
    notes = ["the instructions of its requests are left out"] if has_instructions else []
    if snapshot.get("state") == "interrupted":
        notes.append("its newest snapshot was interrupted")
    return ConversationRecord(
        id=id_,
        messages=items,
        where=where,
        fields=merged_fields(*runs),
        notes=notes,
    )


async def _history(database: Any, stored: str) -> list[Any]:
    """Return the messages of a snapshot, which has them in a list, or refers to messages that are stored once."""
    value = json.loads(stored)
    if not isinstance(value, dict):
        return list(value)
    texts: dict[str, str] = {}
    for key in set(value["message_refs"]):
        async for document in documents_of(database["snapshot_messages"].find({"_id": key})):
            texts[key] = document["message"]
    return [json.loads(texts[key]) if key in texts else None for key in value["message_refs"]]


def _items(message: Any, where: str) -> list[RecordItem]:
    try:
        return [
            RecordItem(
                message=made,
                where=where,
                at=moment_of(next(iter(parts), message)) or moment_of(message),
            )
            for made, parts in read_pydantic_ai(message, whole=True)
        ]
    except DAMAGED as error:
        return [
            RecordItem(
                message=None, problem=f"not a message of Pydantic AI: {error!r}", where=where
            )
        ]

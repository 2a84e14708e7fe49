"""Reads the threads of a LangGraph checkpointer: every message that their checkpoints have, in order, each once.

A state only has the messages that the graph kept. So all checkpoints on the path of a thread are read, the chain of
parents of its newest checkpoint, through LangGraph's interface of checkpointers. The checkpoints are not changed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, TypeAlias

from convstore.exceptions import InvalidInputError, StoreError
from convstore.transfer.checkpoint_path import CheckpointPath
from convstore.transfer.jobs import each_of, location_of
from convstore.transfer.prepare import hidden_ranges
from convstore.transfer.records import (
    BadRecord,
    ConversationRecord,
    where_of,
)
from convstore.transfer.savers import other_namespaces_of, thread_ids_of
from convstore.transfer.states import StateHistory, TrackedMessage
from convstore.values.log_records import RecordItem
from convstore.values.plain import counted
from convstore.values.scope import check_one_of

Removed: TypeAlias = Literal["rewind", "leave out"]


async def read_checkpoints(
    saver: Any,
    thread_ids: Iterable[str] | AsyncIterable[str] | None = None,
    *,
    removed: Removed = "rewind",
    channel: str = "messages",
) -> AsyncGenerator[ConversationRecord | BadRecord, None]:
    """Yield the threads of a checkpointer one at a time; the checkpoints of a thread are read in pages.

    A message is imported at the position where it entered the state, with its last content. A message without an id
    gets one that is derived from the thread, the step and its index. Writes of an interrupted step are part of the
    thread. The notes of a record count removed and replaced messages, and the parts that are left out: summaries, other
    branches and the namespaces of subgraphs. Checkpoints of convstore's middleware or nodes are not read, because the
    log has their messages.

    The fields of a record for its scope are ``thread_id`` and ``metadata.…``, the metadata that is equal in all its
    checkpoints; see `ConversationRecord.fields`.

    Args:
        saver: A checkpointer, such as ``MongoDBSaver``, ``AsyncPostgresSaver`` or ``SqliteSaver``.
        thread_ids: The threads; by default all threads of one of LangGraph's savers for MongoDB, Postgres or SQLite.
        removed: The effect on messages that were removed from the state: "rewind" imports and rewinds them, so that
            views do not show them; "leave out" does not import them.
        channel: Key of the messages in the state.

    Raises:
        InvalidInputError: An argument is invalid.
        StoreError: The MongoDB server does not answer, or refuses a command.
    """
    check_one_of(removed, "rewind", "leave out", name="removed")
    if isinstance(thread_ids, str):
        raise InvalidInputError("thread_ids must be a list of ids, not one str")
    if not (hasattr(saver, "alist") and hasattr(saver, "aget_tuple")):
        raise InvalidInputError(
            f"saver must be a checkpointer of LangGraph, not {type(saver).__name__}"
        )
    found = await thread_ids_of(saver) if thread_ids is None else thread_ids
    async with aclosing(each_of(found)) as ids:
        async for thread_id in ids:
            yield await _record_or_bad(saver, thread_id, removed, channel)


def read_thread_ids(path: Path | str) -> list[str]:
    """Return the ids of a file with one on each line, each once; empty lines are skipped.

    Raises:
        InvalidInputError: The file cannot be read, or is not UTF-8.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidInputError(f"{Path(path).name} cannot be read: {reason}") from error
    return list(dict.fromkeys(line for line in text.splitlines() if line.strip()))


async def _record_or_bad(
    saver: Any, thread_id: str, removed: Removed, channel: str
) -> ConversationRecord | BadRecord:
    where = where_of("thread", thread_id)
    try:
        return await _record(saver, thread_id, where, removed, channel)
    except InvalidInputError as error:
        return BadRecord(where, str(error))
    except StoreError:
        raise
    # savers may raise any error; the next thread may be readable
    except Exception as error:  # noqa: BLE001
        reason = f"its checkpoints cannot be read: {type(error).__name__} ({location_of(error)})"
        return BadRecord(where, reason)


async def _record(
    saver: Any, thread_id: str, where: str, removed: Removed, channel: str
) -> ConversationRecord:
    if not isinstance(thread_id, str) or not thread_id:
        raise InvalidInputError(f"a thread id must be a non-empty str, not {thread_id!r:.80}")
    path = CheckpointPath(saver, thread_id, channel)
    history = StateHistory(channel)
    async for checkpoint, state in path.states():
        history.add(checkpoint, state)
    _check_found(history)
    notes = [*_notes_of(path), *_notes(history, removed)]
    if namespaces := await other_namespaces_of(saver, thread_id):
        notes.append(f"left out: {counted(namespaces, 'other namespace')}, of subgraphs")
    messages = history.messages()
    if removed == "leave out":
        messages = [message for message in messages if message.is_active]
    return ConversationRecord(
        id=thread_id,
        messages=[_item(message) for message in messages],
        where=where,
        fields={"thread_id": thread_id, "metadata": history.metadata},
        rewound=hidden_ranges(message.is_active for message in messages),
        notes=notes,
    )


def _check_found(history: StateHistory) -> None:
    """Raise an InvalidInputError if a thread has no checkpoint, or if its state lacks the channel of the messages."""
    if not history.checkpoints:
        raise InvalidInputError(
            "the checkpointer has no checkpoint of this thread in its root namespace"
        )
    if not history.has_channel:
        raise InvalidInputError(
            f"its state has no {history.channel!r}; name the key of the messages in the state "
            "(channel)"
        )


def _notes(history: StateHistory, removed: Removed) -> list[str]:
    """Return notes that count removed and replaced messages, and the parts that are left out."""
    messages = history.messages()
    notes: list[str] = []
    if rewound := sum(not message.is_active for message in messages):
        outcome = {"rewind": "rewound", "leave out": "left out"}[removed]
        notes.append(
            f"{outcome}: {counted(rewound, 'message')} that the graph removed from its state"
        )
    if replaced := sum(message.is_replaced for message in messages):
        notes.append(
            f"replaced in the state: {counted(replaced, 'message')}; the last content is imported"
        )
    if summaries := len(history.summaries):
        notes.append(
            f"left out: {counted(summaries, 'summary', 'summaries')} of the graph; "
            "compact makes new ones"
        )
    if history.is_taken_over:
        notes.append(
            "left out: the newer checkpoints, because convstore has kept the messages of this "
            "thread since then"
        )
    return notes


def _notes_of(path: CheckpointPath) -> list[str]:
    notes: list[str] = []
    if path.branches:
        notes.append(f"left out: {counted(path.branches, 'other branch', 'other branches')}")
    if path.is_cut:
        notes.append("its first checkpoints were deleted; messages that only they had are lost")
    return notes


def _item(tracked: TrackedMessage) -> RecordItem:
    where = f"checkpoint {tracked.checkpoint}, message {tracked.index + 1}"
    return RecordItem(
        message=tracked.message,
        key=f"{tracked.step}:{tracked.index}",
        where=where,
        at=tracked.at,
    )

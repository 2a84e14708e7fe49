"""Finds what another import of a record does not bring into a conversation that an earlier import made.

Messages after the last known one are appended, and so are items. The rest of the log never changes, and titles,
metadata and annotations of a conversation stay. All differences are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from convstore import Conversation
from convstore.integration import ConversationLog
from convstore.transfer.prepare import Batch, ReadyMessage
from convstore.transfer.records import ConversationRecord
from convstore.values.log_records import LogChange, PlacedItem, StoredId
from convstore.values.plain import counted
from convstore.values.ranges import has, joined


async def missing_items(log: ConversationLog, record: ConversationRecord) -> list[PlacedItem]:
    """Return the items of a record that the log lacks."""
    if not record.items:
        return []
    stored = {item.id async for item in log.items()}
    return [placed for placed in record.items if placed.item.id not in stored]


async def items_at_end(
    log: ConversationLog, record: ConversationRecord, batch: Batch
) -> list[PlacedItem]:
    """Return the items that the log lacks after its last message, which is the last one of a batch."""
    following = {placed.item.id for placed in batch.items if placed.position == len(batch.messages)}
    return [placed for placed in await missing_items(log, record) if placed.item.id in following]


async def rewound_ids(
    log: ConversationLog, known: Sequence[ReadyMessage], stored: Mapping[str, StoredId]
) -> set[str]:
    """Return the ids of the known messages that are rewound in the log."""
    end = await log.snapshot()
    ranges = [(first, last) for first, last, *_ in await log.rewound(end)] if end else []
    return {message.id for message in known if has(ranges, stored[message.id].ordinal)}


async def differences(
    chat: Conversation,
    log: ConversationLog,
    record: ConversationRecord,
    known: Sequence[ReadyMessage],
    stored: Mapping[str, StoredId],
) -> list[str]:
    """Return what differs from the record after it was imported again, in words.

    Args:
        chat: The conversation.
        log: Its log.
        record: The record.
        known: Messages of the record that were stored before.
        stored: Where they are in the log.
    """
    found = list[str]()
    if items := await missing_items(log, record):
        found.append(
            f"not imported: {counted(len(items), 'item')} between messages that were stored before"
        )
    found += await _rewinds(log, record, known, stored)
    found += await _changes(log, record)
    kept = await _kept_values(chat, record)
    annotations = await _kept_annotations(chat, known)
    if annotations:
        kept.append(counted(annotations, "annotation"))
    if kept:
        found.append(f"kept as they were, the source has others: {', '.join(kept)}")
    return found


async def _rewinds(
    log: ConversationLog,
    record: ConversationRecord,
    known: Sequence[ReadyMessage],
    stored: Mapping[str, StoredId],
) -> list[str]:
    """Compare which messages are rewound."""
    here = await rewound_ids(log, known, stored)
    rewound = joined(record.rewound)
    there = {message.id for message in known if has(rewound, message.position)}
    found = list[str]()
    if restored := len(here - there):
        found.append(
            f"still rewound: {counted(restored, 'message')} that the source shows; see undo_rewind"
        )
    if hidden := len(there - here):
        found.append(
            f"still shown: {counted(hidden, 'message')} that the source removed or rewound since"
        )
    return found


async def _changes(log: ConversationLog, record: ConversationRecord) -> list[str]:
    """Compare which changes of turns and variants were made."""
    end = await log.snapshot() if record.changes else None
    if end is None:
        return []
    made = Counter(map(_of_turn, await log.changes(end)))
    missing = Counter(_of_turn(change) for change in record.changes if change.turn) - made
    if not missing:
        return []
    return [f"not made: {counted(missing.total(), 'change')} of turns since the last import"]


def _of_turn(change: LogChange) -> tuple[str, str, str, str]:
    return change.kind, change.turn, change.variant, change.call


async def _kept_values(chat: Conversation, record: ConversationRecord) -> list[str]:
    """Return the names of the conversation's values that differ from the record's."""
    kept = list[str]()
    if record.title is not None or record.metadata:
        info = await chat.info()
        if record.title not in (None, info.title):
            kept.append("title")
        if record.metadata and record.metadata != info.metadata:
            kept.append("metadata")
    if record.state and record.state != (await chat.state.get()).values:
        kept.append("state")
    return kept


async def _kept_annotations(chat: Conversation, known: Sequence[ReadyMessage]) -> int:
    """Return the number of annotations of a record that messages have with other values."""
    annotated = {
        message.id: message.item.annotations for message in known if message.item.annotations
    }
    stored = await chat.annotations(list(annotated)) if annotated else {}
    return sum(
        stored.get(id_, {}).get(name) != value
        for id_, values in annotated.items()
        for name, value in values.items()
    )

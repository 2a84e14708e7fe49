"""Finds the differences between a record and its conversation after an import.

An import appends messages and items after the last known message. It cannot change the rest of the log, and keeps
titles, metadata and annotations of a conversation. A change may have no effect at its position, or contradict the
record's rewound ranges. All differences are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from convstore.integration import ConversationLog
from convstore.transfer.prepare import ReadyMessage
from convstore.transfer.records import ConversationRecord
from convstore.values.log_records import LogChange, StoredId
from convstore.values.plain import counted
from convstore.values.ranges import has, merge_ranges


async def rewound_ids(
    log: ConversationLog, known: Sequence[ReadyMessage], stored: Mapping[str, StoredId]
) -> set[str]:
    """Return the ids of the known messages that are rewound in the log."""
    end = await log.snapshot()
    ranges = await log.rewound(end) if end else ()
    return {message.id for message in known if has(ranges, stored[message.id].ordinal)}


async def differences(
    log: ConversationLog,
    record: ConversationRecord,
    known: Sequence[ReadyMessage],
    stored: Mapping[str, StoredId],
) -> list[str]:
    """Return the rewinds and changes of a record that the log lacks after an import, in words.

    `known` are the stored messages of the record, and `stored` their positions in the log.
    """
    return [*await _rewinds(log, record, known, stored), *await _changes(log, record)]


async def _rewinds(
    log: ConversationLog,
    record: ConversationRecord,
    known: Sequence[ReadyMessage],
    stored: Mapping[str, StoredId],
) -> list[str]:
    """Compare the rewound messages of the log with those of the record."""
    in_log = await rewound_ids(log, known, stored)
    rewound = merge_ranges(record.rewound)
    in_source = {message.id for message in known if has(rewound, message.position)}
    found: list[str] = []
    if restored := len(in_log - in_source):
        found.append(
            f"still rewound: {counted(restored, 'message')} that the source shows; see undo_rewind"
        )
    if hidden := len(in_source - in_log):
        found.append(
            f"still shown: {counted(hidden, 'message')} that the source removed or rewound since"
        )
    return found


async def _changes(log: ConversationLog, record: ConversationRecord) -> list[str]:
    """Compare the changes of turns and variants in the log with those of the record."""
    end = await log.snapshot() if record.changes else None
    if end is None:
        return []
    made = Counter(map(_of_turn, await log.changes(end)))
    missing = Counter(_of_turn(change) for change in record.changes if change.turn) - made
    if not missing:
        return []
    return [f"not made: {counted(missing.total(), 'change')} of turns"]


def _of_turn(change: LogChange) -> tuple[str, str, str, str]:
    return change.kind, change.turn, change.variant, change.call

"""Finds what an import of a record did not bring into a conversation, perhaps one that an earlier import made.

Messages after the last known one are appended, and so are items. The rest of the log never changes, and titles,
metadata and annotations of a conversation stay. A change may do nothing where it stands, and may contradict what the
record says of rewound messages. All differences are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from convstore.integration import ConversationLog
from convstore.transfer.prepare import ReadyMessage
from convstore.transfer.records import ConversationRecord
from convstore.values.log_records import LogChange, StoredId
from convstore.values.plain import counted
from convstore.values.ranges import has, joined


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
    """Return in words which rewinds and changes of a record the log lacks after an import.

    `known` are messages of the record that are stored, and `stored` says where they are in the log.
    """
    return [*await _rewinds(log, record, known, stored), *await _changes(log, record)]


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
    return [f"not made: {counted(missing.total(), 'change')} of turns"]


def _of_turn(change: LogChange) -> tuple[str, str, str, str]:
    return change.kind, change.turn, change.variant, change.call

"""Read one turn as the log has it."""

from __future__ import annotations

from contextlib import aclosing

from convstore.exceptions import InvalidInputError, UnknownMessageError
from convstore.log.entry import Entry, Totals
from convstore.log.turn_record import TurnRecord
from convstore.messages.filing import Filing
from convstore.readback.turns import Turns
from convstore.runtime.active_log import active_questions
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.scope import Scope


class TurnRecordReader:
    """Reads the records of turns that are shown; `Variants` reads the others."""

    def __init__(self, reader: LogReader, turns: Turns) -> None:
        self._reader, self._turns = reader, turns

    async def newest(self, scope: Scope) -> TurnRecord | None:
        """Return the newest turn; None if the log has none, because all of it was rewound, for example."""
        for turn in await self._turns.outline(scope, before=None, limit=1):
            if turn.number:
                return (await self.read(scope, turn.turn_id))[0]
        return None

    async def read(self, scope: Scope, turn_id: str) -> tuple[TurnRecord, Totals]:
        """Return a turn as the log has it, and the end of the log.

        Raises:
            UnknownMessageError: The log does not have its question, or it was rewound.
        """
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, [turn_id]) if cached else {}
        if cached is None or not rows:
            raise UnknownMessageError(turn_id, begins_turn=True)
        row, log = rows[turn_id], await self._reader.snapshot(cached)
        is_asked = row.message.begins_turn
        if not is_asked and (row.message.type != "human" or await self._turns.get(scope, turn_id) is None):
            raise InvalidInputError(f"message {turn_id!r} is no question, so no turn begins with it")
        if not log.active.has(row.message.ordinal):
            raise UnknownMessageError(turn_id, begins_turn=True)
        record = TurnRecord(turn_id, filing=Filing(turn_id, (call.result for call in row.entry.totals.calls)))
        async with aclosing(self._reader.batches(log, start=row.entry.number)) as batches:
            async for entries in batches:
                for entry in entries:
                    await self._fold(record, log, entry, first=row.message.ordinal)
                if not record.is_newest:
                    break
        if record.is_newest and not log.tail.is_ended:  # the end was rewound
            record.mark = ""
        if record.answer is None and not record.is_newest and (turn := await self._turns.get(scope, turn_id)):
            record.add(turn.messages)  # a run that went on after the next question may have answered
        return record, log.tail

    async def _fold(self, record: TurnRecord, log: Snapshot, entry: Entry, *, first: int) -> None:
        """Add what an entry has of a turn, up to the question of the next one."""
        if not record.is_newest:
            return
        messages = await self._reader.decode_all(log.cached, [item for item in entry.messages if item.ordinal >= first])
        own = messages[: record.end_of(messages)]
        record.others |= (await active_questions(self._reader, log, record.unknown(own))).keys()
        ordinals = {item.id: item.ordinal for item in entry.messages}
        event = None if entry.branch else entry.event  # a variant that was not active has events of its own
        record.add(own, event, ordinals)
        record.is_newest = len(own) == len(messages)

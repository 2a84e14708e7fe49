"""Read one turn as the log has it."""

from __future__ import annotations

from convstore.exceptions import InvalidInputError, UnknownMessageError
from convstore.log.entry import Totals
from convstore.log.turn_record import TurnRecord
from convstore.readback.turns import Turns
from convstore.runtime.log_reader import LogReader
from convstore.values.scope import Scope


class TurnRecordReader:
    """Reads the records of turns that are shown; `Variants` reads the others."""

    def __init__(self, reader: LogReader, turns: Turns) -> None:
        self._reader = reader
        self._turns = turns

    async def newest(self, scope: Scope) -> TurnRecord | None:
        """Return the newest turn; None without turns, for example after all of them were rewound."""
        for turn in await self._turns.outline(scope, before=None, limit=1):
            if turn.number:
                return (await self.read(scope, turn.turn_id))[0]
        return None

    async def read(self, scope: Scope, turn_id: str) -> tuple[TurnRecord, Totals]:
        """Return a turn as the log has it, and the end of the log.

        Raises:
            UnknownMessageError: The log does not have its question, or it was rewound.
        """
        cached, row = await self._reader.find_message(scope, turn_id, begins_turn=True)
        log = await self._reader.snapshot(cached)
        if not row.message.begins_turn:
            raise InvalidInputError(
                f"message {turn_id!r} is no question, so no turn begins with it"
            )
        if not log.active.has(row.message.ordinal):
            raise UnknownMessageError(turn_id, begins_turn=True)
        stored = await self._turns.stored(log, row.message.ordinal, start=row.entry.number)
        if stored is None:
            raise UnknownMessageError(turn_id, begins_turn=True)
        messages = await self._reader.decode_all(cached, stored.logged.messages)
        return TurnRecord.read(stored.logged, messages), log.tail

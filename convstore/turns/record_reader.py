"""Read one turn as the log has it."""

from __future__ import annotations

from typing import NamedTuple

from convstore.exceptions import UnknownMessageError
from convstore.log.branch import Branch
from convstore.log.entry import Totals
from convstore.log.turn_record import TurnRecord
from convstore.readback.turns import Turns
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.scope import Scope


class FoundTurn(NamedTuple):
    """A turn, or a variant of it, as the log has it.

    Attributes:
        record: The turn.
        tail: The end of the log.
        branch: The branch of a variant, from which it is continued; None for the turn itself.
        was_shown: The variant has become active at some time.
        is_new: The variant was begun by this read, so it has no draft.
    """

    record: TurnRecord
    tail: Totals
    branch: Branch | None = None
    was_shown: bool = False
    is_new: bool = False

    @property
    def hidden(self) -> Branch | None:
        """The branch of a variant that views do not show yet; else None."""
        return None if self.was_shown else self.branch

    @property
    def variant(self) -> str:
        """Id of the variant; "" for the turn itself."""
        return self.branch.event.variant if self.branch else ""

    def fits(self, log: Snapshot) -> bool:
        """Return True if the messages before it are still active, so that it may become active."""
        return self.branch is None or self.branch.fits(log.active)


class TurnRecordReader:
    """Reads the records of active turns; `Variants` reads variants that are hidden."""

    def __init__(self, reader: LogReader, turns: Turns) -> None:
        self._reader = reader
        self._turns = turns

    async def newest(self, scope: Scope) -> TurnRecord | None:
        """Return the newest turn; None without turns, for example after all of them were rewound."""
        for turn in await self._turns.outline(scope, before=None, limit=1):
            if turn.number:
                return (await self.read(scope, turn.turn_id)).record
        return None

    async def read(self, scope: Scope, turn_id: str) -> FoundTurn:
        """Return an active turn.

        Raises:
            UnknownMessageError: The log does not have its question, or it was rewound.
        """
        cached, row = await self._reader.find_question(scope, turn_id)
        log = await self._reader.snapshot(cached)
        if not log.active.has(row.message.ordinal):
            raise UnknownMessageError(turn_id, begins_turn=True)
        stored = await self._turns.stored(log, row.message.ordinal, start=row.entry.number)
        if stored is None:
            raise UnknownMessageError(turn_id, begins_turn=True)
        messages = await self._reader.decode_all(cached, stored.logged.messages)
        return FoundTurn(TurnRecord.read(stored.logged, messages), log.tail)

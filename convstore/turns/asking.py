"""Append the question of a turn."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage

from convstore.append.batch import Written
from convstore.append.condition import Condition, TailMoved
from convstore.append.writer import Writer
from convstore.log.entry import Totals
from convstore.log.turn_record import TurnRecord
from convstore.messages.turn_calls import result_of
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.retrying import until_written
from convstore.turns.naming import Naming
from convstore.turns.record_reader import TurnRecordReader
from convstore.values.scope import Scope

_NOT_DECIDED = "Not decided: the user went on with another message."


class Questions:
    """Appends questions to all conversations of a store."""

    def __init__(self, reader: LogReader, records: TurnRecordReader, writer: Writer) -> None:
        self._reader = reader
        self._records = records
        self._writer = writer

    async def ask(self, scope: Scope, turn_id: str, question: Sequence[BaseMessage]) -> Written:
        """Append a question; in the same entry, the calls that still wait for a person get results that say so."""

        async def write() -> Written:
            cached = await self._reader.find(scope)
            tail = (cached.tail or await self._reader.tail(cached)) if cached else Totals()
            if cached and tail.calls and not tail.is_ended:
                before = await self._waiting(cached, turn_id)
                if before is not None:
                    return await self._close_and_ask(scope, before, tail, question)
            return await self._writer.append(scope, question, condition=Condition(tail))

        return await until_written(write, TailMoved)

    async def _waiting(self, cached: CachedConversation, turn_id: str) -> TurnRecord | None:
        """Return the last turn if calls of it wait for a person; None if none does, or the log has the new turn."""
        if await self._reader.messages_by_id(cached, [turn_id]):
            return None
        newest = await self._records.newest(cached.scope)
        return newest if newest and newest.undecided else None

    async def _close_and_ask(
        self, scope: Scope, before: TurnRecord, tail: Totals, question: Sequence[BaseMessage]
    ) -> Written:
        results = [result_of(call, _NOT_DECIDED, is_error=True) for call in before.undecided]

        async def write(named: list[BaseMessage], known: frozenset[str]) -> Written:
            condition = Condition(tail, known=known | {str(message.id) for message in question})
            return await self._writer.append(scope, [*named, *question], condition=condition)

        return await Naming(before, before.turn_id, tail.messages + 1).append(results, write)

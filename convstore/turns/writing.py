"""Write to a turn as long as its lease is held, and renew the lease.

A worker appends only directly after what it knows of the log: whoever takes a lapsed lease over appends an entry first,
so a worker that was silent too long can write nothing any more. What other writers append meanwhile is read and judged,
and the append is repeated after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from langchain_core.messages import AIMessage, BaseMessage

from convstore.append.batch import Written
from convstore.append.condition import Condition, TailMoved
from convstore.exceptions import (
    SchemaVersionError,
    StoreError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.mongo.turn_leases import TurnLeases
from convstore.runtime.log_reader import LogReader
from convstore.runtime.retrying import until_written
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.naming import Naming
from convstore.turns.record_reader import TurnRecordReader
from convstore.turns.variants import Variants
from convstore.values.models import Receipt
from convstore.values.turns import Pause

_Result = TypeVar("_Result")

LEASE_SECONDS = 30.0
"""A lease that is not renewed lapses after this time."""

RENEW_SECONDS = 10.0
CHECK_SECONDS = 1.5
"""How often the holder renews its lease, and how often it looks whether somebody asked it to stop."""

LEASE = timedelta(seconds=LEASE_SECONDS)


class TurnWriter:
    """Writes to the turns that workers of this process hold, in all conversations of a store.

    Attributes:
        lease: How long a lease lasts without a renewal.
    """

    def __init__(
        self, reader: LogReader, leases: TurnLeases, records: TurnRecordReader, variants: Variants
    ) -> None:
        self._reader = reader
        self._leases = leases
        self._records = records
        self._variants = variants
        self._writer = variants.writer
        self.lease = LEASE

    async def append(self, held: HeldTurn, addition: Addition) -> Receipt:
        """Append messages of a turn, each under an id of its own; see `TurnSession.append`.

        Raises:
            TurnLostError: Another worker has the lease, or this one gave it back.
            TurnConflictError: A later turn has begun.
            TurnClosedError: The turn was finished or stopped, and the log does not have all of the messages.
        """
        receipt = (await self._while_held(held, lambda: self._add(held, addition))).receipt
        if not held.record.is_asked:  # the log had the question already, or does not have it
            await self.read_again(held)
        return receipt

    async def read_again(self, held: HeldTurn) -> None:
        """Read what the log has of a turn, for example after a rewind; a variant that is hidden stays as it is."""
        async with held.lock:
            if held.branch is None:
                await self._read(held)

    async def _read(self, held: HeldTurn) -> None:
        """Read the turn and the end of the log; of a turn whose question is not in the log, the end."""
        try:
            held.know(await self._records.read(held.scope, held.record.turn_id))
        except UnknownMessageError:
            if held.record.is_asked:
                raise
            cached = await self._reader.find(held.scope)
            if cached is not None:
                held.tail = await self._reader.tail(cached)

    async def record(self, held: HeldTurn, judge: Callable[[], Addition | None]) -> None:
        """Append an event of a turn, perhaps with messages.

        `judge` is called after everything up to the end of the log was read, and again if the log has moved. It returns
        None if there is nothing to record any more. Raises as `append` does.
        """

        async def write() -> None:
            if (addition := judge()) is not None:
                await self._add(held, addition)

        await self._while_held(held, write)

    async def _add(self, held: HeldTurn, addition: Addition) -> Written:
        """Write an addition directly after the tail that a turn knows, under ids that the log has for nothing else."""

        async def write(messages: list[BaseMessage], known: frozenset[str]) -> Written:
            try:
                return await self._write(held, addition._replace(messages=messages), known)
            except (asyncio.CancelledError, StoreError):
                held.unsure.update(str(message.id) for message in messages)
                raise

        naming = Naming(
            held.record,
            held.key,
            held.tail.messages + 1,
            nameless=addition.nameless,
            unsure=held.unsure,
            by_id=held.refusal_of(addition) is not None or addition.of_state,
            of_state=addition.of_state,
        )
        return await naming.append(addition.messages, write)

    async def _write(self, held: HeldTurn, addition: Addition, known: frozenset[str]) -> Written:
        """Write an addition whose messages have their ids, and take it over."""
        messages = addition.messages
        event = addition.event
        branch = held.branch
        refusal = held.refusal_of(addition)
        if branch:
            branch = branch._replace(has_something=_has_something(held, addition))
            event = branch.records(event)
        written = await self._writer.append(
            held.scope,
            messages,
            condition=Condition(held.tail, branch=branch, known=known, refusal=refusal),
            facts=EVENT.put(event),
            options=replace(addition.options, question=held.record.turn_id),
        )
        held.tail = written.totals
        if written.entry:
            event = EVENT.of(written.entry) if addition.event else None
            held.add(written.entry, messages, event)
        if branch and written.entry:
            is_shown = BRANCH.of(written.entry) is None
            held.branch = None if is_shown else branch.after(written.entry)
            if is_shown:
                await self._variants.reselect(held.scope, written.totals)
        return written

    async def reserve(self, held: HeldTurn, number: int) -> range:
        """Reserve source ids for a result of a turn; raises as `append` does."""

        async def write() -> range:
            if held.refusal:
                raise held.refusal
            numbers, held.tail = await self._writer.reserve(held.scope, number, after=held.tail)
            return numbers

        return await self._while_held(held, write)

    async def _while_held(self, held: HeldTurn, write: Callable[[], Awaitable[_Result]]) -> _Result:
        """Write after the tail that a turn knows; if others appended meanwhile, read that and write again."""

        async def write_once() -> _Result:
            if not held.refusal:  # else nothing new is written
                held.check()
                await self._check_schema(held)
            try:
                return await write()
            except TailMoved:
                await self._catch_up(held)
                raise
            except (asyncio.CancelledError, StoreError):
                held.is_unsure = True
                raise

        async with held.lock:
            return await until_written(write_once, TailMoved)

    async def _catch_up(self, held: HeldTurn) -> None:
        """Read what others appended, unless they took the turn over."""
        await self.renew(held)
        if held.is_lost and held.refusal:
            raise held.refusal
        held.check()
        if held.branch:
            # an append of unknown outcome may have finished it
            held.know(await self._variants.again(held.scope, held.branch))
            return
        await self._read(held)
        if held.record.fold.is_superseded and not held.may_be_superseded:
            raise TurnConflictError(held.record.turn_id, is_newest=False)

    async def pause(self, held: HeldTurn, pauses: Mapping[str, Pause]) -> None:
        """Record that calls of a turn wait for a person, by the ids of their results.

        Calls that are recorded already are skipped. A repeated request asks again, under another interrupt; the newest
        is the one that the agent can be resumed from.
        """
        for result_id, pause in pauses.items():
            await self.record(held, partial(_wait, held, result_id, pause))

    async def renew(self, held: HeldTurn) -> None:
        """Renew the lease, and learn whether to stop; SchemaVersionError if a migration excludes this process."""
        await self._check_schema(held)
        held.follow(await self._leases.renew(held.conversation, owner=held.owner, time=self.lease))

    async def look(self, held: HeldTurn) -> bool:
        """Learn whether to stop; return False if another worker has the lease. Raises as `renew` does."""
        await self._check_schema(held)
        held.follow(await self._leases.find(held.conversation, owner=held.owner))
        return not held.is_lost

    async def _check_schema(self, held: HeldTurn) -> None:
        """End a turn in a process that a migration excludes: it may last for hours."""
        try:
            await self._reader.schema.check()
        except SchemaVersionError as error:
            held.exclude(error)
            raise


def _wait(held: HeldTurn, result_id: str, pause: Pause) -> Addition | None:
    """Return the event that a call waits for a person; None if that is recorded, or the call was run."""
    fold = held.record.fold
    if not fold.is_unrun(result_id) or fold.waiting.get(result_id) == pause:
        return None
    return Addition(event=TurnEvent("wait", fold.turn_id, result_id, json.dumps(pause)))


def _has_something(held: HeldTurn, addition: Addition) -> bool:
    """Return True if a variant has something to show: more than its question, or if it is stopped, a text."""
    said = [*held.record.messages, *addition.messages]
    if addition.event and addition.event.kind == "stop":
        return any(isinstance(message, AIMessage) and message.text for message in said)
    return len(said) > 1

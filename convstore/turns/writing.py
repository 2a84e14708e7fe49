"""Write to a turn as long as its lease is held, and renew the lease.

A worker appends only directly after what it knows of the log: whoever takes a lapsed lease over appends an entry first,
so a worker that was silent too long can write nothing any more. What other writers append meanwhile is read and judged,
and the append is repeated after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from langchain_core.messages import BaseMessage

from convstore.append.batch import Written
from convstore.append.condition import ANYWHERE, Condition, IdsTaken, TailMoved
from convstore.exceptions import (
    SchemaVersionError,
    StoreError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.facts.event import EVENT
from convstore.log.turn_record import paused
from convstore.mongo.turn_leases import TurnLeases
from convstore.runtime.log_reader import LogReader
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.naming import under_own_ids
from convstore.turns.record_reader import TurnRecordReader
from convstore.turns.retrying import until_written
from convstore.turns.variants import Variants
from convstore.values.models import Receipt
from convstore.values.scope import Scope
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
        return (await self._while_held(held, lambda: self._add(held, addition))).receipt

    async def append_unheld(self, scope: Scope, turn_id: str, addition: Addition) -> Receipt:
        """Append messages of a state to a turn that nobody holds, or that begins with them.

        One command, unless the log has ids of the messages already. Then what stands before the answer to the question
        is compared with the log, and the rest is appended as `append` does. If the log does not have the question, or
        it was rewound, the end of the log says which turn the messages belong to.
        """
        try:
            return await self._append_unheld(scope, turn_id, addition)
        except UnknownMessageError:
            return await self._write_unheld(scope, "", addition, ANYWHERE)

    async def _append_unheld(self, scope: Scope, turn_id: str, addition: Addition) -> Receipt:
        messages = addition.messages
        try:
            return await self._write_unheld(scope, turn_id, addition, Condition(known=frozenset()))
        except IdsTaken:
            pass
        begins = [index for index, message in enumerate(messages) if message.id == turn_id]
        end = begins[0] + 1 if begins else 0
        receipts = list[Receipt]()
        if end:
            until_question = addition._replace(messages=messages[:end]).answering(None)
            receipts.append(await self._write_unheld(scope, turn_id, until_question, ANYWHERE))
        if end < len(messages):
            receipts.append(
                await self._append_known(scope, turn_id, addition._replace(messages=messages[end:]))
            )
        return _joined(receipts)

    async def _append_known(self, scope: Scope, turn_id: str, addition: Addition) -> Receipt:
        """Append messages of a turn of which the log has ids."""

        async def after_tail() -> Receipt:
            record, tail = await self._records.read(scope, turn_id)

            async def write(named: list[BaseMessage], known: frozenset[str]) -> Receipt:
                condition = Condition(tail, known=known)
                return await self._write_unheld(
                    scope, turn_id, addition._replace(messages=named), condition
                )

            first = tail.messages + 1
            return await under_own_ids(
                record, addition.messages, write, key=turn_id, first=first, of_state=True
            )

        return await until_written(after_tail)

    async def _write_unheld(
        self, scope: Scope, turn_id: str, addition: Addition, condition: Condition
    ) -> Receipt:
        written = await self._writer.append(
            scope,
            addition.messages,
            condition=condition,
            options=replace(addition.options, question=turn_id),
        )
        return written.receipt

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

        return await under_own_ids(
            held.record,
            addition.messages,
            write,
            key=held.key,
            first=held.tail.messages + 1,
            nameless=addition.nameless,
            unsure=held.unsure,
            is_over=held.refusal is not None,
            of_state=addition.of_state,
        )

    async def _write(self, held: HeldTurn, addition: Addition, known: frozenset[str]) -> Written:
        """Write an addition whose messages have their ids, and take it over."""
        messages = addition.messages
        event = addition.event
        branch = held.branch
        is_fence = event is not None and event.kind == "fence"
        if branch:
            branch = branch._replace(is_ending=held.record.is_ended_by(messages, event))
            event = branch.records(event)
        written = await self._writer.append(
            held.scope,
            messages,
            condition=Condition(
                held.tail, branch=branch, known=known, refusal=None if is_fence else held.refusal
            ),
            facts=EVENT.alone(event),
            options=replace(addition.options, question=held.record.turn_id),
        )
        held.tail = written.totals
        if written.entry:
            event = EVENT.of(written.entry) if addition.event else None
            held.add(written.entry, messages, event)
        if branch and written.entry:
            held.take(branch.after(written.entry), is_shown=branch.is_ending)
        if branch and branch.is_ending:
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
            return await until_written(write_once)

    async def _catch_up(self, held: HeldTurn) -> None:
        """Read what others appended, unless they took the turn over."""
        await self.renew(held)
        if held.is_lost and held.refusal:
            raise held.refusal
        held.check()
        if held.branch:
            found = await self._variants.again(held.scope, held.branch)
            held.record = found.record
            held.tail = found.tail
            held.take(
                found.branch, is_shown=found.was_shown
            )  # an append of unknown outcome may have finished it
            return
        held.record, held.tail = await self._records.read(held.scope, held.record.turn_id)
        if held.record.fold.is_superseded:
            raise TurnConflictError(held.record.turn_id, is_newest=False)

    async def pause(self, held: HeldTurn, pauses: Mapping[str, Pause]) -> None:
        """Record that calls of a turn wait for a person; calls that are recorded already are skipped."""
        for _ in pauses:
            await self.record(
                held, lambda: next(map(Addition.of_event, paused(held.record, pauses)), None)
            )

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


def _joined(receipts: Sequence[Receipt]) -> Receipt:
    """Return the receipt of a batch that was written in parts."""
    *_, last = receipts
    ordinals = [ordinal for receipt in receipts for ordinal in receipt.ordinals]
    numbers = [number for receipt in receipts for number in receipt.source_ids or ()]
    return Receipt(
        message_ids=tuple(id_ for receipt in receipts for id_ in receipt.message_ids),
        first=min(ordinals),
        last=max(ordinals),
        ordinals=tuple(ordinals),
        written=sum(receipt.written for receipt in receipts),
        entry=last.entry or receipts[0].entry,
        source_ids=(min(numbers), max(numbers)) if numbers else None,
        omitted=tuple(path for receipt in receipts for path in receipt.omitted),
        renumbered={
            id_: changed for receipt in receipts for id_, changed in receipt.renumbered.items()
        },
    )

"""Enter a turn, write to it as long as its lease is held, and leave it.

A worker holds the lease of a conversation while it works on a turn. It appends only directly after what it knows of the
log: whoever takes a lapsed lease over appends an entry first, so a worker that was silent too long can write nothing
any more. What other writers append meanwhile is read, and the append is repeated after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar

from langchain_core.messages import BaseMessage

from convstore.append.batch import Written
from convstore.append.condition import Condition, TailMoved
from convstore.exceptions import (
    ConversationDeletedError,
    InvalidInputError,
    SchemaVersionError,
    StoreError,
    TurnBusyError,
    TurnConflictError,
    TurnLostError,
    UnknownMessageError,
)
from convstore.log.turn_event import TurnEvent
from convstore.log.turn_record import TurnRecord, paused, results_of
from convstore.mongo.drafts import Draft, Drafts
from convstore.mongo.turn_leases import TurnLease, TurnLeases
from convstore.runtime.background import settle
from convstore.runtime.log_end import LogEndReader
from convstore.turns.asking import Questions
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.naming import under_own_ids
from convstore.turns.record_reader import TurnRecordReader
from convstore.turns.retrying import until_written
from convstore.turns.streaming import drafting
from convstore.turns.variants import Asked, Variants
from convstore.values.models import Receipt
from convstore.values.scope import Scope
from convstore.values.turns import Pause

_Result = TypeVar("_Result")
Busy = Literal["raise", "wait", "interrupt"]
Drafting = AbstractAsyncContextManager[Callable[[], Awaitable[None]]]

LEASE_SECONDS = 30.0
"""A lease that is not renewed lapses after this time."""

RENEW_SECONDS, CHECK_SECONDS = 10.0, 1.5
"""How often the holder renews its lease, and how often it looks whether somebody asked it to stop."""

_LEASE = timedelta(seconds=LEASE_SECONDS)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class TurnKeeper:
    """Holds turns of all conversations of a store.

    Attributes:
        sleep: Waits, by the store's clock.
        variants: The variants of turns.
    """

    def __init__(
        self, ends: LogEndReader, leases: TurnLeases, drafts: Drafts, records: TurnRecordReader, variants: Variants
    ) -> None:
        self._ends, self._leases, self._drafts, self._records, self.variants = ends, leases, drafts, records, variants
        self._writer = variants.writer
        self._questions = Questions(ends.reader, records, variants.writer)
        self._reader, self._cache, self._clock = ends.reader, ends.reader.cache, ends.reader.clock
        self.sleep = self._clock.sleep

    async def enter(
        self,
        scope: Scope,
        turn_id: str,
        question: Sequence[BaseMessage],
        *,
        busy: Busy = "raise",
        seconds: float = 0,
        asked: Asked | None = None,
    ) -> HeldTurn:
        """Take the lease, then store the question or read the turn; see `Conversation.turn`."""
        owner = self._clock.token()
        begin = partial(self._begin, scope, turn_id, has_question=bool(question) and not asked)
        lease = TurnLease(
            turn_id, owner, self._clock.undated(), is_stopping=False, variant=asked.variant if asked else ""
        )
        take = partial(self._take, begin, scope, lease, interrupts=busy == "interrupt")
        conversation, lapsed = await take(seconds=0.0 if busy == "raise" else seconds)
        made = partial(HeldTurn, scope, conversation, owner)
        try:
            if lapsed:
                await self._writer.append(scope, (), event=TurnEvent("fence", turn_id))
                if lapsed.is_stopping:
                    await self._mark_stopped(made, lapsed)
            held = await self._entered(made, turn_id, question, asked)
            await self._close_refused(held)
            return held
        except BaseException:
            await settle(self._leases.release(conversation, owner=owner, stopping=False))
            raise

    async def _close_refused(self, held: HeldTurn) -> None:
        """Append the results of calls that a person decided not to run, if they were rewound: a decision stands."""

        def judge() -> Addition | None:
            results = [result for call in held.record.refused for result in results_of(*call)]
            return Addition(results) if results else None

        if held.record.refused:
            await self.record(held, judge)

    async def _mark_stopped(self, made: partial[HeldTurn], lapsed: TurnLease) -> None:
        """Mark the turn of a worker that was asked to stop, and died before it marked that."""
        is_answer = lapsed.variant not in ("", lapsed.turn)
        try:
            held = await self._entered(made, lapsed.turn, (), Asked(lapsed.variant) if is_answer else None)
        except InvalidInputError:  # its question was rewound
            return
        held.is_stopping = True
        await self._mark_end(held)

    async def _take(
        self,
        begin: Callable[[], Awaitable[None]],
        scope: Scope,
        lease: TurnLease,
        *,
        interrupts: bool,
        seconds: float,
    ) -> tuple[str, TurnLease | None]:
        """Take a lease of the scope's conversation, begun if need be; return its id, and the lease that had lapsed."""
        until, wait = self._clock.monotonic() + seconds, _FIRST_PAUSE
        while True:
            cached = await self._reader.find(scope)
            if cached is None:
                await begin()
                continue
            lease = lease._replace(since=self._clock.undated())
            taking = self._leases.take(cached.conversation, lease, time=_LEASE)
            try:
                taken = await settle(taking)
            except asyncio.CancelledError:
                await settle(self._leases.release(cached.conversation, owner=lease.owner))
                raise
            if taken is None:
                await begin()
                continue
            if taken.is_taken:
                return cached.conversation, taken.lease
            if taken.lease is None:  # it was given back meanwhile
                continue
            if interrupts and taken.lease.turn != lease.turn and not taken.lease.is_stopping:
                await self._leases.ask_to_stop(cached.conversation, taken.lease.turn)
            if self._clock.monotonic() >= until:
                raise TurnBusyError(taken.lease.turn, since=taken.lease.since)
            await self._clock.sleep(wait)
            wait = min(2 * wait, _LONGEST_PAUSE)

    async def _begin(self, scope: Scope, turn_id: str, *, has_question: bool) -> None:
        """Make sure that the conversation has a state; a question begins one with an entry without messages."""
        if has_question:
            written = await self._writer.append(scope, (), event=TurnEvent("fence", turn_id))
            if written.totals.entries == 1:  # a state came with it
                return
        cached = await self._reader.find(scope)
        if cached is None or not (await self._reader.tail(cached)).entries:
            raise UnknownMessageError(turn_id, begins_turn=True)
        try:
            await self._ends.state(cached)
        except ConversationDeletedError:
            self._cache.forget(cached)

    async def _entered(
        self, made: partial[HeldTurn], turn_id: str, question: Sequence[BaseMessage], asked: Asked | None
    ) -> HeldTurn:
        scope, conversation, _ = made.args
        if question and not asked:
            written = await self._questions.ask(scope, turn_id, question)
            if written.conversation != conversation:
                raise ConversationDeletedError("the conversation was deleted while its turn began; call again")
            if written.receipt.written:
                record = TurnRecord(turn_id)
                record.add(question, None, {turn_id: written.receipt.last})
                return made(record, written.totals)
        held = await (self._variant(made, turn_id, question, asked) if asked else self._continued(made, turn_id))
        if not held.record.is_finished and (draft := await self._drafts.find(conversation)):
            is_own = (draft.turn, draft.variant, draft.after) == (turn_id, held.variant, held.tail.messages)
            held.draft = draft.text if is_own else ""
        return held

    async def _continued(self, made: partial[HeldTurn], turn_id: str) -> HeldTurn:
        """Continue a turn as it stands; if it is an edit that views do not show yet, continue that."""
        scope, *_ = made.args
        try:
            return made(*await self._records.read(scope, turn_id))
        except UnknownMessageError:
            for record, tail, branch in await self.variants.pending(scope, turn_id):
                if branch.event.variant == turn_id:
                    return made(record, tail, branch)
            raise

    async def _variant(
        self, made: partial[HeldTurn], turn_id: str, question: Sequence[BaseMessage], asked: Asked
    ) -> HeldTurn:
        """Begin a variant, or continue it; its question is appended like the rest of it."""
        scope, *_ = made.args
        await until_written(lambda: self.variants.begin(scope, turn_id, asked))
        held = made(*await self.variants.read(scope, turn_id, asked))
        if question and not held.record.messages:
            await self.append(held, Addition(question))
        elif question:  # another one with the id is a conflict
            await self._writer.append(scope, question, condition=Condition(branch=held.branch))
        return held

    async def append(self, held: HeldTurn, addition: Addition) -> Receipt:
        """Append messages of a turn, each under an id of its own; see `TurnSession.append`.

        Raises:
            TurnLostError: Another worker has the lease, or this one gave it back.
            TurnConflictError: A later turn has begun.
            TurnClosedError: The turn was finished or stopped, and the log does not have all of the messages.
        """
        return (await self._while_held(held, lambda: self._add(held, addition))).receipt

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
        )

    async def _write(self, held: HeldTurn, addition: Addition, known: frozenset[str]) -> Written:
        """Write an addition whose messages have their ids, and take it over."""
        messages, event, branch = addition.messages, addition.event, held.branch
        is_fence = event is not None and event.kind == "fence"
        if branch:
            branch = branch._replace(is_ending=held.record.is_ended_by(messages, event))
            event = branch.records(event)
        written = await self._writer.append(
            held.scope,
            messages,
            condition=Condition(held.tail, branch=branch, known=known, refusal=None if is_fence else held.refusal),
            event=event,
            stamp=addition.stamp,
            omit=addition.omit,
            renumber=addition.renumber,
        )
        held.tail = written.totals
        ordinals = dict(zip(written.receipt.message_ids, written.receipt.ordinals, strict=False))
        held.add(messages, addition.event, ordinals)
        if branch and written.entry:
            held.branch = None if branch.is_ending else branch.after(written.entry)
        if branch and branch.is_ending:
            await self.variants.reselect(held.scope)
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
            event = held.branch.event
            asked = Asked(event.variant, event.first_turn if event.variant == event.turn else "")
            held.record, held.tail, branch = await self.variants.read(held.scope, held.record.turn_id, asked)
            held.branch = None if held.record.is_finished else branch  # an append of unknown outcome has finished it
            return
        held.record, held.tail = await self._records.read(held.scope, held.record.turn_id)
        if not held.record.is_newest:
            raise TurnConflictError(held.record.turn_id, is_newest=False)

    def drafting(self, held: HeldTurn, text: Callable[[], str], *, keeps: bool = False) -> Drafting:
        """Keep a draft of what `text` returns while a reply is streamed."""
        begun = Draft(held.record.turn_id, held.owner, held.tail.messages, "", held.variant)
        look = partial(self.look, held)
        drafts = partial(drafting, self._drafts, held.conversation, begun, text, check=self._reader.schema.check)
        return drafts(is_held=look, sleep=self.sleep, keeps=keeps)

    async def drafting_unheld(self, scope: Scope, turn_id: str, text: Callable[[], str]) -> Drafting:
        """Keep a draft of a reply to a turn that nobody holds, and leave it until the reply is appended."""
        if (cached := await self._reader.find(scope)) is None:
            raise UnknownMessageError(turn_id, begins_turn=True)
        tail = cached.tail or await self._reader.tail(cached)
        begun = Draft(turn_id, self._clock.token(), tail.messages, "")

        async def is_free() -> bool:
            await self._ends.state(cached)  # an error if the conversation was deleted
            return await self._leases.holder(cached.conversation) is None

        drafts = partial(drafting, self._drafts, cached.conversation, begun, text, check=self._reader.schema.check)
        return drafts(is_held=is_free, sleep=self.sleep, keeps=True)

    async def renew(self, held: HeldTurn) -> None:
        """Renew the lease, and learn whether to stop; SchemaVersionError if a migration excludes this process."""
        await self._check_schema(held)
        held.follow(await self._leases.renew(held.conversation, owner=held.owner, time=_LEASE))

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

    async def leave(self, held: HeldTurn, stop: Callable[[], Addition | None] | None = None) -> None:
        """Mark a turn that was asked to stop, fence off an append whose outcome is unknown, and give the lease back.

        `stop` returns the mark, with the beginning of a reply that a stop makes the answer; by default the mark alone.
        """
        try:
            if not (held.is_lost or held.is_stopping or held.record.is_finished):
                await self.look(held)  # a stop may be newer than the last look
            await self._mark_end(held, stop)
            if not (held.is_lost or await self._release(held)):  # a stop came after the look
                await self.look(held)
                await self._mark_end(held, stop)
        except (TurnLostError, TurnConflictError, UnknownMessageError):
            pass  # it has ended in another way
        except (StoreError, asyncio.CancelledError):
            held.is_lost = held.is_lost or held.must_stop  # the lease lapses, and its successor marks the stop
            raise
        finally:
            await self._release(held, stopping=True)

    async def _mark_end(self, held: HeldTurn, stop: Callable[[], Addition | None] | None = None) -> None:
        """Mark a turn that was asked to stop, or fence off an append whose outcome is unknown."""

        def judge() -> Addition | None:
            if held.must_stop:
                return stop() if stop else Addition(event=TurnEvent("stop", held.record.turn_id))
            return Addition(event=TurnEvent("fence", held.record.turn_id)) if held.is_unsure else None

        if not held.is_lost:
            await self.record(held, judge)

    async def _release(self, held: HeldTurn, *, stopping: bool = False) -> bool:
        """Give a lease back, after which this worker writes nothing; return False if it is not this worker's.

        One that was asked to stop is given back only if that is marked already, or with `stopping`.
        """
        async with held.lock:
            if held.is_lost:
                return True
            is_ended = stopping or held.record.is_finished
            is_given = await self._leases.release(held.conversation, owner=held.owner, stopping=is_ended)
            if is_given or is_ended:
                held.follow(None)
            return held.is_lost

    async def stop(self, scope: Scope, turn_id: str) -> bool:
        """Stop a turn; see `Conversation.stop`."""
        cached = await self._reader.find(scope)
        if cached is None:
            return False
        if await self._leases.ask_to_stop(cached.conversation, turn_id):
            return True
        pending = [branch.event for record, _, branch in await self.variants.pending(scope, turn_id)]
        asked = [Asked(event.variant) for event in pending if turn_id == event.turn != event.variant]
        return any([await self._stop(scope, turn_id, question) for question in (None, *asked)])

    async def _stop(self, scope: Scope, turn_id: str, asked: Asked | None) -> bool:
        """Stop a turn, or another answer to it, on which nobody works."""
        try:
            held = await self.enter(scope, turn_id, (), asked=asked)
        except UnknownMessageError:
            return False
        except TurnBusyError as busy:
            return busy.turn_id == turn_id and await self.stop(scope, turn_id)  # it was entered meanwhile
        held.is_stopping, was_finished = True, held.record.is_finished  # marked as it is left
        await settle(self.leave(held))
        return not was_finished

    async def pause(self, held: HeldTurn, pauses: Mapping[str, Pause]) -> None:
        """Record that calls of a turn wait for a person; calls that are recorded already are skipped."""
        for _ in pauses:
            await self.record(held, lambda: next(map(Addition.of_event, paused(held.record, pauses)), None))

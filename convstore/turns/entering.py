"""Enter a turn, or stop it from another worker.

A worker holds the lease of a conversation while it works on a turn; `turns.held` writes to the turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from langchain_core.messages import BaseMessage

from convstore.append.batch import AppendResult
from convstore.append.condition import Condition, TailMoved
from convstore.exceptions import (
    ConflictError,
    ConversationDeletedError,
    InvalidInputError,
    TurnBusyError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.entry import Totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.turn_record import TurnRecord
from convstore.messages.turn_calls import make_result
from convstore.mongo.turn_leases import LeaseResult, TurnLease
from convstore.runtime.background import settle
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.retrying import until_written
from convstore.turns.deciding import results_of
from convstore.turns.held import Addition, HeldTurn, TurnServices
from convstore.turns.held_lease import HeldLease, take_lease
from convstore.turns.naming import Naming
from convstore.turns.record_reader import FoundTurn
from convstore.turns.variants import VariantRequest
from convstore.values.scope import Scope
from convstore.values.turns import Busy

_Result = TypeVar("_Result")

_NOT_DECIDED = "Not decided: the user went on with another message."
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class TurnEntrance:
    """Enters and stops turns of all conversations of a store."""

    def __init__(self, ends: LogEndReader, services: TurnServices) -> None:
        self._ends = ends
        self._services = services
        self._leases = services.leases
        self._records = services.records
        self._variants = services.variants
        self._writer = services.variants.writer
        self._reader = services.reader
        self._clock = services.reader.clock

    async def enter(
        self,
        scope: Scope,
        turn_id: str,
        question: Sequence[BaseMessage],
        *,
        busy: Busy = "raise",
        seconds: float = 0,
        request: VariantRequest | None = None,
    ) -> HeldTurn:
        """Take the lease, then store the question or read the turn; see `Conversation.turn`."""
        lease = self._lease(turn_id, variant=request.variant if request else "")
        enter = partial(self._enter, question=question, request=request)
        begins = bool(question) and not request
        return await self._take_and_work(
            scope, lease, enter, begins=begins, busy=busy, seconds=seconds
        )

    async def enter_for_run(
        self, scope: Scope, turn_id: str, *, busy: Busy, seconds: float, is_new: bool
    ) -> HeldTurn:
        """Take the lease for a run of a framework, which appends the question of its turn itself.

        With `is_new` the question is not looked up: the run believes that the log does not have it.
        """
        lease = self._lease(turn_id)
        enter = partial(self._enter_for_run, is_new=is_new)
        return await self._take_and_work(
            scope, lease, enter, begins=True, busy=busy, seconds=seconds
        )

    async def join(self, around: HeldTurn, turn_id: str) -> HeldTurn:
        """Return another turn on which the holder of a lease works at the same time, under the same lease."""
        held = around.sibling(turn_id)
        held.lease.sharing = "borrows"
        await self._enter_for_run(held, is_new=False)
        around.lease.sharing = around.lease.sharing or "lends"
        return held

    async def _enter_for_run(self, held: HeldTurn, *, is_new: bool) -> None:
        """Read a turn, or the end of the log if the run will append its question.

        If the question is new, calls that still wait for a person get results that say so, as before any new question.
        """
        held.may_be_superseded = True
        if not is_new:
            with suppress(UnknownMessageError):
                await self._continue(held)
                return
        cached = await self._reader.find(held.scope)
        if cached is not None:
            held.tail = await self._close_before(cached, held.record.turn_id)

    def _lease(self, turn_id: str, *, variant: str = "") -> TurnLease:
        return TurnLease(
            turn_id,
            self._clock.token(),
            self._clock.undated(),
            is_stopping=False,
            variant=variant,
        )

    async def _take_and_work(
        self,
        scope: Scope,
        lease: TurnLease,
        enter: Callable[[HeldTurn], Awaitable[None]],
        *,
        begins: bool,
        busy: Busy,
        seconds: float,
    ) -> HeldTurn:
        """Take a lease and enter its turn; give it back if that fails."""
        begin = partial(self._begin, scope, lease.turn, has_question=begins)
        take = partial(self._take, begin, scope, lease, interrupts=busy == "interrupt")
        conversation, taken = await take(seconds=0.0 if busy == "raise" else seconds)
        lapsed = taken.lease
        held_lease = HeldLease(
            self._leases,
            self._reader.schema,
            self._clock,
            conversation,
            lease.turn,
            lease.owner,
        )
        held = HeldTurn.of(self._services, scope, held_lease)
        try:
            if lapsed:
                await self._writer.append(
                    scope, (), facts=EVENT.put(TurnEvent("fence", lease.turn))
                )
                if lapsed.is_stopping:
                    await self._mark_stopped(held, lapsed)
            await enter(held)
            await self._close_refused(held)
            return held
        except BaseException:
            await settle(self._abandon(held))
            raise

    async def _abandon(self, held: HeldTurn) -> None:
        """Give back the lease of a turn that could not be entered; if a stop was requested, mark the turn first."""
        lease = held.lease
        release = partial(self._leases.release, lease.conversation, owner=lease.owner)
        if await release(stopping=False):
            return
        stored = await self._leases.find(lease.conversation, owner=lease.owner)
        if stored is not None:
            with suppress(ConflictError):  # it has ended in another way
                await self._mark_stopped(held, stored)
            await release()

    async def _close_refused(self, held: HeldTurn) -> None:
        """Append the results of rejected or answered calls again if they were rewound: a decision stands."""

        def judge() -> Addition | None:
            results = [result for call in held.record.refused for result in results_of(*call)]
            return Addition(results) if results else None

        if held.record.refused:
            await held.append_if(judge)

    async def _mark_stopped(self, successor: HeldTurn, lapsed: TurnLease) -> None:
        """Mark as stopped a turn whose worker died after a stop was requested, unless the turn is over."""
        is_answer = lapsed.variant not in ("", lapsed.turn)
        request = VariantRequest(lapsed.variant) if is_answer else None
        held = successor.sibling(lapsed.turn)
        try:
            await self._enter(held, (), request)
        except InvalidInputError:  # its question was rewound
            return
        held.lease.is_stopping = True
        with suppress(TurnConflictError):  # a later question was asked
            await held.mark_end()

    async def _take(
        self,
        begin: Callable[[], Awaitable[None]],
        scope: Scope,
        lease: TurnLease,
        *,
        interrupts: bool,
        seconds: float,
    ) -> tuple[str, LeaseResult]:
        """Take the lease of the scope's conversation, which is created if need be; return its id, and the outcome."""
        until = self._clock.monotonic() + seconds
        wait = _FIRST_PAUSE
        while True:
            cached = await self._reader.find(scope)
            if cached is None:
                await begin()
                continue
            lease = lease._replace(since=self._clock.undated())
            taken = await take_lease(self._leases, cached.conversation, lease)
            if taken is None:
                await begin()
                continue
            if taken.is_taken:
                cached.may_have_summaries = taken.may_have_summaries
                return cached.conversation, taken
            if taken.lease is None:  # it was given back meanwhile
                continue
            if interrupts and taken.lease.turn != lease.turn:
                await self._interrupt(scope, cached.conversation, taken.lease)
            if self._clock.monotonic() >= until:
                raise TurnBusyError(taken.lease.turn, since=taken.lease.since)
            await self._clock.sleep(wait)
            wait = min(2 * wait, _LONGEST_PAUSE)

    async def _interrupt(self, scope: Scope, conversation: str, lease: TurnLease) -> None:
        """Ask the holder of a lease to stop, unless its turn is over and about to be left."""
        if not (lease.is_stopping or await self._is_over(scope, lease)):
            await self._leases.ask_to_stop(conversation, lease.turn)

    async def _is_over(self, scope: Scope, lease: TurnLease) -> bool:
        """Return True if the holder of a lease works on a turn or a variant that is over."""
        with suppress(UnknownMessageError):
            if lease.variant:
                request = VariantRequest(lease.variant)
                return (await self._variants.read(scope, lease.turn, request)).record.is_finished
            return (await self._records.read(scope, lease.turn)).record.is_finished
        return False

    async def _begin(self, scope: Scope, turn_id: str, *, has_question: bool) -> None:
        """Create the state of a conversation if it is missing. A question creates it with an entry without messages.

        Raises:
            UnknownMessageError: There is no question, and no conversation.
        """
        if has_question:
            written = await self._writer.append(
                scope, (), facts=EVENT.put(TurnEvent("fence", turn_id))
            )
            if written.totals.entries == 1:  # a state came with it
                return
        cached = await self._reader.find(scope)
        if cached is None or not (await self._reader.tail(cached)).entries:
            raise UnknownMessageError(turn_id, begins_turn=True)
        try:
            await self._ends.state(cached)
        except ConversationDeletedError:
            self._reader.cache.forget(cached)

    async def _enter(
        self, held: HeldTurn, question: Sequence[BaseMessage], request: VariantRequest | None
    ) -> None:
        """Append the question of a turn, or read the turn or its variant if the log has it."""
        if request:
            await self._enter_variant(held, question, request)
            return
        turn_id = held.record.turn_id
        if question:
            written = await self._ask(held.scope, turn_id, question)
            if written.conversation != held.lease.conversation:
                raise ConversationDeletedError(
                    "the conversation was deleted while its turn began; call again"
                )
            if written.entry:
                record = TurnRecord.of(turn_id, written.receipt.last)
                record.add(written.entry.messages[-1:], question)
                held.load(FoundTurn(record, written.totals))
                return
        await self._continue(held)
        await held.find_draft()

    async def _ask(
        self, scope: Scope, turn_id: str, question: Sequence[BaseMessage]
    ) -> AppendResult:
        """Append a question, and in the same entry a result for each call that still waits for a person."""

        async def write() -> AppendResult:
            cached = await self._reader.find(scope)
            tail = (cached.tail or await self._reader.tail(cached)) if cached else Totals()
            before = await self._waiting(cached, tail, turn_id) if cached else None
            if before is not None:
                return await self._close_and_ask(scope, before, tail, question)
            return await self._writer.append(scope, question, condition=Condition(tail))

        return await until_written(write, TailMoved)

    async def _close_before(self, cached: CachedConversation, turn_id: str) -> Totals:
        """Append a result for each call that still waits for a person, as `_ask` does; return the log's end."""

        async def write() -> Totals:
            tail = cached.tail or await self._reader.tail(cached)
            before = await self._waiting(cached, tail, turn_id)
            if before is None:
                return tail
            return (await self._close_and_ask(cached.scope, before, tail, ())).totals

        return await until_written(write, TailMoved)

    async def _waiting(
        self, cached: CachedConversation, tail: Totals, turn_id: str
    ) -> TurnRecord | None:
        """Return the last turn if calls of it wait for a person, and the log does not have the new turn; else None."""
        if not tail.calls or tail.is_ended or await self._reader.messages_by_id(cached, [turn_id]):
            return None
        newest = await self._records.newest(cached.scope)
        return newest if newest and newest.undecided else None

    async def _close_and_ask(
        self, scope: Scope, before: TurnRecord, tail: Totals, question: Sequence[BaseMessage]
    ) -> AppendResult:
        results = [make_result(call, _NOT_DECIDED, is_error=True) for call in before.undecided]

        async def write(named: list[BaseMessage], known: frozenset[str]) -> AppendResult:
            condition = Condition(tail, known=known | {str(message.id) for message in question})
            return await self._writer.append(scope, [*named, *question], condition=condition)

        return await Naming(before, before.turn_id, tail.messages + 1).append(results, write)

    async def _continue(self, held: HeldTurn) -> None:
        """Continue a turn, or an edited question that views do not show yet."""
        turn_id = held.record.turn_id
        try:
            held.load(await self._records.read(held.scope, turn_id))
        except UnknownMessageError:
            for found in await self._variants.pending(held.scope, turn_id):
                if found.variant == turn_id:
                    held.load(found)
                    return
            raise

    async def _enter_variant(
        self, held: HeldTurn, question: Sequence[BaseMessage], request: VariantRequest
    ) -> None:
        """Begin a variant, or continue it. An edited question is appended to its variant."""
        enter = partial(self._variants.enter, held.scope, held.record.turn_id, request)
        found = await until_written(enter, TailMoved)
        if question and found.record.messages:  # another question under its id is a conflict
            condition = Condition(branch=found.branch)
            await self._writer.append(held.scope, question, condition=condition)
        held.load(found)
        if question and not held.record.messages:
            await held.append(Addition(question))
        if not found.is_new:
            await held.find_draft()

    async def stop(self, scope: Scope, turn_id: str) -> bool:
        """Stop a turn; see `Conversation.stop`."""
        cached = await self._reader.find(scope)
        if cached is None:
            return False
        if await self._leases.ask_to_stop(cached.conversation, turn_id):
            return True
        pending = [
            VariantRequest(found.variant)
            for found in await self._variants.pending(scope, turn_id)
            if turn_id == found.record.turn_id != found.variant
        ]
        return any([await self._stop(scope, turn_id, variant) for variant in (None, *pending)])

    async def _stop(self, scope: Scope, turn_id: str, request: VariantRequest | None) -> bool:
        """Stop a turn, or a variant of it, that no worker holds."""
        try:
            held = await self.enter(scope, turn_id, (), request=request)
        except UnknownMessageError:
            return False
        except TurnBusyError as busy:
            # it was entered meanwhile
            return busy.turn_id == turn_id and await self.stop(scope, turn_id)
        is_running = not held.record.is_finished
        held.lease.is_stopping = is_running  # marked as it is left
        await settle(held.leave())
        return is_running

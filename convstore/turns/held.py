"""A turn as the worker that holds its lease knows it, and everything that this worker writes to it.

A worker appends only directly after the end of the log that it knows. The worker that takes over a lapsed lease appends
an entry first, so its predecessor can write nothing any more. If other writers appended meanwhile, the worker reads
what they wrote and appends after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, BaseMessage

from convstore.append.batch import AppendResult
from convstore.append.condition import Condition, TailMoved
from convstore.exceptions import (
    ConflictError,
    StoreError,
    TurnClosedError,
    TurnConflictError,
    TurnLostError,
    UnknownMessageError,
)
from convstore.log.branch import Branch
from convstore.log.entry import Entry, Totals
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.state import NO_RECORD, ViewRecord
from convstore.log.turn_record import TurnRecord
from convstore.mongo.drafts import Draft, Drafts
from convstore.mongo.turn_leases import TurnLeases
from convstore.runtime.log_reader import LogReader
from convstore.runtime.retrying import until_written
from convstore.turns.drafting import Drafting, ReplyDrafts
from convstore.turns.held_lease import HeldLease
from convstore.turns.naming import Naming
from convstore.turns.record_reader import FoundTurn, TurnRecordReader
from convstore.turns.variants import Variants
from convstore.values.append_options import PLAIN, AppendOptions
from convstore.values.models import Receipt
from convstore.values.scope import Scope
from convstore.values.stamps import ViewStamp
from convstore.values.turns import Pause

_Result = TypeVar("_Result")


class Addition(NamedTuple):
    """Messages and facts that a worker adds to its turn, in one entry.

    Attributes:
        messages: The messages, each with an id.
        event: What the entry records besides them.
        nameless: Ids that were made up for messages that came without one.
        of_state: See `turns.naming.Naming`.
        options: How they are appended; `stamp` is that of the view which the first AI message answers.
    """

    messages: Sequence[BaseMessage] = ()
    event: TurnEvent | None = None
    nameless: Collection[str] = ()
    of_state: bool = False
    options: AppendOptions = PLAIN

    def answering(self, stamp: ViewStamp | None) -> Addition:
        """Return it as an answer to the view with a stamp."""
        return self._replace(options=replace(self.options, stamp=stamp))


@dataclass(slots=True)
class TurnServices:
    """Reads and writes the turns of a store."""

    reader: LogReader
    leases: TurnLeases
    drafts: Drafts
    records: TurnRecordReader
    variants: Variants


@dataclass(slots=True)
class HeldTurn:
    """A turn whose lease this worker holds.

    Attributes:
        services: Reads and writes it.
        scope: The conversation.
        lease: The lease under which it is written.
        drafts: The drafts of its replies.
        record: The turn as the log has it.
        tail: The end of the log that the next append follows.
        branch: The variant that this worker makes, until it is active; None if it works on the turn as it stands.
        own_key: The key from which ids of its messages derive, if it is a variant; "" for the id of the turn.
        is_entered: The session of this worker was entered and not left.
        notes: What frameworks keep with the turn, by their classes.
        record_of_view: The record of the views of this variant, see `log.state`.
        is_unsure: An append may have been written, or may be written later.
        unsure: Ids of the messages of such appends.
        changed: Set after each append, for one that shows the turn and clears it.
        lock: Serialises the appends of one worker, such as parallel results.
        may_be_superseded: A run of a framework goes on with its own turn though a later question was asked.
        first_answer: Id of the answer that the turn had when this worker took it; "" for none, None if it was not read.
    """

    services: TurnServices
    scope: Scope
    lease: HeldLease
    drafts: ReplyDrafts
    record: TurnRecord
    tail: Totals
    branch: Branch | None = None
    own_key: str = ""
    record_of_view: ViewRecord = NO_RECORD
    is_entered: bool = False
    notes: dict[type, Any] = field(default_factory=dict)
    is_unsure: bool = False
    unsure: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    may_be_superseded: bool = False
    first_answer: str | None = None

    @property
    def key(self) -> str:
        """The key from which ids of its messages derive: its id, or the key of its variant."""
        return self.own_key or self.record.turn_id

    @classmethod
    def of(cls, services: TurnServices, scope: Scope, lease: HeldLease) -> HeldTurn:
        """Return a turn whose lease was taken, and of which nothing is known yet; see `know`."""
        drafts = ReplyDrafts(services.drafts, lease)
        record = TurnRecord.to_be_asked(lease.turn_id)
        return cls(services, scope, lease, drafts, record, Totals())

    def sibling(self, turn_id: str) -> HeldTurn:
        """Return another turn of the conversation under the same lease, of which nothing is known yet."""
        return HeldTurn.of(self.services, self.scope, self.lease.for_turn(turn_id))

    def know(self, found: FoundTurn) -> None:
        """Take over what was read of the turn, or of a variant of it."""
        self.record = found.record
        self.tail = found.tail
        self.branch = found.hidden
        if found.branch:
            self.own_key = found.branch.key
        if self.first_answer is None:
            answer = found.record.answer
            self.first_answer = str(answer.id) if answer else ""

    @property
    def variant(self) -> str:
        """Id of the variant that this worker makes; "" for the turn as it stands."""
        return self.branch.event.variant if self.branch else ""

    @property
    def must_stop(self) -> bool:
        """True if somebody asked to stop, and the log does not say yet that the turn is over."""
        return self.lease.is_stopping and not self.record.is_finished

    @property
    def must_mark_stop(self) -> bool:
        """True if somebody asked to stop, and the log does not say yet that the turn was stopped or finished.

        What answered the turn meanwhile is no reason not to: who asked was told that the turn is stopped.
        """
        return self.lease.is_stopping and not self.record.is_ended

    @property
    def refusal(self) -> ConflictError | None:
        """The error for anything new, if the turn is over; None if it takes more, such as more of an answer."""
        if self.record.is_ended or (self.branch and self.record.is_finished):
            return TurnClosedError(self.record.turn_id)
        if self.record.fold.is_superseded and not self.may_be_superseded:
            return TurnConflictError(self.record.turn_id, is_newest=False)
        return None

    def refusal_of(self, addition: Addition) -> ConflictError | None:
        """Return the error for an addition, if it is new: after somebody asked to stop, a reply is refused, too.

        What tools did is recorded, with the reply that called them. A run of a framework judges its replies itself.
        """
        if addition.event is not None:
            return None if addition.event.kind == "fence" else self.refusal
        kinds = {message.type for message in addition.messages}
        is_reply = "ai" in kinds and "tool" not in kinds
        if self.lease.is_stopping and is_reply and not addition.of_state:
            return TurnClosedError(self.record.turn_id)
        return self.refusal

    def event(self, kind: str, call: str = "", values: str = "") -> Addition:
        """Return an event of the turn, to be appended."""
        return Addition(event=TurnEvent(kind, self.record.turn_id, call, values))

    def _take_over(
        self, entry: Entry, messages: Sequence[BaseMessage], event: TurnEvent | None
    ) -> None:
        """Take over an entry that was appended, with its messages and an event."""
        by_id = {message.id: message for message in messages}
        self.first_answer = self.first_answer or ""
        self.record.add(entry.messages, [by_id[item.id] for item in entry.messages], event)
        self.changed.set()

    async def append(self, addition: Addition) -> Receipt:
        """Append messages of a turn, each under an id of its own; see `TurnSession.append`.

        Raises:
            TurnLostError: Another worker has the lease, or this one gave it back.
            TurnConflictError: A later turn has begun.
            TurnClosedError: The turn was finished or stopped, and the log does not have all of the messages.
        """
        receipt = (await self._while_held(lambda: self._add(addition))).receipt
        if not self.record.is_asked:  # the log had the question already, or does not have it
            await self.read_again()
        return receipt

    async def read_again(self) -> None:
        """Read what the log has of a turn, for example after a rewind; a variant that is hidden stays as it is."""
        async with self.lock:
            if self.branch is None:
                await self._read()

    async def _read(self) -> None:
        """Read the turn and the end of the log; of a turn whose question is not in the log, the end."""
        try:
            self.know(await self.services.records.read(self.scope, self.record.turn_id))
        except UnknownMessageError:
            if self.record.is_asked:
                raise
            cached = await self.services.reader.find(self.scope)
            if cached is not None:
                self.tail = await self.services.reader.tail(cached)

    async def append_if(self, judge: Callable[[], Addition | None]) -> None:
        """Append an event of a turn, perhaps with messages.

        `judge` is called after everything up to the end of the log was read, and again if the log has moved. It returns
        None if there is nothing to record any more. Raises as `append` does.
        """

        async def write() -> None:
            if (addition := judge()) is not None:
                await self._add(addition)

        await self._while_held(write)

    async def _add(self, addition: Addition) -> AppendResult:
        """Write an addition directly after the tail that a turn knows, under ids that the log has for nothing else."""

        async def write(messages: list[BaseMessage], known: frozenset[str]) -> AppendResult:
            try:
                return await self._write(addition._replace(messages=messages), known)
            except (asyncio.CancelledError, StoreError):
                self.unsure.update(str(message.id) for message in messages)
                raise

        naming = Naming(
            self.record,
            self.key,
            self.tail.messages + 1,
            nameless=addition.nameless,
            unsure=self.unsure,
            by_id=self.refusal_of(addition) is not None or addition.of_state,
            of_state=addition.of_state,
        )
        return await naming.append(addition.messages, write)

    async def _write(self, addition: Addition, known: frozenset[str]) -> AppendResult:
        """Write an addition whose messages have their ids, and take it over."""
        messages = addition.messages
        event = addition.event
        branch = self.branch
        refusal = self.refusal_of(addition)
        if branch:
            branch = branch._replace(has_something=self._has_something(addition))
            event = branch.records(event)
        written = await self.services.variants.writer.append(
            self.scope,
            messages,
            condition=Condition(self.tail, branch=branch, known=known, refusal=refusal),
            facts=EVENT.put(event),
            options=replace(addition.options, question=self.record.turn_id),
        )
        self.tail = written.totals
        self.unsure.difference_update(written.receipt.message_ids)
        if written.entry:
            event = EVENT.of(written.entry) if addition.event else None
            self._take_over(written.entry, messages, event)
        if branch and written.entry:
            is_shown = BRANCH.of(written.entry) is None
            self.branch = None if is_shown else branch.after(written.entry)
            if is_shown:
                await self.services.variants.reselect(self.scope, written.totals)
        return written

    async def reserve(self, number: int) -> range:
        """Reserve source ids for a result of a turn; raises as `append` does."""

        async def write() -> range:
            if self.refusal:
                raise self.refusal
            numbers, self.tail = await self.services.variants.writer.reserve(
                self.scope, number, after=self.tail
            )
            return numbers

        return await self._while_held(write)

    async def _while_held(self, write: Callable[[], Awaitable[_Result]]) -> _Result:
        """Write after the tail that a turn knows; if others appended meanwhile, read that and write again."""

        async def write_once() -> _Result:
            if not self.refusal:  # else nothing new is written
                self.lease.check()
                await self.lease.check_schema()
            try:
                return await write()
            except TailMoved:
                await self._catch_up()
                raise
            except (asyncio.CancelledError, StoreError):
                self.is_unsure = True
                raise

        async with self.lock:
            return await until_written(write_once, TailMoved)

    async def _catch_up(self) -> None:
        """Read what others appended, unless they took the turn over."""
        await self.lease.renew()
        if self.lease.is_lost and self.refusal:
            raise self.refusal
        self.lease.check()
        if self.branch:
            # an append of unknown outcome may have finished it
            self.know(await self.services.variants.again(self.scope, self.branch))
            return
        await self._read()

    async def pause(self, pauses: Mapping[str, Pause]) -> None:
        """Record that calls of a turn wait for a person, by the ids of their results.

        Calls that are recorded already are skipped. A repeated request asks again, under another interrupt; the newest
        is the one that the agent can be resumed from.
        """
        for result_id, pause in pauses.items():
            await self.append_if(partial(self._wait, result_id, pause))

    async def finish(self, *, if_done: bool = False) -> None:
        """Record that the turn ended without an answer, unless it is over; with `if_done` only if nothing is open."""

        def judge() -> Addition | None:
            is_due = self.record.fold.is_done if if_done else not self.record.is_finished
            return self.event("finish") if is_due else None

        await self.append_if(judge)

    def _wait(self, result_id: str, pause: Pause) -> Addition | None:
        """Return the event that a call waits for a person; None if that is recorded, or the call was run."""
        fold = self.record.fold
        if not fold.is_unrun(result_id) or fold.waiting.get(result_id) == pause:
            return None
        return self.event("wait", result_id, json.dumps(pause))

    def _has_something(self, addition: Addition) -> bool:
        """Return True if a variant has something to show: more than its question, or if it is stopped, a text."""
        said = [*self.record.messages, *addition.messages]
        if addition.event and addition.event.kind == "stop":
            return any(isinstance(message, AIMessage) and message.text for message in said)
        return len(said) > 1

    async def find_draft(self) -> None:
        """Read the draft and the error of a turn that an interrupted worker has left."""
        if not self.record.is_finished:
            self.drafts.found = await self.drafts.find(self._begun())

    def drafting(self, text: Callable[[], str], *, keeps: bool = False) -> Drafting:
        """Keep a draft of what `text` returns while a reply is streamed."""
        return self.drafts.keep(self._begun(), text, keeps=keeps)

    def _begun(self) -> Draft:
        """Return an empty draft at the position that the turn has reached."""
        return Draft(self.record.turn_id, self.lease.owner, self.tail.messages, "", self.variant)

    async def note_error(self, error: BaseException | None) -> None:
        """Store class and first line of the error by which a run broke off, beside the draft of its reply, if any.

        Nothing is stored of a turn that is over, and of errors of the store itself, which may not be reachable.
        """
        is_over = self.lease.is_lost or self.lease.is_stopping or self.record.is_finished
        if is_over or not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        await self.drafts.note_error(self._begun(), error)

    async def leave(self, stop: Callable[[], Addition | None] | None = None) -> None:
        """Mark a turn that was asked to stop, fence off an append whose outcome is unknown, and give the lease back.

        `stop` returns the mark, with the beginning of a reply that a stop makes the answer; by default the mark alone.
        """
        try:
            if not (self.lease.is_lost or self.lease.is_stopping or self.record.is_finished):
                await self.lease.look()  # a stop may be newer than the last look
            await self.mark_end(stop)
            if not await self._release():  # a stop came after the look
                await self.lease.look()
                await self.mark_end(stop)
        except (TurnLostError, TurnClosedError, TurnConflictError, UnknownMessageError):
            pass  # it has ended in another way
        except (StoreError, asyncio.CancelledError):
            # the lease lapses, and its successor marks the stop
            self.lease.is_lost = self.lease.is_lost or self.must_mark_stop
            raise
        finally:
            await self._release(stopping=True)

    async def mark_end(self, stop: Callable[[], Addition | None] | None = None) -> None:
        """Mark a turn that was asked to stop, or fence off an append whose outcome is unknown."""

        def judge() -> Addition | None:
            if self.must_mark_stop:
                return stop() if stop else self.event("stop")
            return self.event("fence") if self.is_unsure else None

        if not self.lease.is_lost:
            await self.append_if(judge)

    async def _release(self, *, stopping: bool = False) -> bool:
        """Release the lease, after an append in progress; see `HeldLease.release`."""
        async with self.lock:
            return await self.lease.release(stopping=stopping)

"""The state of a turn in the worker that holds its lease, and everything that this worker writes to the turn.

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
        event: An event of the turn that the entry records; None without one.
        generated_ids: Ids that were generated for messages without one.
        from_state: See `turns.naming.Naming`.
        options: How they are appended; `stamp` is that of the view which the first AI message answers.
    """

    messages: Sequence[BaseMessage] = ()
    event: TurnEvent | None = None
    generated_ids: Collection[str] = ()
    from_state: bool = False
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
        branch: The variant that this worker writes, until it is active; None if it works on the turn itself.
        variant_key: For a variant the key from which ids of its messages derive; "" for the turn itself.
        is_entered: The session of this worker was entered and not left.
        notes: Objects that frameworks attach to the turn, by class.
        record_of_view: The record of the views of this variant, see `log.state`.
        has_unknown_outcome: An append failed, but may have been written, or may be written later.
        maybe_written: Ids of the messages of such appends.
        changed: Set after each append; a page that shows the turn clears it.
        lock: Serialises the appends of one worker, such as parallel results.
        may_be_superseded: A run of a framework may continue its own turn after a later question was asked.
        first_answer: Id of the answer that the turn had when this worker took it; "" if it had no answer, None if the
            turn was not read.
    """

    services: TurnServices
    scope: Scope
    lease: HeldLease
    drafts: ReplyDrafts
    record: TurnRecord
    tail: Totals
    branch: Branch | None = None
    variant_key: str = ""
    record_of_view: ViewRecord = NO_RECORD
    is_entered: bool = False
    notes: dict[type, Any] = field(default_factory=dict)
    has_unknown_outcome: bool = False
    maybe_written: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    may_be_superseded: bool = False
    first_answer: str | None = None

    @property
    def key(self) -> str:
        """The key from which ids of its messages derive: its id, or the key of its variant."""
        return self.variant_key or self.record.turn_id

    @classmethod
    def of(cls, services: TurnServices, scope: Scope, lease: HeldLease) -> HeldTurn:
        """Return a turn whose lease was taken, and which was not read yet; see `load`."""
        drafts = ReplyDrafts(services.drafts, lease)
        record = TurnRecord.to_be_asked(lease.turn_id)
        return cls(services, scope, lease, drafts, record, Totals())

    def sibling(self, turn_id: str) -> HeldTurn:
        """Return another turn of the conversation under the same lease, which was not read yet."""
        return HeldTurn.of(self.services, self.scope, self.lease.for_turn(turn_id))

    def load(self, found: FoundTurn) -> None:
        """Replace the state of the turn by a turn or variant that was read."""
        self.record = found.record
        self.tail = found.tail
        self.branch = found.hidden
        if found.branch:
            self.variant_key = found.branch.key
        if self.first_answer is None:
            answer = found.record.answer
            self.first_answer = str(answer.id) if answer else ""

    @property
    def variant(self) -> str:
        """Id of the variant that this worker writes; "" for the turn itself."""
        return self.branch.event.variant if self.branch else ""

    @property
    def must_stop(self) -> bool:
        """True if a stop was requested, and the turn is not over in the log."""
        return self.lease.is_stopping and not self.record.is_finished

    @property
    def must_mark_stop(self) -> bool:
        """True if a stop was requested, and the log does not record that the turn was stopped or finished.

        An answer that was appended meanwhile does not count: the caller of `stop` was told that the turn is stopped.
        """
        return self.lease.is_stopping and not self.record.is_ended

    @property
    def refusal(self) -> ConflictError | None:
        """The error for a new message if the turn is over; None if it takes more, such as more of an answer."""
        if self.record.is_ended or (self.branch and self.record.is_finished):
            return TurnClosedError(self.record.turn_id)
        if self.record.fold.is_superseded and not self.may_be_superseded:
            return TurnConflictError(self.record.turn_id, is_newest=False)
        return None

    def refusal_of(self, addition: Addition) -> ConflictError | None:
        """Return the error for a new addition, or None. After a request to stop, replies are refused, too.

        Results of tools are still recorded, with the reply that called them. Runs of frameworks check their replies
        themselves.
        """
        if addition.event is not None:
            return None if addition.event.kind == "fence" else self.refusal
        kinds = {message.type for message in addition.messages}
        is_reply = "ai" in kinds and "tool" not in kinds
        if self.lease.is_stopping and is_reply and not addition.from_state:
            return TurnClosedError(self.record.turn_id)
        return self.refusal

    def event(self, kind: str, call: str = "", values: str = "") -> Addition:
        """Return an event of the turn, to be appended."""
        return Addition(event=TurnEvent(kind, self.record.turn_id, call, values))

    def _add_entry(
        self, entry: Entry, messages: Sequence[BaseMessage], event: TurnEvent | None
    ) -> None:
        """Add an entry that was appended, with its messages and an event, to the record."""
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
        """Read the turn again, for example after a rewind; a hidden variant stays as it is."""
        async with self.lock:
            if self.branch is None:
                await self._read()

    async def _read(self) -> None:
        """Read the turn and the end of the log; only the end if the log does not have the question yet."""
        try:
            self.load(await self.services.records.read(self.scope, self.record.turn_id))
        except UnknownMessageError:
            if self.record.is_asked:
                raise
            cached = await self.services.reader.find(self.scope)
            if cached is not None:
                self.tail = await self.services.reader.tail(cached)

    async def append_if(self, judge: Callable[[], Addition | None]) -> None:
        """Append an event of a turn, perhaps with messages.

        `judge` returns the addition, or None if there is nothing left to record. It is called when the log was read to
        its end, and again if another writer appended since. Raises as `append` does.
        """

        async def write() -> None:
            if (addition := judge()) is not None:
                await self._add(addition)

        await self._while_held(write)

    async def _add(self, addition: Addition) -> AppendResult:
        """Write an addition directly after the known tail, under ids that no other message has."""

        async def write(messages: list[BaseMessage], known: frozenset[str]) -> AppendResult:
            try:
                return await self._write(addition._replace(messages=messages), known)
            except (asyncio.CancelledError, StoreError):
                self.maybe_written.update(str(message.id) for message in messages)
                raise

        naming = Naming(
            self.record,
            self.key,
            self.tail.messages + 1,
            generated_ids=addition.generated_ids,
            maybe_written=self.maybe_written,
            by_id=self.refusal_of(addition) is not None or addition.from_state,
            from_state=addition.from_state,
        )
        return await naming.append(addition.messages, write)

    async def _write(self, addition: Addition, known: frozenset[str]) -> AppendResult:
        """Write an addition under its final ids, and add it to the record."""
        messages = addition.messages
        event = addition.event
        branch = self.branch
        refusal = self.refusal_of(addition)
        if branch:
            branch = branch._replace(has_something=self._can_be_shown(addition))
            event = branch.records(event)
        written = await self.services.variants.writer.append(
            self.scope,
            messages,
            condition=Condition(self.tail, branch=branch, known=known, refusal=refusal),
            facts=EVENT.put(event),
            options=replace(addition.options, question=self.record.turn_id),
        )
        self.tail = written.totals
        self.maybe_written.difference_update(written.receipt.message_ids)
        if written.entry:
            event = EVENT.of(written.entry) if addition.event else None
            self._add_entry(written.entry, messages, event)
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
        """Write after the known tail; if others appended meanwhile, catch up and write again."""

        async def write_once() -> _Result:
            if not self.refusal:  # else only a repetition is accepted, which writes nothing
                self.lease.check()
                await self.lease.check_schema()
            try:
                return await write()
            except TailMoved:
                await self._catch_up()
                raise
            except (asyncio.CancelledError, StoreError):
                self.has_unknown_outcome = True
                raise

        async with self.lock:
            return await until_written(write_once, TailMoved)

    async def _catch_up(self) -> None:
        """Read what others appended; TurnLostError if one of them took the turn over."""
        await self.lease.renew()
        if self.lease.is_lost and self.refusal:
            raise self.refusal
        self.lease.check()
        if self.branch:
            # an append whose outcome is unknown may have finished it
            self.load(await self.services.variants.reread(self.scope, self.branch))
            return
        await self._read()

    async def pause(self, pauses: Mapping[str, Pause]) -> None:
        """Record that calls of a turn wait for a person, by the ids of their results.

        Calls that are recorded already are skipped. If a repeated request pauses again, the new interrupt is recorded:
        the agent can only be resumed from the newest one.
        """
        for result_id, pause in pauses.items():
            await self.append_if(partial(self._wait_event, result_id, pause))

    async def finish(self, *, if_done: bool = False) -> None:
        """Record that the turn ended without an answer, unless it is over; with `if_done` only if no call is open."""

        def judge() -> Addition | None:
            is_due = self.record.fold.is_done if if_done else not self.record.is_finished
            return self.event("finish") if is_due else None

        await self.append_if(judge)

    def _wait_event(self, result_id: str, pause: Pause) -> Addition | None:
        """Return the event that a call waits for a person; None if it is recorded already, or the call was run."""
        fold = self.record.fold
        if not fold.is_unrun(result_id) or fold.waiting.get(result_id) == pause:
            return None
        return self.event("wait", result_id, json.dumps(pause))

    def _can_be_shown(self, addition: Addition) -> bool:
        """Return True if a variant may become active: it has more than its question, or a text if it is stopped."""
        said = [*self.record.messages, *addition.messages]
        if addition.event and addition.event.kind == "stop":
            return any(isinstance(message, AIMessage) and message.text for message in said)
        return len(said) > 1

    async def find_draft(self) -> None:
        """Read the draft and the error of a turn that an interrupted worker has left."""
        if not self.record.is_finished:
            self.drafts.found = await self.drafts.find(self._empty_draft())

    def drafting(self, text: Callable[[], str], *, keeps: bool = False) -> Drafting:
        """Return a context that stores the value of `text()` as a draft while a reply is streamed."""
        return self.drafts.keep(self._empty_draft(), text, keeps=keeps)

    def _empty_draft(self) -> Draft:
        """Return an empty draft at the position that the turn has reached."""
        return Draft(self.record.turn_id, self.lease.owner, self.tail.messages, "", self.variant)

    async def note_error(self, error: BaseException | None) -> None:
        """Store class and first line of the error by which a run broke off, beside the draft of its reply, if any.

        Errors of a turn that is over are not stored, nor those of the store itself, which may be out of reach.
        """
        is_over = self.lease.is_lost or self.lease.is_stopping or self.record.is_finished
        if is_over or not isinstance(error, Exception) or isinstance(error, StoreError):
            return
        await self.drafts.note_error(self._empty_draft(), error)

    async def leave(self, stop: Callable[[], Addition | None] | None = None) -> None:
        """Mark the turn if a stop was requested, fence off an append whose outcome is unknown, and give the lease back.

        `stop` returns the event that marks the turn, perhaps with a partial reply as the answer; by default the event
        alone.
        """
        try:
            if not (self.lease.is_lost or self.lease.is_stopping or self.record.is_finished):
                await self.lease.look()  # a stop may have been requested since the last look
            await self.mark_end(stop)
            if not await self._release():  # a stop was requested after that look
                await self.lease.look()
                await self.mark_end(stop)
        except (TurnLostError, TurnClosedError, TurnConflictError, UnknownMessageError):
            pass  # the turn ended in another way
        except (StoreError, asyncio.CancelledError):
            # let the lease lapse: the next holder marks the stop
            self.lease.is_lost = self.lease.is_lost or self.must_mark_stop
            raise
        finally:
            await self._release(stopping=True)

    async def mark_end(self, stop: Callable[[], Addition | None] | None = None) -> None:
        """Mark the turn if a stop was requested, else fence off an append whose outcome is unknown."""

        def judge() -> Addition | None:
            if self.must_mark_stop:
                return stop() if stop else self.event("stop")
            return self.event("fence") if self.has_unknown_outcome else None

        if not self.lease.is_lost:
            await self.append_if(judge)

    async def _release(self, *, stopping: bool = False) -> bool:
        """Release the lease, after an append in progress; see `HeldLease.release`."""
        async with self.lock:
            return await self.lease.release(stopping=stopping)

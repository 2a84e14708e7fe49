"""A turn as the worker that holds its lease knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import (
    ConflictError,
    SchemaVersionError,
    TurnClosedError,
    TurnConflictError,
    TurnLostError,
)
from convstore.log.branch import Branch
from convstore.log.entry import Entry, Totals
from convstore.log.facts.event import TurnEvent
from convstore.log.state import NO_RECORD, ViewRecord
from convstore.log.turn_record import TurnRecord
from convstore.mongo.turn_leases import TurnLease
from convstore.turns.record_reader import FoundTurn
from convstore.values.append_options import PLAIN, AppendOptions
from convstore.values.scope import Scope
from convstore.values.stamps import ViewStamp
from convstore.wire.streams import StreamedReply


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
class HeldTurn:
    """A turn whose lease this worker holds.

    Attributes:
        scope: The conversation.
        conversation: Its id.
        owner: Token of the lease.
        record: The turn as the log has it.
        tail: The end of the log that the next append follows.
        branch: The variant that this worker makes, until it is active; None if it works on the turn as it stands.
        own_key: The key from which ids of its messages derive, if it is a variant; "" for the id of the turn.
        draft: The beginning of a reply that an interrupted worker left.
        error: Class and first line of the error by which its run broke off.
        drop_draft: Deletes the draft of a reply that a framework's run has streamed and appends next; None without one.
        is_stopping: Somebody asked to stop.
        is_lost: Another worker took the lease, or this one gave it back, or must not write any more.
        exclusion: Why it must not: a migration excludes this process.
        is_entered: The session of this worker was entered and not left.
        unsaid: The reply that becomes the answer if the session is left because somebody asked to stop.
        notes: What frameworks keep with the turn, by their classes.
        record_of_view: The record of the views of this variant, see `log.state`.
        is_unsure: An append may have been written, or may be written later.
        unsure: Ids of the messages of such appends.
        ended: Set when `is_stopping` or `is_lost` becomes true.
        changed: Set after each append, for one that shows the turn and clears it.
        lock: Serialises the appends of one worker, such as parallel results.
        sharing: "borrows" if the lease is that of another turn, on which its holder works, too; "lends" for that one.
        may_be_superseded: A run of a framework goes on with its own turn though a later question was asked.
        first_answer: Id of the answer that the turn had when this worker took it; "" for none, None if it was not read.
    """

    scope: Scope
    conversation: str
    owner: str
    record: TurnRecord
    tail: Totals
    branch: Branch | None = None
    own_key: str = ""
    draft: str = ""
    error: str = ""
    drop_draft: Callable[[], Awaitable[None]] | None = None
    record_of_view: ViewRecord = NO_RECORD
    is_stopping: bool = False
    is_lost: bool = False
    exclusion: SchemaVersionError | None = None
    is_entered: bool = False
    unsaid: StreamedReply = field(default_factory=StreamedReply)
    notes: dict[type, Any] = field(default_factory=dict)
    is_unsure: bool = False
    unsure: set[str] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sharing: Literal["", "lends", "borrows"] = ""
    may_be_superseded: bool = False
    first_answer: str | None = None

    @property
    def key(self) -> str:
        """The key from which ids of its messages derive: its id, or the key of its variant."""
        return self.own_key or self.record.turn_id

    @classmethod
    def of(cls, scope: Scope, conversation: str, owner: str, turn_id: str) -> HeldTurn:
        """Return a turn whose lease was taken, and of which nothing is known yet; see `know`."""
        return cls(scope, conversation, owner, TurnRecord.to_be_asked(turn_id), Totals())

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
        return self.is_stopping and not self.record.is_finished

    @property
    def must_mark_stop(self) -> bool:
        """True if somebody asked to stop, and the log does not say yet that the turn was stopped or finished.

        What answered the turn meanwhile is no reason not to: who asked was told that the turn is stopped.
        """
        return self.is_stopping and not self.record.is_ended

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
        if self.is_stopping and is_reply and not addition.of_state:
            return TurnClosedError(self.record.turn_id)
        return self.refusal

    def add(self, entry: Entry, messages: Sequence[BaseMessage], event: TurnEvent | None) -> None:
        """Take over an entry that was appended, with its messages and an event."""
        by_id = {message.id: message for message in messages}
        self.first_answer = self.first_answer or ""
        self.record.add(entry.messages, [by_id[item.id] for item in entry.messages], event)
        self.unsure.difference_update(item.id for item in entry.messages)
        self.changed.set()

    def forget(self, reply: StreamedReply) -> None:
        """Make a reply no answer by a stop any more, unless another one is heard by now."""
        if self.unsaid is reply:
            self.unsaid = StreamedReply()

    def follow(self, lease: TurnLease | None) -> None:
        """Take over what a read of the lease says."""
        self.is_lost = self.is_lost or lease is None
        self.is_stopping = self.is_stopping or (lease is not None and lease.is_stopping)
        if self.is_lost or self.is_stopping:
            self.ended.set()

    def exclude(self, error: SchemaVersionError) -> None:
        """End the turn in a process that a migration excludes; `check` raises the error from now on."""
        self.exclusion = error
        self.follow(None)

    def check(self, *, may_stop: bool = True) -> None:
        """Raise a TurnLostError if the lease is lost; a TurnClosedError if it may not stop and somebody asked to."""
        if self.exclusion is not None:
            raise SchemaVersionError(*self.exclusion.args)
        if self.is_lost:
            raise TurnLostError(self.record.turn_id)
        if self.is_stopping and not may_stop:
            raise TurnClosedError(self.record.turn_id)

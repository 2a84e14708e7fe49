"""Tell a reader what changes in a conversation, as it changes: messages, the last turn's state, and its draft.

A watcher reads the entries after those that it has read, and folds them into the record of the last turn. After a
change of the active messages it reads again from the first message that is affected.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from convstore.exceptions import ConversationDeletedError
from convstore.log.entry import Entry, Totals
from convstore.log.facts.branch import BRANCH, shown_event
from convstore.log.facts.event import EVENT
from convstore.log.rows import rows_of
from convstore.log.turn_record import TurnRecord
from convstore.mongo.drafts import Draft
from convstore.mongo.parallel import together
from convstore.mongo.turn_leases import TurnLease
from convstore.readback.records import Records
from convstore.readback.turns import Turns
from convstore.runtime.active_log import read_page
from convstore.runtime.changes import Changes
from convstore.runtime.log_reader import Snapshot
from convstore.turns.held import TurnServices
from convstore.turns.record_reader import FoundTurn
from convstore.values.models import ConversationUpdate, Status, StoredMessage, TurnState
from convstore.values.scope import Scope, check_number, check_ordinals

_MAX_LIMIT = 1_000


@dataclass(slots=True)
class _Told:
    """State of a conversation that a watcher was sent.

    Attributes:
        conversation: Its id, "" for none.
        last: Ordinal of the last message.
        replaces_from: The reader has to drop messages from this ordinal on; 0 for none.
        log: The log as it was read; None to look for the entry to read from.
        record: The last turn, None before the first one.
        variants: Places and ids of the other answers and questions that were begun since then.
        state: What was told of the turn.
    """

    conversation: str = ""
    last: int = 0
    replaces_from: int = 1
    log: Snapshot | None = None
    record: TurnRecord | None = None
    variants: set[tuple[str, str]] = field(default_factory=set)
    state: TurnState | None = None

    def follow(self, log: Snapshot) -> None:
        """Go back to before the first message that a rewind took out of what was read, or put into it."""
        if self.log and (first := log.changed_since(self.log)) <= self.log.tail.messages:
            if first <= self.last:
                self.last = first - 1
                self.replaces_from = first
            self.log = self.record = None

    def fold(self, entries: Sequence[Entry], stored: Sequence[StoredMessage]) -> None:
        """Add entries and their messages to the record of the last turn."""
        messages = iter([message.message for message in stored])
        for entry in entries:
            own = list(islice(messages, len(entry.messages)))
            for item in entry.messages:
                if item.begins_turn:
                    self.record = TurnRecord.of(item.id, item.ordinal)
                    self.variants = set()
            event = EVENT.of(entry)
            if event and BRANCH.of(entry) is not None:
                self.variants.add((event.first_turn, event.variant))
            if self.record:
                self.record.add(entry.messages, own, shown_event(entry))


class _Seen(NamedTuple):
    """Result of a poll: the worker of the last turn, the draft of the reply, and then the log."""

    log: Snapshot
    lease: TurnLease | None
    draft: Draft | None


class Watcher:
    """Watches conversations of a store."""

    def __init__(
        self, records: Records, turns: Turns, services: TurnServices, changes: Changes
    ) -> None:
        self._reader = services.reader
        self._records = records
        self._turns = turns
        self._variants = services.variants
        self._leases = services.leases
        self._drafts = services.drafts
        self._changes = changes

    async def watch(
        self, scope: Scope, *, after: int | None, limit: int, full: bool
    ) -> AsyncGenerator[ConversationUpdate]:
        """Yield what changes; see `Conversation.watch`."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_LIMIT)
        check_ordinals(after=after)
        told: _Told | None = None
        with self._changes.watched() as watched:
            while True:
                try:
                    seen = await self._look(scope)
                    watched.conversation = seen.log.cached.conversation if seen else ""
                    if told is None and seen:
                        told = await self._begin(seen.log, after, limit)
                    elif told is None or told.conversation != watched.conversation:
                        told = _Told(watched.conversation)
                    async with aclosing(self._news(seen, told, full=full)) as updates:
                        async for update in updates:
                            yield update
                except ConversationDeletedError:
                    continue  # the next read finds what the scope has now
                await self._changes.wait(watched)

    async def _look(self, scope: Scope) -> _Seen | None:
        await self._reader.schema.check()  # a watch may last for days
        cached = await self._reader.find(scope)
        if cached is None:
            return None
        async with self._reader.reading(cached):
            # The lease first: what a worker appends before it gives up its lease is in the log that is read then.
            lease, draft = await self._work(cached.conversation)
            return _Seen(await self._reader.snapshot(cached), lease, draft)

    async def _begin(self, log: Snapshot, after: int | None, limit: int) -> _Told:
        """Return what a reader knows that has the messages up to an ordinal; else it gets the newest ones."""
        conversation = log.cached.conversation
        if after is None or after > log.tail.messages:
            rows, _ = await read_page(self._reader, log.cached, limit=limit)
            return _Told(conversation, last=rows[0].message.ordinal - 1 if rows else 0)
        if not log.active.has(after):
            after = log.active.through(after)[-1].first - 1
        return _Told(conversation, last=after, replaces_from=after + 1)

    async def _news(
        self, seen: _Seen | None, told: _Told, *, full: bool
    ) -> AsyncGenerator[ConversationUpdate]:
        """Yield what the log has that was not told; nothing if it has nothing new."""
        log = seen.log if seen else None
        if log:
            told.follow(log)
        is_due = told.replaces_from > 0
        update = ConversationUpdate(replaces_from=told.replaces_from or told.last + 1)
        async with aclosing(self._messages(log, told, full=full)) as batches:
            async for messages in batches:
                if update.messages:
                    yield update
                    update = ConversationUpdate(replaces_from=told.last + 1)
                told.last = messages[-1].ordinal
                is_due = True
                update = update.model_copy(update={"messages": messages})
        state = await self._state(seen, told) if seen else None
        if seen and state and state.status == "interrupted" and state != told.state:
            state = await self._confirmed(seen, told, state)
        if is_due or state != told.state:
            yield update.model_copy(update={"turn": state})
        told.log = log
        told.state = state
        told.replaces_from = 0

    async def _messages(
        self, log: Snapshot | None, told: _Told, *, full: bool
    ) -> AsyncGenerator[list[StoredMessage]]:
        """Yield the messages after the last one that was told, and add to the record of the last turn."""
        if log is None:
            return
        async with (
            self._reader.reading(log.cached),
            aclosing(self._reader.batches(log, start=await self._start(log, told))) as batches,
        ):
            async for entries in batches:
                stored = await self._records.listed(log, rows_of(entries), full=full)
                told.fold(entries, stored)
                if new := [message for message in stored if message.ordinal > told.last]:
                    yield new

    async def _start(self, log: Snapshot, told: _Told) -> int:
        """Return the number of the entry to read from; of the last turn, all is read."""
        if told.log:
            return told.log.tail.entries + 1
        outline = await self._turns.outline(log.cached.scope, before=None, limit=1)
        first = min([told.last + 1, *(turn.first for turn in outline)])
        return await self._reader.entry_with(log.cached, first)

    async def _state(self, seen: _Seen, told: _Told) -> TurnState | None:
        """Return the state of the last turn, or of what is to replace an answer or a question since then."""
        log, lease, draft = seen
        if (record := told.record) is None:
            return None
        if told.log is None and log.active.has_long_gap(record.fold.question, log.tail.messages):
            for event in await self._reader.events_in_gaps(log, record.turn_id, told.variants):
                record.fold.add((), event)
        record.fold.settle(log.tail)
        places = {place for place, _ in told.variants}
        if lease and not lease.is_for(record.turn_id, ""):
            places.add(lease.turn)
        pending = list[FoundTurn]()
        for turn_id in sorted(places):
            place = await self._variants.unfinished(log.cached.scope, turn_id, log)
            if place and (variant := await self._variants.newest_pending(place, lease)):
                pending.append(variant)
        if not pending:
            return _state_of(record, "", log.tail, lease, draft)
        return _state_of_variant(max(pending, key=_last_entry), lease, draft)

    async def _confirmed(self, seen: _Seen, told: _Told, state: TurnState) -> TurnState:
        """Look again before a turn is told as interrupted: it may have begun after the lease was read."""
        newer = await self._look(seen.log.cached.scope)
        if newer and newer.log.tail.entries > seen.log.tail.entries:
            return state.model_copy(update={"status": "running"})  # the next update has the rest
        return await self._state(newer._replace(log=seen.log), told) or state if newer else state

    async def pending(self, scope: Scope, turn_id: str) -> TurnState | None:
        """Return what `Turn.pending` says of a turn."""
        if (place := await self._variants.unfinished(scope, turn_id)) is None:
            return None
        lease, draft = await self._work(place.log.cached.conversation)
        variant = await self._variants.newest_pending(place, lease)
        return _state_of_variant(variant, lease, draft) if variant else None

    async def _work(self, conversation: str) -> tuple[TurnLease | None, Draft | None]:
        lease, draft = await together(
            self._leases.holder(conversation), self._drafts.find(conversation)
        )
        return lease, draft


def _last_entry(variant: FoundTurn) -> int:
    """Return the number of the last entry of a variant."""
    return variant.branch.totals.entries if variant.branch else 0


def _state_of_variant(
    variant: FoundTurn, lease: TurnLease | None, draft: Draft | None
) -> TurnState:
    """Return the state of a variant that views do not show yet."""
    return _state_of(variant.record, variant.variant, variant.tail, lease, draft)


def _state_of(
    record: TurnRecord, variant: str, tail: Totals, lease: TurnLease | None, draft: Draft | None
) -> TurnState:
    """Return the state of a turn, or of a variant of it; a draft counts until its reply is in the log."""
    key = "" if variant == record.turn_id else variant
    if record.is_finished:
        return TurnState(
            turn_id=record.turn_id, status="stopped" if record.is_stopped else "finished"
        )
    status: Status = "interrupted"
    if record.is_waiting:
        status = "waiting"
    elif lease is not None and lease.is_for(record.turn_id, variant):
        status = "running"
    is_own = draft and draft.stands_at(record.turn_id, variant, tail.messages)
    return TurnState(
        turn_id=record.turn_id,
        variant_id=key,
        status=status,
        draft=draft.text if draft and is_own else "",
        waiting_calls=tuple(record.undecided),
    )

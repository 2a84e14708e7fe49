"""Watch a conversation: send a reader new messages, the state of the last turn and its draft as they change.

A watcher reads the entries after those that it has read, and folds them into the record of the last turn. After a
change of the active messages, such as a rewind, it reads again from the first message that is affected.
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
from convstore.runtime.changes import ChangeFeed
from convstore.runtime.log_reader import Snapshot
from convstore.turns.held import TurnServices
from convstore.turns.record_reader import FoundTurn
from convstore.values.models import ConversationUpdate, Status, StoredMessage, TurnState
from convstore.values.scope import Scope, check_number, check_ordinals

_MAX_LIMIT = 1_000


@dataclass(slots=True)
class _SentState:
    """A conversation as it was last sent to a reader.

    Attributes:
        conversation: Its id; "" if the scope has no conversation.
        last: Ordinal of the last message.
        replaces_from: The next update replaces messages from this ordinal on; 0 if it only adds some.
        log: The log as it was read last; None if the entry to read from has to be found again.
        record: The last turn, None before the first one.
        variants: Places and ids of the variants that were begun after the last turn.
        state: State of the last turn; None before the first one.
    """

    conversation: str = ""
    last: int = 0
    replaces_from: int = 1
    log: Snapshot | None = None
    record: TurnRecord | None = None
    variants: set[tuple[str, str]] = field(default_factory=set)
    state: TurnState | None = None

    def follow(self, log: Snapshot) -> None:
        """Go back to the first message that was sent and is rewound now, or was left out and is active again."""
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


class _Poll(NamedTuple):
    """Result of a poll. The lease and the draft were read before the log."""

    log: Snapshot
    lease: TurnLease | None
    draft: Draft | None


class Watcher:
    """Watches conversations of a store."""

    def __init__(
        self, records: Records, turns: Turns, services: TurnServices, changes: ChangeFeed
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
        """Yield updates as the conversation changes; see `Conversation.watch`."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_LIMIT)
        check_ordinals(after=after)
        sent: _SentState | None = None
        with self._changes.watched() as watched:
            while True:
                try:
                    poll = await self._poll(scope)
                    watched.conversation = poll.log.cached.conversation if poll else ""
                    if sent is None and poll:
                        sent = await self._begin(poll.log, after, limit)
                    elif sent is None or sent.conversation != watched.conversation:
                        sent = _SentState(watched.conversation)
                    async with aclosing(self._updates(poll, sent, full=full)) as updates:
                        async for update in updates:
                            yield update
                except ConversationDeletedError:
                    continue  # the next poll finds the scope's new conversation, if any
                await self._changes.wait(watched)

    async def _poll(self, scope: Scope) -> _Poll | None:
        await self._reader.schema.check()  # a watch may last for days
        cached = await self._reader.find(scope)
        if cached is None:
            return None
        async with self._reader.reading(cached):
            # The lease first, so that the log has everything that its holder appended before it gave the lease back.
            lease, draft = await self._lease_and_draft(cached.conversation)
            return _Poll(await self._reader.snapshot(cached), lease, draft)

    async def _begin(self, log: Snapshot, after: int | None, limit: int) -> _SentState:
        """Return the state for a reader that has the messages up to an ordinal; None sends the newest ones."""
        conversation = log.cached.conversation
        if after is None or after > log.tail.messages:
            rows, _ = await read_page(self._reader, log.cached, limit=limit)
            return _SentState(conversation, last=rows[0].message.ordinal - 1 if rows else 0)
        if not log.active.has(after):
            after = log.active.through(after)[-1].first - 1
        return _SentState(conversation, last=after, replaces_from=after + 1)

    async def _updates(
        self, poll: _Poll | None, sent: _SentState, *, full: bool
    ) -> AsyncGenerator[ConversationUpdate]:
        """Yield the changes since the last update; nothing if there are none."""
        log = poll.log if poll else None
        if log:
            sent.follow(log)
        is_due = sent.replaces_from > 0
        update = ConversationUpdate(replaces_from=sent.replaces_from or sent.last + 1)
        async with aclosing(self._messages(log, sent, full=full)) as batches:
            async for messages in batches:
                if update.messages:
                    yield update
                    update = ConversationUpdate(replaces_from=sent.last + 1)
                sent.last = messages[-1].ordinal
                is_due = True
                update = update.model_copy(update={"messages": messages})
        state = await self._state(poll, sent) if poll else None
        if poll and state and state.status == "interrupted" and state != sent.state:
            state = await self._confirmed(poll, sent, state)
        if is_due or state != sent.state:
            yield update.model_copy(update={"turn": state})
        sent.log = log
        sent.state = state
        sent.replaces_from = 0

    async def _messages(
        self, log: Snapshot | None, sent: _SentState, *, full: bool
    ) -> AsyncGenerator[list[StoredMessage]]:
        """Yield the messages after the last one that was sent, and add them to the record of the last turn."""
        if log is None:
            return
        async with (
            self._reader.reading(log.cached),
            aclosing(self._reader.batches(log, start=await self._start(log, sent))) as batches,
        ):
            async for entries in batches:
                stored = await self._records.listed(log, rows_of(entries), full=full)
                sent.fold(entries, stored)
                if new := [message for message in stored if message.ordinal > sent.last]:
                    yield new

    async def _start(self, log: Snapshot, sent: _SentState) -> int:
        """Return the number of the entry to read from; the first read includes the whole last turn."""
        if sent.log:
            return sent.log.tail.entries + 1
        outline = await self._turns.outline(log.cached.scope, before=None, limit=1)
        first = min([sent.last + 1, *(turn.first for turn in outline)])
        return await self._reader.entry_with(log.cached, first)

    async def _state(self, poll: _Poll, sent: _SentState) -> TurnState | None:
        """Return the state of the last turn, or of the newest unfinished variant of a turn."""
        log, lease, draft = poll
        if (record := sent.record) is None:
            return None
        if sent.log is None and log.active.has_long_gap(record.fold.question, log.tail.messages):
            for event in await self._reader.events_in_gaps(log, record.turn_id, sent.variants):
                record.fold.add((), event)
        record.fold.apply_tail(log.tail)
        places = {place for place, _ in sent.variants}
        if lease and not lease.is_for(record.turn_id, ""):
            places.add(lease.turn)
        pending: list[FoundTurn] = []
        for turn_id in sorted(places):
            place = await self._variants.unfinished(log.cached.scope, turn_id, log)
            if place and (variant := await self._variants.newest_pending(place, lease)):
                pending.append(variant)
        if not pending:
            return _state_of(record, "", log.tail, lease, draft)
        return _state_of_variant(max(pending, key=_last_entry), lease, draft)

    async def _confirmed(self, poll: _Poll, sent: _SentState, state: TurnState) -> TurnState:
        """Poll again before a turn is sent as interrupted: its worker may have begun after the lease was read."""
        newer = await self._poll(poll.log.cached.scope)
        if newer and newer.log.tail.entries > poll.log.tail.entries:
            return state.model_copy(update={"status": "running"})  # the next update has the rest
        return await self._state(newer._replace(log=poll.log), sent) or state if newer else state

    async def pending(self, scope: Scope, turn_id: str) -> TurnState | None:
        """Return the state of the newest unfinished variant of a turn, for `Turn.pending`; None without one."""
        if (place := await self._variants.unfinished(scope, turn_id)) is None:
            return None
        lease, draft = await self._lease_and_draft(place.log.cached.conversation)
        variant = await self._variants.newest_pending(place, lease)
        return _state_of_variant(variant, lease, draft) if variant else None

    async def _lease_and_draft(self, conversation: str) -> tuple[TurnLease | None, Draft | None]:
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

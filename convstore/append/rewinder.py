"""Rewind a conversation to edit or regenerate, and undo that, by appending rewind entries; see `log.rewind`.

A rewind entry is inserted after the last entry, like any append. If another writer takes the number, the change is
planned again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from convstore.append.condition import ANYWHERE, Condition
from convstore.exceptions import (
    CorruptDocumentError,
    InvalidInputError,
    UnknownMessageError,
)
from convstore.log.entry import Entry, Facts, Totals
from convstore.log.facts.event import EVENT
from convstore.log.facts.items import ITEMS, EntryItem, active_items, item_rows
from convstore.log.facts.standing import STANDING, ShownVariant, Standing
from convstore.log.rewind import NO_REWINDS, ActiveChange, Rewinds, rewind_entry
from convstore.log.totals import totals_after
from convstore.messages.encoding import decode_message
from convstore.mongo.keys import entry_id
from convstore.mongo.log import SlotTaken, StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import append_timeout
from convstore.runtime.head_refresh import HeadRefresher
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import Snapshot
from convstore.runtime.places import place_at, standing_of
from convstore.runtime.retrying import until_written
from convstore.values.scope import Scope

Reselect = Callable[[Snapshot], Awaitable[None]]
"""Makes the longest summary of active messages the current one; injected, as `compaction.history` is a room above."""


class PlannedChange(NamedTuple):
    """A change of the active messages and the log that it was made for; no change if the log has that state already."""

    log: Snapshot
    change: ActiveChange | None


_Plan = Callable[[], Awaitable[PlannedChange]]


class RewindResult(NamedTuple):
    """The number of messages that were rewound or restored, and the totals of the log after that."""

    moved: int
    end: Totals


class Rewinder:
    """Changes the set of active messages of a conversation."""

    def __init__(self, ends: LogEndReader, refresher: HeadRefresher, reselect: Reselect) -> None:
        reader = ends.reader
        self._reader = reader
        self._states = ends.states
        self._log = reader.log
        self._cache = reader.cache
        self._clock = reader.clock
        self._refresher = refresher
        self._reselect = reselect

    async def rewind(
        self, scope: Scope, message_id: str, condition: Condition = ANYWHERE
    ) -> RewindResult:
        """Rewind a message or an item and all after it; see `Conversation.rewind`."""
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, [message_id]) if cached else {}
        if cached is None or not (
            rows or await self._log.entries_with_items(cached.conversation, [message_id])
        ):
            raise UnknownMessageError(message_id)

        async def plan() -> PlannedChange:
            log = await self._fresh(cached)
            change = None
            if not rows:
                change = await self._to_item(log, message_id)
            elif log.active.has(rows[message_id].message.ordinal):
                row = rows[message_id]
                change = await self._to(log, row.message.ordinal, row=row)
            return PlannedChange(log, change)

        before, after = await self.append(cached, plan, condition)
        return RewindResult(before.active - after.active, after)

    async def _to(
        self, log: Snapshot, ordinal: int, *cuts: EntryItem, row: StoredMessageRow | None = None
    ) -> ActiveChange:
        """Return the rewind to an active message, or to the end of the log."""
        if ordinal > log.tail.messages:
            facts = ITEMS.put(cuts)
            return ActiveChange(
                log.active.ranges, ordinal, log.tail.entries + 1, log.tail, facts=facts
            )
        entry, point = await self.point(log.cached, ordinal, log.active)
        row = row or await self._log.message_at(log.cached.conversation, ordinal)
        standing = await self._standing_without(log, row) if row else None
        facts = _facts(standing, cuts)
        return ActiveChange(log.active.through(ordinal), ordinal, entry, point, facts=facts)

    async def _standing_without(self, log: Snapshot, row: StoredMessageRow) -> Standing | None:
        """Return the variant shown at the place of a turn once a message and all later ones are rewound.

        Returns None unless the message is a question or follows one directly. Two commands at most, rarely four.
        """
        turn = ""
        ordinal = row.message.ordinal
        if not row.message.begins_turn:
            question = await self._before(log, row, log.active.last_active(ordinal - 1))
            if question is None or not question.message.begins_turn:
                return None
            row = question
            turn = question.message.id
        return (await place_at(self._reader, log, row)).standing.changed(ShownVariant(turn))

    async def _before(
        self, log: Snapshot, row: StoredMessageRow, ordinal: int
    ) -> StoredMessageRow | None:
        """Return the message with an earlier ordinal than that of a row, if it exists; it may be in the same entry."""
        for message in row.entry.messages:
            if message.ordinal == ordinal:
                return StoredMessageRow(message, (), row.entry)
        return await self._log.message_at(log.cached.conversation, ordinal) if ordinal else None

    async def _to_item(self, log: Snapshot, id_: str) -> ActiveChange | None:
        """Return the rewind to an item, with the messages and items after it; None if it is not active."""
        read = partial(self._log.entries_with_items, log.cached.conversation)
        after = next(row.item.after for row in item_rows(await read([id_])) if row.item.id == id_)
        rows = item_rows(await read(after=after, before=after + 1))
        found = next((row for row in active_items(rows, log.active) if row.item.id == id_), None)
        if found is None:
            return None
        cut = EntryItem("", "", found.item.after, cut=found.place)
        return await self._to(log, log.active.next_active(found.item.after + 1), cut)

    async def undo(
        self, scope: Scope, message_id: str | None, condition: Condition = ANYWHERE
    ) -> RewindResult:
        """Undo the last rewind; see `Conversation.undo_rewind`."""
        if message_id is None:
            cached = await self._reader.find(scope)
            ordinal = 0
        else:
            cached, row = await self._reader.find_message(scope, message_id)
            ordinal = row.message.ordinal
        if cached is None:
            return RewindResult(0, Totals())
        restored = 0

        async def plan() -> PlannedChange:
            nonlocal restored
            log = await self._fresh(cached)
            rewinds = log.active
            undo = log.active.undo
            is_done = rewinds.has(ordinal) if ordinal else not undo
            if is_done:
                return PlannedChange(log, None)
            before = Totals()
            if undo > 1:
                before = (await self._log.entry(cached.conversation, undo - 1)).totals
            earlier = (await self._reader.snapshot(cached, before, known=rewinds)).active
            if ordinal > before.messages or not earlier.has(ordinal):
                raise InvalidInputError(
                    f"{message_id!r} was not rewound by the last rewind, or that was undone "
                    "already; undo later rewinds first, with undo_rewind()"
                )
            undone = await self._log.entry(cached.conversation, undo)
            restored = before.active - undone.totals.active
            standing = await self._standing_after_undo(log, STANDING.of(undone))
            items = item_rows(await self._log.entries_with_items(cached.conversation))
            since = {row.item.after for row in items if row.place >= (undo, 0)}
            cuts = tuple(EntryItem("", "", after, cut=(undo, 0)) for after in sorted(since))
            # Messages and items that were appended since the rewind are rewound by the undo.
            change = ActiveChange(
                earlier.ranges,
                before.messages + 1,
                before.entries + 1,
                before,
                undo=earlier.undo,
                facts=_facts(standing, cuts),
            )
            return PlannedChange(log, change)

        before, after = await self.append(cached, plan, condition)
        return RewindResult(restored if after is not before else 0, after)

    async def _standing_after_undo(self, log: Snapshot, undone: Standing | None) -> Standing | None:
        """Return the variant shown at a place after an undo; None if the undone entry has no such fact, `undone`."""
        if undone is None:
            return None
        standing = await standing_of(self._reader, log, undone.place, undone.place)
        return standing.changed(undone.left)

    async def point(
        self, cached: CachedConversation, ordinal: int, rewinds: Rewinds, *, is_after: bool = False
    ) -> tuple[int, Totals]:
        """Return the number of the first entry with only messages from a point on, and the totals of the log there.

        The point is directly before an active message, or after it if `is_after` is true.
        """
        found = await self._log.entries_around(cached.conversation, before=ordinal + 1, limit=1)
        if not found:
            raise CorruptDocumentError(cached.conversation, f"message {ordinal} is missing")
        [entry] = rewinds.of(found)
        before = await self._before_entry(cached, entry, rewinds)
        kept = [message for message in entry.messages if message.ordinal < ordinal + is_after]
        try:
            decoded = [
                (message, decode_message(self._reader.codec, message.body)) for message in kept
            ]
        except ValueError as error:
            raise CorruptDocumentError(
                entry_id(cached.conversation, entry.number), str(error)
            ) from error
        return entry.number + bool(kept), totals_after(before, decoded, at=entry.at)

    async def _before_entry(
        self, cached: CachedConversation, entry: Entry, rewinds: Rewinds
    ) -> Totals:
        """Return the totals before an entry with active messages, as its own totals continue them."""
        event = EVENT.of(entry)
        if event and event.variant:
            before = (await self._reader.branch(cached, event, through=entry.number - 1)).totals
        elif entry.is_rewind:
            # a repair wrote it: the rest of a variant whose first entries were lost
            last = rewinds.last_active(entry.first - 1)
            return (await self.point(cached, last, rewinds, is_after=True))[1] if last else Totals()
        elif entry.number > 1:
            [previous] = rewinds.of([await self._log.entry(cached.conversation, entry.number - 1)])
            before = previous.totals
        else:
            before = Totals()
        # Another counter may have written the previous entry.
        return replace(
            before,
            tokens=entry.totals.tokens - sum(message.tokens for message in entry.messages),
            view_tokens=entry.totals.view_tokens
            - sum(message.view_tokens for message in entry.messages),
            counter=entry.totals.counter,
        )

    async def fresh_tail(self, cached: CachedConversation) -> Totals:
        """Read the totals of the log, without the cache: a backup may have been restored. One command."""
        tail, cached.may_have_summaries = await self._states.last_totals(cached.conversation)
        return tail

    async def _fresh(self, cached: CachedConversation) -> Snapshot:
        """Read the log without the cache. Two round trips."""
        tail = await self.fresh_tail(cached)
        return await self._reader.snapshot(cached, tail, known=NO_REWINDS)

    async def reselect(self, cached: CachedConversation, end: Totals) -> None:
        """Make the longest summary of active messages the current one. No command if the log never had a summary."""
        if cached.may_have_summaries:
            await self._reselect(await self._reader.snapshot(cached, end))

    async def append(
        self, cached: CachedConversation, plan: _Plan, condition: Condition = ANYWHERE
    ) -> tuple[Totals, Totals]:
        """Append the change that `plan` returns for a fresh log; return totals before and after.

        Raises:
            TailMoved: The log has another tail than the condition names.
            StoreUnavailableError: The call timed out; the entry may or may not be written.
        """
        async with append_timeout(), cached.lock, self._reader.reading(cached):
            try:
                write = partial(self._append_once, cached, plan, condition)
                return await until_written(write, SlotTaken)
            except BaseException:
                cached.doubt()
                raise

    async def _append_once(
        self, cached: CachedConversation, plan: _Plan, condition: Condition
    ) -> tuple[Totals, Totals]:
        """Plan and append a change once.

        Raises:
            SlotTaken: Another writer took the number of the entry.
        """
        log, change = await plan()
        tail = log.tail
        condition.check(tail)
        if change is None:
            if tail.entries:  # an earlier call may have failed after its insert
                await self._refresher.catch_up(cached, tail)
                await self.reselect(cached, tail)
            return tail, tail
        entry = rewind_entry(
            tail, log.active, change, at=self._clock.now(), link=self._clock.link()
        )
        acknowledged = cached.entries
        await self._refresher.insert(cached, entry)
        if entry.number <= acknowledged:  # the number was used before: a backup was restored
            self._cache.forget(cached)
        self._cache.confirm(cached, entry.totals)
        cached.follow(log.active.after(entry))
        await self.reselect(cached, entry.totals)
        return tail, entry.totals


def _facts(standing: Standing | None, cuts: tuple[EntryItem, ...]) -> Facts:
    """Return the facts of a rewind: the variant that it shows at a place, and the items that it removes."""
    return ITEMS.put(cuts, STANDING.put(standing))

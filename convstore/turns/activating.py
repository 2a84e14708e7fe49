"""Make a finished variant active again, with everything that followed it.

One rewind entry does this. It restores the log as it was when the variant was last active: before the newest entry that
removed the variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from convstore.append.condition import ANYWHERE, Condition
from convstore.append.rewinder import PlannedChange, Rewinder
from convstore.exceptions import InvalidInputError, MessageRewoundError, UnknownMessageError
from convstore.log.entry import Entry, Totals
from convstore.log.facts.rewound import REWOUND, Rewound
from convstore.log.facts.standing import (
    STANDING,
    ShownVariant,
    Standing,
    first_standing,
    key_of_hidden_variant,
    key_of_place,
)
from convstore.log.rewind import NO_REWINDS, ActiveChange
from convstore.mongo.parallel import together
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.runtime.places import place_of, shown_at
from convstore.values.scope import Scope

_NEWEST = 10
"""Changes of a place that are read at once; the one that removed the variant is usually among them."""


class _Activation(NamedTuple):
    """The variant to make active.

    Attributes:
        turn_id: Id of its question.
        variant: Its id.
        question: Ordinal of its question.
        place: The turn that stood at its place first.
        changes: The newest entries that changed the place, newest first.
    """

    turn_id: str
    variant: str
    question: int
    place: str
    changes: Sequence[Entry]

    @property
    def standing(self) -> Standing:
        """The variant shown at the place, by the last entry that changed it."""
        found = STANDING.of(self.changes[0]) if self.changes else None
        return found or first_standing(self.place)


class Activator:
    """Makes variants of all conversations of a store active."""

    def __init__(self, reader: LogReader, rewinder: Rewinder) -> None:
        self._reader = reader
        self._rewinder = rewinder

    async def activate(
        self, scope: Scope, turn_id: str, variant: str, condition: Condition = ANYWHERE
    ) -> Totals:
        """Make a variant active with everything that followed it; see `Conversation.activate`. Return the log's end.

        Two round trips: one reads the place, one appends the entry. Each of these costs one more: earlier rewinds that
        the place does not record, an edited question, a variant that was removed long ago, a log that had summaries,
        and another writer that appends meanwhile.
        """
        cached = await self._reader.find(scope)
        if cached is None:
            raise UnknownMessageError(turn_id, begins_turn=True)
        plan = partial(self._plan, cached, turn_id, variant)
        _, end = await self._rewinder.append(cached, plan, condition)
        return end

    async def _plan(self, cached: CachedConversation, turn_id: str, variant: str) -> PlannedChange:
        known = cached.entries
        while True:
            tail, activation = await together(
                self._rewinder.fresh_tail(cached), self._find(cached, turn_id, variant)
            )
            changed_at = activation.changes[0].number if activation.changes else 0
            if changed_at <= tail.entries == known:
                log, change = await self._change(cached, tail, activation)
                return PlannedChange(log, change)
            # the changes of the place may have been read before or after the end of the log moved
            known = tail.entries

    async def _find(self, cached: CachedConversation, turn_id: str, variant: str) -> _Activation:
        """Return the newest changes of a variant's place. One round trip; two for an edited question."""
        place = turn_id
        row = None
        if ordinals := cached.known_questions([turn_id]):
            ordinal = ordinals[turn_id]
            changes = await self._changes(cached, place)
        else:
            (_, row), changes = await together(
                self._reader.find_question(cached.scope, turn_id), self._changes(cached, place)
            )
            ordinal = row.message.ordinal
        if not changes:
            if row is None:
                _, row = await self._reader.find_question(cached.scope, turn_id)
            place = place_of(row)
        if place != turn_id:
            changes = await self._changes(cached, place)
        return _Activation(turn_id, variant, ordinal, place, changes)

    async def _changes(self, cached: CachedConversation, place: str) -> list[Entry]:
        """Return the newest entries that changed a place, newest first. One command."""
        read = self._reader.log.places.last_entries
        return await read(cached.conversation, key_of_place(place), limit=_NEWEST)

    async def _last_removal(
        self, cached: CachedConversation, activation: _Activation
    ) -> Entry | None:
        """Return the last entry that removed the variant; None if it was never removed. Rarely one command."""
        for entry in activation.changes:
            if removed_by(entry).variant == activation.variant:
                return entry
        if len(activation.changes) < _NEWEST:
            return None
        key = key_of_hidden_variant(activation.place, activation.variant)
        found = await self._reader.log.places.last_entries(cached.conversation, key, limit=1)
        return next(iter(found), None)

    async def _change(
        self, cached: CachedConversation, tail: Totals, activation: _Activation
    ) -> tuple[Snapshot, ActiveChange | None]:
        """Return the log, and the change that shows the variant; None if it is shown already."""
        removal = await self._last_removal(cached, activation)
        log, earlier = await self._logs(cached, tail, activation.changes, removal)
        standing, is_shown = await shown_at(self._reader, log, activation.standing)
        shown = standing.shown.variant
        if is_shown and shown == activation.variant:
            return log, None
        if removal is None and shown != activation.variant:
            raise InvalidInputError(
                f"turn {activation.turn_id!r} has no finished variant {activation.variant!r}; "
                "see `variants`"
            )
        can_return = is_shown or (
            not standing.shown.turn and _is_empty(log, earlier, activation.question)
        )
        if removal is None or not can_return:
            raise MessageRewoundError(activation.place)
        before = earlier.tail
        facts = STANDING.put(standing.changed(removed_by(removal)))
        ranges = earlier.active.ranges
        return log, ActiveChange(
            ranges, before.messages + 1, before.entries + 1, before, facts=facts
        )

    async def _logs(
        self,
        cached: CachedConversation,
        tail: Totals,
        changes: Sequence[Entry],
        removal: Entry | None,
    ) -> tuple[Snapshot, Snapshot]:
        """Return the log, and the log as of the entry before the one that removed the variant.

        At most one command, for entries that were not read yet.
        """
        numbers = {tail.rewind_entry, tail.whole_list}
        found = {entry.number: entry for entry in changes}
        if removal is not None:
            found[removal.number] = removal
            change = REWOUND.of(removal) or Rewound()
            numbers |= {removal.number - 1, change.previous, removal.totals.whole_list}
        missing = numbers - found.keys() - {0}
        if missing:
            found |= await self._reader.log.entries_numbered(cached.conversation, missing)
        entries = list(found.values())
        log = await self._reader.snapshot(cached, tail, entries, known=NO_REWINDS)
        if removal is None:
            return log, log
        before = found[removal.number - 1].totals if removal.number > 1 else Totals()
        return log, await self._reader.snapshot(cached, before, entries, known=NO_REWINDS)


def removed_by(entry: Entry) -> ShownVariant:
    """Return the variant that an entry removed; one without an id if the entry removed none."""
    standing = STANDING.of(entry)
    if standing is None or standing.left.variant == standing.shown.variant:
        return ShownVariant()
    return standing.left


def _is_empty(log: Snapshot, earlier: Snapshot, question: int) -> bool:
    """Return True if the active messages before a question are the same as earlier, and none follow them."""
    last = question - 1
    is_same = log.active.gaps(last) == earlier.active.gaps(last)
    return is_same and log.active.next_active(last + 1) > log.tail.messages

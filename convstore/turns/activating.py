"""Make a variant active that was finished before, with all that followed it.

That is one rewind entry, which restores the log as it was when the variant was active last: as of the entry before the
newest one that took it away.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from convstore.append.rewinder import Rewinder
from convstore.exceptions import InvalidInputError, MessageRewoundError, UnknownMessageError
from convstore.log.entry import Entry, Totals
from convstore.log.facts.rewound import REWOUND, Rewound
from convstore.log.facts.standing import STANDING, Standing, at_place, left_place
from convstore.log.rewind import NO_REWINDS, Change
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.runtime.places import Place, place_of, place_with
from convstore.values.scope import Scope


class _Earlier(NamedTuple):
    """Data that `activate` reads besides the log.

    Attributes:
        question: The question of the variant.
        changed_at: Number of the last entry that changed the place, 0 for none.
        standing: What that entry says; None without one.
        leaving: The last entry that took the variant away; None if none did.
        log: The log as of the entry before that.
    """

    question: StoredMessageRow
    changed_at: int
    standing: Standing | None
    leaving: Standing | None
    log: Snapshot


class Activator:
    """Makes variants of all conversations of a store active."""

    def __init__(self, reader: LogReader, rewinder: Rewinder) -> None:
        self._reader = reader
        self._rewinder = rewinder

    async def activate(self, scope: Scope, turn_id: str, variant: str) -> None:
        """Make a variant active with all that followed it; see `Conversation.activate`.

        Three round trips: what the log says of the place, the log as of then, and the entry; one or two more in a log
        that has changed since this store read it, or for another question.
        """
        cached = await self._reader.find(scope)
        if cached is None:
            raise UnknownMessageError(turn_id, begins_turn=True)

        async def make() -> tuple[Snapshot, Change | None]:
            known = cached.entries
            while True:
                earlier = self._earlier(cached, turn_id, variant)
                log, found = await asyncio.gather(self._rewinder.fresh(cached), earlier)
                if found.changed_at <= log.tail.entries == known:
                    return log, await self._change(log, found, variant)
                # what was read of the place may be older or newer than the end of the log
                known = log.tail.entries

        await self._rewinder.append(cached, make)

    async def _earlier(self, cached: CachedConversation, turn_id: str, variant: str) -> _Earlier:
        """Return what a change to a variant needs. Two round trips, three for another question."""
        read = self._reader.messages_by_id(cached, [turn_id])
        rows, (here, leaving) = await asyncio.gather(read, self._last_two(cached, turn_id, variant))
        if not rows:
            raise UnknownMessageError(turn_id, begins_turn=True)
        question = rows[turn_id]
        if (place := place_of(question)) != turn_id:
            here, leaving = await self._last_two(cached, place, variant)
        changed_at = 0
        standing = None
        if here is not None:
            changed_at = here.number
            standing = STANDING.of(here)
        if leaving is None:
            return _Earlier(question, changed_at, standing, None, Snapshot(cached))
        change = REWOUND.of(leaving) or Rewound()
        numbers = {leaving.number - 1, change.previous, leaving.totals.whole_list}
        numbers -= {0, leaving.number}
        entries = await self._reader.log.entries_numbered(cached.conversation, numbers)
        totals = entries[leaving.number - 1].totals if leaving.number > 1 else Totals()
        log = await self._reader.snapshot(cached, totals, list(entries.values()), known=NO_REWINDS)
        return _Earlier(question, changed_at, standing, STANDING.of(leaving), log)

    async def _last_two(
        self, cached: CachedConversation, place: str, variant: str
    ) -> tuple[Entry | None, Entry | None]:
        """Return the last entry that changed a place, and the last one that took a variant away."""
        read = self._reader.log.places.last_entry
        changed = read(cached.conversation, at_place(place))
        return await asyncio.gather(changed, read(cached.conversation, left_place(place, variant)))

    async def _change(self, log: Snapshot, earlier: _Earlier, variant: str) -> Change | None:
        """Return the change to a variant; None if it is shown."""
        place = await place_with(self._reader, log, earlier.question, earlier.standing)
        shown = place.standing.shown
        turn_id = earlier.question.message.id
        if place.is_shown and shown.variant == variant:
            return None
        if earlier.leaving is None and shown.variant != variant:
            raise InvalidInputError(
                f"turn {turn_id!r} has no finished variant {variant!r}; see `variants`"
            )
        if earlier.leaving is None or not (place.is_shown or _is_empty(place, earlier)):
            raise MessageRewoundError(place.standing.place)
        tail = earlier.log.tail
        standing = place.standing.changed(earlier.leaving.left)
        kept = earlier.log.active.ranges
        return Change(
            kept, tail.messages + 1, tail.entries + 1, tail, facts=STANDING.alone(standing)
        )


def _is_empty(place: Place, earlier: _Earlier) -> bool:
    """Return True if all that stood at a place was rewound, and nothing follows what stands before it."""
    last = earlier.question.message.ordinal - 1
    active = place.log.active
    is_same = active.gaps(last) == earlier.log.active.gaps(last)
    return (
        not place.standing.shown.turn
        and is_same
        and active.next_active(last + 1) > place.log.tail.messages
    )

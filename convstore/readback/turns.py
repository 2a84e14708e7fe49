"""Reads whole turns, in order or newest first, from any position; each message in full.

Floor 4. `conversation` calls it. The turn of a message and its number follow from its entry alone. So reading starts at
the requested position, and its cost depends only on the turns returned.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from convstore.log.entry import Entry, EntryMessage, RewoundRange
from convstore.log.repairs import corrected
from convstore.log.rewind import active_before, is_active
from convstore.log.rows import begins_turn
from convstore.log.selection import about
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.values.models import Turn
from convstore.values.scope import Scope, check_number

__all__ = ["Turns"]

_MAX_NUMBER = 2**53
_MAX_ENTRIES = 100

_Stored = tuple[Entry, EntryMessage]
"""A message as its entry holds it."""


class _Snapshot(NamedTuple):
    """The state of a log when reading began; later appends and rewinds are ignored.

    Attributes:
        cached: The conversation.
        entries: Number of its last entry.
        at_once: Number of entries in the first read; later reads are larger.
        rewound: Its rewound ranges.
    """

    cached: CachedConversation
    entries: int
    at_once: int
    rewound: tuple[RewoundRange, ...]


class Turns:
    """Reads turns for all conversations of a store."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    async def get(self, scope: Scope, turn_id: str) -> Turn | None:
        """Return the turn that begins with an active message; None if there is none."""
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, [turn_id]) if cached else {}
        if cached is None or not rows:
            return None
        ordinal = rows[turn_id].message.ordinal
        snapshot = await self._snapshot(cached, limit=1)
        async with aclosing(self._forward(snapshot, rows[turn_id].entry.number, ordinal - 1, ordinal + 1)) as turns:
            async for turn in turns:
                return turn
        return None

    async def read(
        self, scope: Scope, *, after: int | None, before: int | None, limit: int | None, newest_first: bool
    ) -> AsyncIterator[Turn]:
        """Yield whole active turns that begin in a range of ordinals, as of the start of the iteration."""
        for name, value in (("after", after), ("before", before), ("limit", limit)):
            if value is not None:
                check_number(value, name=name, minimum=0, maximum=_MAX_NUMBER)
        cached = await self._reader.find(scope)
        remaining = _MAX_NUMBER if limit is None else limit
        if cached is None or not remaining:
            return
        snapshot = await self._snapshot(cached, limit=remaining)
        span = (after or 0, _MAX_NUMBER if before is None else before)
        reading = self._backward(snapshot, *span) if newest_first else self._forward(snapshot, None, *span)
        async with aclosing(reading) as turns:
            async for turn in turns:
                yield turn
                remaining -= 1
                if not remaining:
                    return

    async def _snapshot(self, cached: CachedConversation, *, limit: int) -> _Snapshot:
        async with self._reader.reading(cached):
            tail = await self._reader.tail(cached)
            at_once = min(about(limit, tail.turns, tail.entries), _MAX_ENTRIES)
            return _Snapshot(cached, tail.entries, at_once, await self._reader.gaps(cached, tail.marker))

    async def _active_messages(self, snapshot: _Snapshot, start: int) -> AsyncGenerator[_Stored, None]:
        """Yield the active messages from an entry on, in order."""
        walk = self._reader.walk(snapshot.cached.scope, start=start, at_once=snapshot.at_once)
        async with aclosing(walk) as entries:
            async for _, found in entries:
                if found.number > snapshot.entries:
                    return
                [entry] = corrected([found], snapshot.cached.repair)
                for stored in entry.messages:
                    if is_active(snapshot.rewound, stored.ordinal):
                        yield entry, stored

    async def _forward(
        self, snapshot: _Snapshot, start: int | None, after: int, before: int
    ) -> AsyncGenerator[Turn, None]:
        """Yield the turns that begin after one ordinal and before another, in order.

        Args:
            snapshot: The state of the log.
            start: Number of the entry to begin with; None to look it up.
            after: Turns begin after this ordinal.
            before: Turns begin before this ordinal.
        """
        if start is None:
            start = await self._entry_of(snapshot.cached, after + 1) if after else 1
        turn_messages: list[_Stored] = []
        async with aclosing(self._active_messages(snapshot, start or snapshot.entries + 1)) as messages:
            async for one in messages:
                if one[1].ordinal <= after:
                    continue
                if begins_turn(*one):
                    if turn_messages:
                        yield await self._whole(snapshot.cached, turn_messages, is_last=False)
                    if one[1].ordinal >= before:
                        return
                    turn_messages = []
                elif not turn_messages:
                    continue  # the rest of a turn that began before
                turn_messages.append(one)
        if turn_messages:
            yield await self._whole(snapshot.cached, turn_messages, is_last=True)

    async def _backward(self, snapshot: _Snapshot, after: int, before: int) -> AsyncGenerator[Turn, None]:
        """Yield the same turns, newest first."""
        end = await self._end(snapshot, before)
        is_last = end is None
        number, before = (snapshot.entries + 1, _MAX_NUMBER) if end is None else end
        at_once = snapshot.at_once
        turn_messages: list[_Stored] = []
        while number > 1:
            number = active_before(snapshot.rewound, number)
            entries = await self._entries_before(snapshot, number, at_once)
            at_once = min(2 * at_once, _MAX_ENTRIES)
            for one in _newest_first(entries):
                stored = one[1]
                if stored.ordinal >= before or not is_active(snapshot.rewound, stored.ordinal):
                    continue
                turn_messages.append(one)
                if not begins_turn(*one):
                    continue
                if stored.ordinal <= after:
                    return
                yield await self._whole(snapshot.cached, turn_messages[::-1], is_last=is_last)
                turn_messages, is_last = [], False
            number = entries[0].number if entries else 1

    async def _end(self, snapshot: _Snapshot, before: int) -> tuple[int, int] | None:
        """Return the start of the first turn at or after an ordinal: the number after its entry, and its ordinal.

        None if there is no such turn.
        """
        number = await self._entry_of(snapshot.cached, max(before, 1)) if before < _MAX_NUMBER else None
        if number is None:
            return None
        async with aclosing(self._active_messages(snapshot, number)) as messages:
            async for entry, stored in messages:
                if stored.ordinal >= before and begins_turn(entry, stored):
                    return entry.number + 1, stored.ordinal
        return None

    async def _entry_of(self, cached: CachedConversation, ordinal: int) -> int | None:
        """Return the number of the entry that holds a message; None if there is no such message."""
        row = await self._reader.message_at(cached, ordinal)
        return row.entry.number if row else None

    async def _entries_before(self, snapshot: _Snapshot, number: int, at_once: int) -> Sequence[Entry]:
        if number <= 1:
            return []
        start = max(1, number - at_once)
        async with self._reader.reading(snapshot.cached):
            entries = await self._reader.entries(snapshot.cached, start=start, before=number, is_whole=True)
            return corrected(entries, snapshot.cached.repair)

    async def _whole(self, cached: CachedConversation, turn_messages: Sequence[_Stored], *, is_last: bool) -> Turn:
        async with self._reader.reading(cached):
            messages = await self._reader.decode_whole(cached, [stored for _, stored in turn_messages])
        (entry, first), (_, last) = turn_messages[0], turn_messages[-1]
        return Turn(
            turn_id=first.id,
            number=entry.turn_at(first.ordinal),
            first=first.ordinal,
            last=last.ordinal,
            created_at=entry.at,
            messages=messages,
            is_finished=not is_last or (last.type == "ai" and not last.calls),
        )


def _newest_first(entries: Sequence[Entry]) -> list[_Stored]:
    return [(entry, stored) for entry in reversed(entries) for stored in reversed(entry.messages)]

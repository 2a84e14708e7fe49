"""Reads whole turns, in order or newest first, from any position; each message in full.

The turn of a message and its number follow from its entry alone. So reading starts at the requested position, and its
cost depends only on the turns returned.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple

from convstore.log.rows import begins_turn
from convstore.log.selection import about
from convstore.log.stored_message import stamp_of
from convstore.runtime.active_log import LogMessage, in_order, newest_first
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.models import Turn
from convstore.values.scope import Scope, check_number
from convstore.values.stamps import TurnOutline

_MAX_NUMBER = 2**53
_MAX_ENTRIES, _MAX_OUTLINE = 100, 1_000
_TEXT_CHARACTERS = 120


class _StoredTurn(NamedTuple):
    """The messages of a turn with their entries; `is_last` if no other turn follows."""

    messages: list[LogMessage]
    is_last: bool

    def facts(self) -> dict[str, Any]:
        """Return what `Turn` and `TurnOutline` both say of it."""
        (entry, first), (_, last) = self.messages[0], self.messages[-1]
        return {
            "turn_id": first.id,
            "number": entry.turn_at(first.ordinal),
            "first": first.ordinal,
            "last": last.ordinal,
            "created_at": entry.at,
            "is_finished": not self.is_last or (last.type == "ai" and not last.calls),
        }


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
        snapshot = await self._snapshot(cached)
        start = rows[turn_id].entry.number
        async with aclosing(self._forward(snapshot, ordinal - 1, ordinal + 1, limit=1, start=start)) as turns:
            async for turn in turns:
                return await self._whole(cached, turn)
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
        snapshot = await self._snapshot(cached)
        reading = self._backward if newest_first else self._forward
        until = _MAX_NUMBER if before is None else before
        async with aclosing(reading(snapshot, after or 0, until, limit=remaining)) as turns:
            async for turn in turns:
                yield await self._whole(cached, turn)
                remaining -= 1
                if not remaining:
                    return

    async def outline(self, scope: Scope, *, before: int | None, limit: int) -> list[TurnOutline]:
        """Return what is known of the last turns that begin before an ordinal without their contents, in order."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_OUTLINE)
        if before is not None:
            check_number(before, name="before", minimum=0, maximum=_MAX_NUMBER)
        cached = await self._reader.find(scope)
        if cached is None:
            return []
        snapshot, found = await self._snapshot(cached), list[TurnOutline]()
        until = _MAX_NUMBER if before is None else before
        async with aclosing(self._backward(snapshot, 0, until, limit=limit)) as turns:
            async for turn in turns:
                found.append(self._outline(cached, turn))
                if len(found) == limit:
                    break
        return found[::-1]

    async def _snapshot(self, cached: CachedConversation) -> Snapshot:
        async with self._reader.reading(cached):
            return await self._reader.snapshot(cached)

    async def _forward(
        self, snapshot: Snapshot, after: int, before: int, *, limit: int, start: int = 0
    ) -> AsyncGenerator[_StoredTurn, None]:
        """Yield the turns that begin after one ordinal and before another, in order.

        Args:
            snapshot: The log.
            after: Turns begin after this ordinal.
            before: Turns begin before this ordinal.
            limit: Number of turns that the caller may take, which sets how much is read at once.
            start: Number of the entry to begin with; 0 to look it up.
        """
        turn_messages: list[LogMessage] = []
        reading = in_order(self._reader, snapshot, after=after, at_once=_entries_at_once(snapshot, limit), start=start)
        async with aclosing(reading) as messages:
            async for one in messages:
                if begins_turn(*one):
                    if turn_messages:
                        yield _StoredTurn(turn_messages, is_last=False)
                    if one[1].ordinal >= before:
                        return
                    turn_messages = [one]
                elif turn_messages:  # else the rest of a turn that began before
                    turn_messages.append(one)
        if turn_messages:
            yield _StoredTurn(turn_messages, is_last=True)

    async def _backward(
        self, snapshot: Snapshot, after: int, before: int, *, limit: int
    ) -> AsyncGenerator[_StoredTurn, None]:
        """Yield the same turns, newest first."""
        end = await self._next_turn(snapshot, before, limit)
        turn_messages: list[LogMessage] = []
        reading = newest_first(self._reader, snapshot, before=end, at_once=_entries_at_once(snapshot, limit))
        async with aclosing(reading) as messages:
            async for one in messages:
                turn_messages.append(one)
                if begins_turn(*one):
                    if one[1].ordinal <= after:
                        return
                    yield _StoredTurn(turn_messages[::-1], is_last=end == _MAX_NUMBER)
                    turn_messages, end = [], 0

    async def _next_turn(self, snapshot: Snapshot, before: int, limit: int) -> int:
        """Return the ordinal of the first turn that begins at or after an ordinal; `_MAX_NUMBER` for none."""
        after = max(before - 1, 0)
        if after < snapshot.tail.messages:
            reading = in_order(self._reader, snapshot, after=after, at_once=_entries_at_once(snapshot, limit))
            async with aclosing(reading) as messages:
                async for one in messages:
                    if begins_turn(*one):
                        return one[1].ordinal
        return _MAX_NUMBER

    async def _whole(self, cached: CachedConversation, turn: _StoredTurn) -> Turn:
        async with self._reader.reading(cached):
            messages = await self._reader.decode_whole(cached, [stored for _, stored in turn.messages])
        return Turn(**turn.facts(), messages=messages)

    def _outline(self, cached: CachedConversation, turn: _StoredTurn) -> TurnOutline:
        (_, first), (last_entry, last) = turn.messages[0], turn.messages[-1]
        answers = [found for found in turn.messages if found[1].type == "ai"]
        end, answer = next(
            (found for found in reversed(answers) if found[1].stamp), answers[-1] if answers else (last_entry, None)
        )
        later = (one.tokens for one in end.messages if one.ordinal >= (answer.ordinal if answer else last.ordinal + 1))
        return TurnOutline(
            **turn.facts(),
            text=" ".join(self._reader.stubbed(first).text[:_TEXT_CHARACTERS].split()),
            tokens=sum(stored.tokens for _, stored in turn.messages),
            tokens_before=end.totals.tokens - sum(later),
            answer=answer.ordinal if answer else None,
            stamp=stamp_of(cached.conversation, answer) if answer else None,
        )


def _entries_at_once(snapshot: Snapshot, limit: int) -> int:
    return min(about(limit, snapshot.tail.turns, snapshot.tail.entries), _MAX_ENTRIES)

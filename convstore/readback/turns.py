"""Reads whole turns, in order or newest first, from any position; each message in full.

The turn of a message and its number follow from its entry alone, but for messages of concurrent runs, which name their
questions. So reading starts at the requested position, and its cost depends only on the turns returned, and on up to
1,000 messages after a turn without an answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from convstore.exceptions import InvalidInputError
from convstore.log.rows import Row, begins_turn
from convstore.log.stored_message import stamp_of
from convstore.mongo.drafts import Drafts
from convstore.readback.filing import AHEAD, Filer, Stray, is_over
from convstore.runtime.active_log import about, in_order, newest_first
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.models import Turn
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope, check_number
from convstore.values.stamps import TurnOutline

_MAX_NUMBER = 2**53
_MAX_ENTRIES, _MAX_OUTLINE = 100, 1_000
_TEXT_CHARACTERS = 120


_StoredTurn = list[Row]
"""The messages of a turn."""


class Turns:
    """Reads turns for all conversations of a store."""

    def __init__(self, reader: LogReader, drafts: Drafts) -> None:
        self._reader, self._drafts = reader, drafts

    async def get(self, scope: Scope, turn_id: str) -> Turn | None:
        """Return the turn that begins with an active message; None if there is none."""
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, [turn_id]) if cached else {}
        if cached is None or not rows:
            return None
        ordinal, start = rows[turn_id].message.ordinal, rows[turn_id].entry.number
        log = await self._snapshot(cached)
        at_once = _entries_with(log, 1)
        async with aclosing(self._forward(log, ordinal - 1, ordinal + 1, at_once=at_once, start=start)) as turns:
            async for turn in turns:
                return await self._with_draft(log, await self._whole(log, turn))
        return None

    async def _with_draft(self, log: Snapshot, turn: Turn) -> Turn:
        """Return a turn with the reply that is being streamed, or was when its worker was killed."""
        draft = None if turn.is_finished else await self._drafts.find(log.cached.conversation)
        if draft is None or (draft.turn, draft.variant, draft.after) != (turn.turn_id, "", log.tail.messages):
            return turn
        return turn.model_copy(update={"draft": draft.text})

    async def read(
        self, scope: Scope, *, after: int | None, before: int | None, limit: int | None, newest_first: bool
    ) -> AsyncGenerator[Turn, None]:
        """Yield whole active turns that begin in a range of ordinals, as of the start of the iteration."""
        for name, value in (("after", after), ("before", before), ("limit", limit)):
            if value is not None:
                check_number(value, name=name, minimum=0, maximum=_MAX_NUMBER)
        async with aclosing(self._turns_between(scope, after, before, limit, newest_first=newest_first)) as turns:
            async for log, turn in turns:
                yield await self._whole(log, turn)

    async def outline(self, scope: Scope, *, before: int | None, limit: int) -> list[TurnOutline]:
        """Return what is known of the last turns that begin before an ordinal without their contents, in order."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_OUTLINE)
        if before is not None:
            check_number(before, name="before", minimum=0, maximum=_MAX_NUMBER)
        async with aclosing(self._turns_between(scope, None, before, limit, newest_first=True)) as turns:
            return [self._outline(log, turn) async for log, turn in turns][::-1]

    async def last_policy(self, scope: Scope) -> HistoryPolicy | None:
        """Return the policy of the newest stamp; see `Conversation.last_policy`."""
        for limit in (2, 50):
            for turn in reversed(await self.outline(scope, before=None, limit=limit)):
                with suppress(InvalidInputError):
                    if turn.stamp:
                        return turn.stamp.history_policy
        return None

    async def _snapshot(self, cached: CachedConversation) -> Snapshot:
        async with self._reader.reading(cached):
            return await self._reader.snapshot(cached)

    async def _turns_between(
        self, scope: Scope, after: int | None, before: int | None, limit: int | None, *, newest_first: bool
    ) -> AsyncGenerator[tuple[Snapshot, _StoredTurn], None]:
        """Yield up to `limit` turns that begin in a range of ordinals, each with the log."""
        cached = await self._reader.find(scope)
        remaining = _MAX_NUMBER if limit is None else limit
        if cached is None or not remaining:
            return
        log, reading = await self._snapshot(cached), self._backward if newest_first else self._forward
        until = _MAX_NUMBER if before is None else before
        async with aclosing(reading(log, after or 0, until, at_once=_entries_with(log, remaining))) as turns:
            async for turn in turns:
                yield log, turn
                remaining -= 1
                if not remaining:
                    return

    async def _forward(
        self, log: Snapshot, after: int, before: int, *, at_once: int, start: int = 0
    ) -> AsyncGenerator[_StoredTurn, None]:
        """Yield the turns that begin after one ordinal and before another, in order.

        A turn that is not over waits for messages of it that follow a later question.

        Args:
            log: The log.
            after: Turns begin after this ordinal.
            before: Turns begin before this ordinal.
            at_once: Number of entries to read first.
            start: Number of the entry to begin with; 0 to look it up.
        """
        filer, held = Filer(self._reader, log), list[_StoredTurn]()
        async with aclosing(self._segments(log, after, at_once=at_once, start=start)) as segments:
            async for segment, end in segments:
                own, strays = await filer.split(segment)
                if own and own[0].message.ordinal < before:
                    held.append(own)
                for stray in strays:
                    for turn in held:
                        if filer.takes(turn, stray):
                            turn.append(stray.row)
                far = segment[-1].message.ordinal - AHEAD
                while held and (is_over(held[0]) or held[0][-1].message.ordinal < far):
                    yield held.pop(0)
                if end >= before and not held:
                    return
        for turn in held:
            yield turn

    async def _segments(
        self, log: Snapshot, after: int, *, at_once: int, start: int = 0
    ) -> AsyncGenerator[tuple[_StoredTurn, int], None]:
        """Yield what stands from one human message to the next, from the first after an ordinal on, with its end."""
        turn: _StoredTurn = []
        async with aclosing(in_order(self._reader, log, after=after, at_once=at_once, start=start)) as messages:
            async for row in messages:
                if begins_turn(row):
                    if turn:
                        yield turn, row.message.ordinal
                    turn = [row]
                elif turn:  # else the rest of a turn that began before
                    turn.append(row)
        if turn:
            yield turn, log.tail.messages + 1

    async def _backward(
        self, log: Snapshot, after: int, before: int, *, at_once: int
    ) -> AsyncGenerator[_StoredTurn, None]:
        """Yield the same turns, newest first."""
        filer, strays, is_first = Filer(self._reader, log), list[Stray](), True
        end, turn = await self._next_turn(log, before, at_once), list[Row]()
        async with aclosing(newest_first(self._reader, log, before=end, at_once=at_once)) as messages:
            async for row in messages:
                turn.append(row)
                if begins_turn(row):
                    if row.message.ordinal <= after:
                        return
                    own, new = await filer.split(turn[::-1])
                    if is_first and not is_over(own) and end < _MAX_NUMBER:
                        strays = await self._strays(filer, log, end)
                    strays, is_first, turn = [*new, *strays], False, []
                    for stray in strays if own else ():
                        if filer.takes(own, stray):
                            own.append(stray.row)
                    if own:
                        yield own

    async def _strays(self, filer: Filer, log: Snapshot, first: int) -> list[Stray]:
        """Return the messages of earlier turns among the next ones from a question on."""
        found = list[Stray]()
        async with aclosing(self._segments(log, first - 1, at_once=_entries_with(log, 1))) as segments:
            async for segment, end in segments:
                found += (await filer.split(segment))[1]
                if end > first + AHEAD:
                    break
        return found

    async def _next_turn(self, log: Snapshot, before: int, at_once: int) -> int:
        """Return the ordinal of the first turn that begins at or after an ordinal; `_MAX_NUMBER` for none."""
        after = max(before - 1, 0)
        if after < log.tail.messages:
            async with aclosing(in_order(self._reader, log, after=after, at_once=at_once)) as messages:
                async for row in messages:
                    if begins_turn(row):
                        return row.message.ordinal
        return _MAX_NUMBER

    async def _whole(self, log: Snapshot, turn: _StoredTurn) -> Turn:
        async with self._reader.reading(log.cached):
            messages = await self._reader.decode_all(log.cached, [row.message for row in turn])
        return Turn(**_facts(log, turn), messages=messages)

    def _outline(self, log: Snapshot, turn: _StoredTurn) -> TurnOutline:
        answers = [row for row in turn if row.message.type == "ai"]
        answer = next((row for row in reversed(answers) if row.message.stamp), answers[-1] if answers else None)
        end, later = (answer or turn[-1]).entry, answer.message.ordinal if answer else turn[-1].message.ordinal + 1
        return TurnOutline(
            **_facts(log, turn),
            text=" ".join(self._reader.stubbed(turn[0].message).text[:_TEXT_CHARACTERS].split()),
            tokens=sum(row.message.tokens for row in turn),
            tokens_before=end.totals.tokens - sum(row.tokens for row in end.messages if row.ordinal >= later),
            answer=answer.message.ordinal if answer else None,
            stamp=stamp_of(log.cached.conversation, answer.message) if answer else None,
        )


def _entries_with(log: Snapshot, limit: int) -> int:
    return min(about(limit, log.tail.turns, log.tail.entries), _MAX_ENTRIES)


def _facts(log: Snapshot, turn: _StoredTurn) -> dict[str, Any]:
    """Return what `Turn` and `TurnOutline` both say of a turn."""
    first, last = turn[0].message, turn[-1].message
    begun = max(row.turn for row in turn if row is turn[0] or row.message.type == "human")  # a tool may have added some
    return {
        "turn_id": first.id,
        "number": turn[0].turn,
        "first": first.ordinal,
        "last": last.ordinal,
        "created_at": turn[0].entry.at,
        "is_finished": begun < log.tail.turns or log.tail.is_ended or last.is_answer,
    }

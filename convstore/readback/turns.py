"""Reads whole turns, in order or newest first, from any position; each message in full.

The turn of a message is stored with it. So reading starts at the requested position, and its cost depends only on the
returned turns: their ranges, and one look-up for messages of them that follow later questions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.log.entry import Entry, EntryMessage
from convstore.log.stored_message import stored_stamp
from convstore.log.turn_record import TurnRecord
from convstore.log.turns import turns_before
from convstore.mongo.drafts import Drafts
from convstore.readback.stored_turns import (
    EntryParts,
    StoredTurn,
    active_outside_turns,
    add_later,
    assign_to_others,
    split,
)
from convstore.runtime.active_log import estimated_entries
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot, grown
from convstore.values.models import Turn
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope, check_number, check_ordinals
from convstore.values.stamps import TurnOutline
from convstore.values.turns import TurnCall

_MAX_NUMBER = 2**53
_MAX_ENTRIES = 100
_MAX_OUTLINE = 1_000
_TEXT_CHARACTERS = 120


class Turns:
    """Reads turns for all conversations of a store."""

    def __init__(self, reader: LogReader, drafts: Drafts) -> None:
        self._reader = reader
        self._drafts = drafts

    async def get(self, scope: Scope, turn_id: str) -> Turn | None:
        """Return the turn whose first message is active and has this id, else None."""
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, [turn_id]) if cached else {}
        if cached is None or not rows:
            return None
        log = await self._snapshot(cached)
        turn = await self.stored(
            log, rows[turn_id].message.ordinal, start=rows[turn_id].entry.number
        )
        return await self._with_draft(log, await self._whole(log, turn)) if turn else None

    async def stored(self, log: Snapshot, first: int, *, start: int) -> StoredTurn | None:
        """Return the turn whose first message has an ordinal and is in the entry `start`, else None."""
        reading = self._forward(
            log, first - 1, first + 1, at_once=_entries_with(log, 1), start=start
        )
        async with aclosing(reading) as turns:
            async for turn in turns:
                return turn
        return None

    async def _with_draft(self, log: Snapshot, turn: Turn) -> Turn:
        """Add to a turn the draft of a reply that is being streamed, or was when its worker was killed."""
        draft = None if turn.is_finished else await self._drafts.find(log.cached.conversation)
        if draft is None or not draft.stands_at(turn.turn_id, "", log.tail.messages):
            return turn
        return turn.model_copy(update={"draft": draft.text, "error": draft.error})

    async def read(
        self,
        scope: Scope,
        *,
        after: int | None,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        everything: bool = False,
    ) -> AsyncGenerator[Turn, None]:
        """Yield whole turns that begin in a range of ordinals, as of the start of the iteration.

        Rewound turns and messages are left out, unless `everything` is true.
        """
        check_ordinals(after=after, before=before, limit=limit)
        found = self._turns_between(
            scope, after, before, limit, newest_first=newest_first, everything=everything
        )
        async with aclosing(found) as turns:
            async for log, turn in turns:
                yield await self._whole(log, turn)

    async def outline(self, scope: Scope, *, before: int | None, limit: int) -> list[TurnOutline]:
        """Return the outlines of the last turns that begin before an ordinal, in order."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_OUTLINE)
        check_ordinals(before=before)
        async with aclosing(
            self._turns_between(scope, None, before, limit, newest_first=True)
        ) as turns:
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
        self,
        scope: Scope,
        after: int | None,
        before: int | None,
        limit: int | None,
        *,
        newest_first: bool,
        everything: bool = False,
    ) -> AsyncGenerator[tuple[Snapshot, StoredTurn], None]:
        """Yield up to `limit` turns that begin in a range of ordinals, each with the log."""
        cached = await self._reader.find(scope)
        remaining = _MAX_NUMBER if limit is None else limit
        if cached is None or not remaining:
            return
        log = await self._snapshot(cached)
        reading = self._reading(newest_first=newest_first, everything=everything)
        until = _MAX_NUMBER if before is None else before
        async with aclosing(
            reading(log, after or 0, until, at_once=_entries_with(log, remaining))
        ) as turns:
            async for turn in turns:
                yield log, turn
                remaining -= 1
                if not remaining:
                    return

    def _reading(
        self, *, newest_first: bool, everything: bool
    ) -> Callable[..., AsyncGenerator[StoredTurn, None]]:
        """Return the method that reads turns in an order."""
        if everything:
            return self._everything_backward if newest_first else self._everything_forward
        return self._backward if newest_first else self._forward

    async def _forward(
        self, log: Snapshot, after: int, before: int, *, at_once: int, start: int = 0
    ) -> AsyncGenerator[StoredTurn, None]:
        """Yield the turns that begin after one ordinal and before another, in order.

        Args:
            log: The log.
            after: Turns begin after this ordinal.
            before: Turns begin before this ordinal.
            at_once: Number of entries to read first.
            start: Number of the entry to begin with; 0 to look it up.
        """
        held: list[StoredTurn] = []
        start = start or await self._reader.entry_with(log.cached, after + 1)
        async with aclosing(self._reader.batches(log, start=start, at_once=at_once)) as batches:
            async for entries in batches:
                rest, turns = split(entries)
                if held:
                    held[-1].extend(rest)
                held += [turn for turn in turns if turn.first.ordinal > after]
                for turn in await self._assemble_turns(log, held[:-1], before):
                    yield turn
                held = held[-1:]
                if held and held[0].first.ordinal >= before:
                    return
        for turn in await self._assemble_turns(log, held, before):
            yield turn

    async def _backward(
        self, log: Snapshot, after: int, before: int, *, at_once: int
    ) -> AsyncGenerator[StoredTurn, None]:
        """Yield the same turns, newest first. When reading from the end of the log, no look-up is needed."""
        seen: dict[int, EntryParts] = {}
        end = await self._end_of_turn(log, before, at_once)
        later = seen if end > log.tail.entries else None
        async with aclosing(self._newest_first(log, end, at_once)) as batches:
            async for entries, turns in batches:
                add_later(seen, entries)
                wanted = [turn for turn in turns if turn.first.ordinal > after]
                for turn in await self._assemble_turns(log, wanted[::-1], before, later=later):
                    yield turn
                if len(wanted) < len(turns):
                    return

    async def _everything_backward(
        self, log: Snapshot, after: int, before: int, *, at_once: int
    ) -> AsyncGenerator[StoredTurn, None]:
        """Yield the same turns and rewound ones, with all their messages, newest first.

        A rewound message may be anywhere after its question, so the log is read from its end.
        """
        elsewhere: dict[int, EntryParts] = {}
        # active messages outside turns, as long as no active question was found before them
        without: list[EntryMessage] = []
        end = log.tail.entries + 1
        whole = Snapshot(log.cached, log.tail)
        async with aclosing(self._newest_first(whole, end, at_once)) as batches:
            async for _, turns in batches:
                for turn in reversed(turns):
                    if turn.first.ordinal <= after:
                        return
                    assign_to_others(turn, elsewhere)
                    if turn.first.ordinal < before:
                        turn.assemble_everything(log, elsewhere.pop(turn.question, {}), without)
                        yield turn
                    is_active = log.active.has(turn.first.ordinal)
                    without = [] if is_active else active_outside_turns(turn, log) + without

    async def _everything_forward(
        self, log: Snapshot, after: int, before: int, *, at_once: int
    ) -> AsyncGenerator[StoredTurn, None]:
        """Yield the same turns in order, after reading all of them."""
        reading = self._everything_backward(log, after, before, at_once=max(at_once, _MAX_ENTRIES))
        async with aclosing(reading) as newest_first:
            turns = [turn async for turn in newest_first]
        for turn in reversed(turns):
            yield turn

    async def _newest_first(
        self, log: Snapshot, end: int, at_once: int
    ) -> AsyncGenerator[tuple[Sequence[Entry], list[StoredTurn]], None]:
        """Yield the entries before a number with their active messages, and the turns that begin in them.

        The newest batch comes first; each is in order.
        """
        after_range = StoredTurn()
        while (end := log.active.read_before(end)) > 1:
            start = log.active.stretch_before(end, max(1, end - at_once))
            async with self._reader.reading(log.cached):
                entries = await self._reader.entries(log.cached, start=start, before=end)
            active = log.active.of(entries)
            rest, turns = split(active)
            (turns[-1] if turns else rest).extend(after_range)
            after_range = rest
            yield active, turns
            end = start
            at_once = grown(at_once)

    async def _end_of_turn(self, log: Snapshot, before: int, at_once: int) -> int:
        """Return the number after the last entry with messages of the last turn that begins before an ordinal."""
        if before <= log.tail.messages:
            start = await self._reader.entry_with(log.cached, before)
            async with aclosing(self._reader.batches(log, start=start, at_once=at_once)) as batches:
                async for entries in batches:
                    for entry in entries:
                        if any(
                            message.begins_turn and message.ordinal >= before
                            for message in entry.messages
                        ):
                            return entry.number + 1
        return log.tail.entries + 1

    async def _assemble_turns(
        self,
        log: Snapshot,
        turns: Sequence[StoredTurn],
        before: int,
        *,
        later: Mapping[int, EntryParts] | None = None,
    ) -> list[StoredTurn]:
        """Assemble the turns that begin before an ordinal and return them.

        `later` has their parts after later questions, by turn; without it, one command looks them up.
        """
        turns = [turn for turn in turns if turn.first.ordinal < before]
        if later is None:
            found: dict[int, EntryParts] = {}
            add_later(found, await self._later(log, turns))
            later = found
        for turn in turns:
            turn.assemble(log, later.get(turn.question, {}))
            if turn.question and log.active.has_long_gap(turn.question, turn.last):
                for event in await self._reader.events_in_gaps(log, turn.first.id, turn.variants):
                    turn.logged.add((), event)
        return turns

    async def _later(self, log: Snapshot, turns: Sequence[StoredTurn]) -> Sequence[Entry]:
        """Return the entries with messages of turns after later questions. One command; zero for the newest turn."""
        questions = {turn.question for turn in turns} - {0, log.tail.turn}
        if not questions:
            return ()
        near = {number: part.entry for turn in turns for number, part in turn.range.items()}
        known = {number: entry for number, entry in near.items() if turns_before(entry) & questions}
        async with self._reader.reading(log.cached):
            found = await self._reader.log.entries_of_turns(
                log.cached.conversation, questions, known=known
            )
        shown = log.active.of([entry for entry in found if entry.number <= log.tail.entries])
        return [*known.values(), *shown]

    async def _whole(self, log: Snapshot, turn: StoredTurn) -> Turn:
        async with self._reader.reading(log.cached):
            messages = await self._reader.decode_all(log.cached, turn.messages)
        others = [message.id for message in turn.messages if message.turn != turn.question]
        gone = [message.id for message in turn.messages if not log.active.has(message.ordinal)]
        facts = {**_facts(turn), "others": tuple(others), "rewound": tuple(gone)}
        waiting = _waiting_calls(turn, messages)
        return Turn(**facts, messages=messages, waiting_calls=waiting)

    def _outline(self, log: Snapshot, turn: StoredTurn) -> TurnOutline:
        answer = _answer(turn)
        end = turn.entry_of((answer or turn.messages[-1]).ordinal)
        counted = [
            message for message in end.messages if not answer or message.ordinal < answer.ordinal
        ]
        before = end.totals.tokens - _tokens(end.messages)
        return TurnOutline(
            **_facts(turn),
            text=" ".join(self._reader.stubbed(turn.first).text[:_TEXT_CHARACTERS].split()),
            tokens=_tokens(turn.messages),
            tokens_before=before + _tokens(counted),
            answer=answer.ordinal if answer else None,
            stamp=stored_stamp(log.cached.conversation, answer) if answer else None,
        )


def _waiting_calls(turn: StoredTurn, messages: Sequence[BaseMessage]) -> tuple[TurnCall, ...]:
    """Return the calls of a turn that wait for a person, given its decoded messages."""
    if not turn.logged.undecided:
        return ()
    bodies = {
        stored.ordinal: message for stored, message in zip(turn.messages, messages, strict=True)
    }
    own = [bodies[stored.ordinal] for stored in turn.logged.messages]
    return tuple(TurnRecord.read(turn.logged, own).undecided)


def _answer(turn: StoredTurn) -> EntryMessage | None:
    """Return the last reply of a model in a turn that has a stamp, else the last reply; None without a reply."""
    replies = [message for message in turn.logged.messages if message.is_reply]
    stamped = [message for message in replies if message.stamp]
    return next(reversed(stamped or replies), None)


def _tokens(messages: Iterable[EntryMessage]) -> int:
    return sum(message.tokens for message in messages)


def _entries_with(log: Snapshot, limit: int) -> int:
    return min(estimated_entries(limit, log.tail.turns, log.tail.entries), _MAX_ENTRIES)


def _facts(turn: StoredTurn) -> dict[str, Any]:
    """Return the fields that `Turn` and `TurnOutline` share."""
    first = turn.first
    over = turn.logged.over
    return {
        "turn_id": first.id,
        "number": turn.number,
        "first": first.ordinal,
        "last": turn.messages[-1].ordinal,
        "created_at": turn.entry_of(first.ordinal).at,
        "is_finished": bool(over),
        "over": over,
    }

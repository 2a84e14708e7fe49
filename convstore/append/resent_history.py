"""Append the new part of a history that a client sends again, after comparing it with the active log.

The comparison reads the digests of the end of the log, as far as the history could match. The writer then appends the
rest directly after the last entry read. If another append came first, the comparison is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.append.resent import (
    Comparable,
    Match,
    comparable,
    compare,
    is_enough,
    is_history,
    leading_systems,
    parting,
    stored,
)
from convstore.append.writer import TailMoved, Writer
from convstore.exceptions import (
    ConversationDeletedError,
    HistoryDivergedError,
    ResentHistoryError,
    StoreError,
)
from convstore.log.entry import Entry, Totals
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.messages.values import Codec
from convstore.mongo.log_queries import LogQueries
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.clock import append_timeout, pause
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import characters_in, run_in_thread_if_long
from convstore.values.models import Receipt
from convstore.values.scope import Scope

_TRIES = 1_000
_NO_LOG = Totals()
_MARGIN = 8
_GROWTH = 4
_MAXIMUM_ENTRIES = 1_000
_BEGINNING = 200
"""Entries at the beginning of a long log that are compared to report where a history diverges from it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The part of a history that the log has.

    Attributes:
        batch: The messages of the history.
        matched: The messages of the log that equal the first ones; leading system messages may have none.
        known: Number of the history's leading messages that are in the log or skipped.
        tail: Totals of the log that was compared.
    """

    batch: tuple[Comparable, ...]
    matched: tuple[Comparable, ...] = ()
    known: int = 0
    tail: Totals = _NO_LOG

    @property
    def is_known(self) -> bool:
        """Return True if the log has more of the history than leading system messages."""
        return self.known > leading_systems(self.batch)

    def receipt(self, new: Receipt | None) -> Receipt:
        """Return the receipt: the known messages of the log, then those that were added."""
        ids, ordinals = tuple(one.id for one in self.matched), tuple(one.ordinal for one in self.matched)
        if new is None:
            return Receipt(message_ids=ids, first=min(ordinals), last=max(ordinals), ordinals=ordinals, written=0)
        ordinals += new.ordinals
        update = {"message_ids": ids + new.message_ids, "ordinals": ordinals}
        return new.model_copy(update=update | {"first": min(ordinals), "last": max(ordinals)})


class _End:
    """The part of a conversation's log, from its end, that was read.

    Attributes:
        active: The active messages, in order.
        tail: Totals of the log.
        rewinds: Decides which messages are active.
        start: The number of the first entry read; 1 if all was read, 0 if nothing.
    """

    def __init__(self, rewinds: Rewinds = NO_REWINDS) -> None:
        self.active: list[Comparable] = []
        self.tail = Totals()
        self.rewinds = rewinds
        self.start = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries before those that were read so far."""
        messages = (message for entry in entries for message in entry.messages)
        self.active[:0] = [stored(message) for message in messages if self.rewinds.is_active(message.ordinal)]
        self.start = self.rewinds.active_before(entries[0].number) if entries else 1


class Resender:
    """Appends histories to all conversations of a store."""

    def __init__(
        self, reader: LogReader, queries: LogQueries, writer: Writer, cache: ConversationCache, *, codec: Codec
    ) -> None:
        self._reader, self._queries, self._writer, self._cache = reader, queries, writer, cache
        self._codec = codec

    async def append(self, scope: Scope, messages: Sequence[BaseMessage], *, skip: bool, **options: Any) -> Receipt:
        """Write the part of a history that the log lacks; see `resent` of `Conversation.append`."""
        if not is_history(messages):
            return await self._writer.append(scope, messages, **options)
        async with append_timeout():
            return await self._append(scope, messages, skip=skip, **options)

    async def _append(self, scope: Scope, messages: Sequence[BaseMessage], *, skip: bool, **options: Any) -> Receipt:
        batch = await self._compared(messages)
        for tries in range(_TRIES):
            try:
                decision = await self._decide(scope, batch)
                if decision.is_known and not skip:
                    raise ResentHistoryError(known=decision.known)
                new = messages[decision.known :]
                written = await self._writer.append(scope, new, after=decision.tail, **options) if new else None
                receipt = decision.receipt(written)
            except (TailMoved, ConversationDeletedError):
                await pause(tries)
                continue
            for message, match in zip(reversed(messages[: decision.known]), reversed(decision.matched), strict=False):
                message.id = match.id
            return receipt
        raise StoreError(
            f"other writers were faster {_TRIES} times; append again, with fewer writers to one conversation"
        )

    async def decide(self, scope: Scope, messages: Sequence[BaseMessage]) -> Decision:
        """Find the part of a history that the log has; writes nothing, and refuses a history that differs."""
        return await self._decide(scope, await self._compared(messages))

    async def _compared(self, messages: Sequence[BaseMessage]) -> tuple[Comparable, ...]:
        def work() -> tuple[Comparable, ...]:
            return tuple(comparable(message, self._codec) for message in messages)

        return await run_in_thread_if_long(work, characters=characters_in(messages))

    async def _decide(self, scope: Scope, batch: tuple[Comparable, ...]) -> Decision:
        cached = await self._reader.find(scope)
        if cached is None:
            return Decision(batch)
        async with self._reader.reading(cached):
            end = await self._end(cached, batch)
            match = compare(batch, end.active)
            if match.known is None:
                match = await self._explained(cached, end, batch, match)
        tail = cached.tail
        if tail is None or tail.entries < end.tail.entries or tail.link == end.tail.link:
            self._cache.confirm(cached, end.tail)
        return Decision(batch, match.matched, match.known or 0, end.tail)

    async def _end(self, cached: CachedConversation, batch: Sequence[Comparable]) -> _End:
        """Read the end of the log, as far as the batch could match; usually one command."""
        end = _End()
        limit = _likely_entries(cached.tail, batch)
        end.add(await self._newest(cached, end, limit))
        while end.start > 1 and not is_enough(batch, end.active):
            limit = min(_GROWTH * limit, _MAXIMUM_ENTRIES)
            entries = await self._queries.without_content(cached.conversation, before=end.start, limit=limit)
            await self._reader.check(cached, entries, last=end.start - 1)
            end.add(entries)
        return end

    async def _newest(self, cached: CachedConversation, end: _End, limit: int) -> list[Entry]:
        """Return the last entries, and set the totals and rewound ranges of `end`."""
        entries = await self._reader.read_your_writes(
            cached,
            lambda: self._queries.without_content(cached.conversation, limit=limit),
            last=lambda found: found[-1].number if found else 0,
        )
        await self._reader.check(cached, entries)
        if entries:
            end.tail = entries[-1].totals
            if rewind_entry := next((one for one in entries if one.number == end.tail.rewind_entry), None):
                cached.follow(rewind_entry)
            end.rewinds = await self._reader.rewinds(cached, end.tail)
        return entries

    async def _explained(
        self, cached: CachedConversation, end: _End, batch: tuple[Comparable, ...], match: Match
    ) -> Match:
        """Return the match of a batch that repeats an earlier append with the same ids; refuse any other."""
        if repeated := await self._repeated(cached, end, batch):
            return Match(len(batch), repeated)
        if end.start > 1:
            beginning = _End(end.rewinds)
            entries = await self._queries.without_content(
                cached.conversation, before=min(end.start, _BEGINNING + 1), limit=_BEGINNING
            )
            beginning.add(entries)
            first = parting(batch, beginning.active)
            match = first if first.after else match._replace(before=match.before if match.after else None)
        raise HistoryDivergedError(
            after=match.after.id if match.after else None, before=match.before.id if match.before else None
        )

    async def _repeated(
        self, cached: CachedConversation, end: _End, batch: tuple[Comparable, ...]
    ) -> tuple[Comparable, ...]:
        """Return the stored messages with the ids of a batch if all are stored, equal and active; else nothing."""
        sent = batch[leading_systems(batch) :]
        rows = await self._reader.messages_by_id(cached, [one.id for one in sent], retry_if_stale=False)
        found = [stored(rows[one.id].message) for one in sent if one.id in rows]
        is_same = [one.digest for one in found] == [one.digest for one in sent]
        return tuple(found) if is_same and all(end.rewinds.is_active(one.ordinal) for one in found) else ()


def _likely_entries(tail: Totals | None, batch: Sequence[Comparable]) -> int:
    """Estimate the number of entries with as many compared messages as a batch has, plus a margin."""
    entries_each = 2.0
    if tail:
        with_tools = any(one.type == "tool" for one in batch)
        entries_each = tail.entries / max(tail.messages if with_tools else 2 * tail.turns, 1)
    return min(int(len(batch) * max(entries_each, 1)) + _MARGIN, _MAXIMUM_ENTRIES)

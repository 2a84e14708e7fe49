"""Read a conversation's log into searchable parts: its segments, and the entries after them.

Floor 4; `searcher` and `sealer` call it. A log without segments, or with damaged ones, is read whole: slower, with the
same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from convstore.index.part import IndexBuilder, Part
from convstore.index.texts import Text, texts_of, texts_of_source
from convstore.log.entry import Entry, EntryMessage, EntrySource
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.log.stored_message import read_message
from convstore.messages.values import Codec
from convstore.mongo.documents import entry_from
from convstore.mongo.newest import Newest
from convstore.mongo.segments import Segments, StoredSegment
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long

__all__ = ["MAX_UNSEALED_CHARACTERS", "MAX_UNSEALED_ENTRIES", "LogParts", "SearchedLog"]

MAX_UNSEALED_ENTRIES = 64
MAX_UNSEALED_CHARACTERS = 64_000
"""More text or entries than this after the last segment are due to be sealed."""

_ENTRIES_AT_ONCE = 100
_CHARACTERS_AT_ONCE = 4_000_000
_COST = 10
"""Splitting a text into terms takes about so many times longer than decoding it."""


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """A log as a search reads it.

    Attributes:
        parts: Its parts in order.
        rewinds: Says which messages are active.
        last: Ordinal of its last message.
        question: Ordinal of the question of the turn in progress, 0 if the last turn is finished.
        is_due: So much of it is in no segment that it is due to be sealed.
    """

    parts: Sequence[Part] = ()
    rewinds: Rewinds = NO_REWINDS
    last: int = 0
    question: int = 0
    is_due: bool = False


class LogParts:
    """Reads the logs of all conversations of a store."""

    def __init__(self, reader: LogReader, newest: Newest, segments: Segments | None, *, codec: Codec) -> None:
        self._reader, self._newest, self._segments, self._codec = reader, newest, segments, codec

    async def read(self, cached: CachedConversation, is_wanted: Callable[[str], bool]) -> SearchedLog:
        """Return the log with the terms that a query needs."""
        chain, documents = await asyncio.gather(self._chain(cached), self._tail(cached))
        if not documents:
            return SearchedLog()
        last = entry_from(documents[-1])
        cached.entries = max(cached.entries, last.number)
        builder = IndexBuilder(is_wanted)
        rewinds, (chain, entries) = await asyncio.gather(
            self._reader.rewinds(cached, last.totals), self._add_rest(cached, builder, chain, documents)
        )
        is_due = entries >= MAX_UNSEALED_ENTRIES or builder.characters >= MAX_UNSEALED_CHARACTERS
        tail = [entry_from(document) for document in documents[-4:]]
        parts: list[Part] = [*(segment.part for segment in chain), builder]
        return SearchedLog(parts, rewinds, last.last, _question(tail, rewinds), is_due)

    async def _chain(self, cached: CachedConversation) -> list[StoredSegment]:
        return await self._segments.chain(cached.conversation) if self._segments else []

    async def _tail(self, cached: CachedConversation) -> list[Mapping[str, Any]]:
        return await self._reader.read_your_writes(
            cached,
            lambda: self._newest.documents(cached.conversation, limit=MAX_UNSEALED_ENTRIES),
            last=lambda documents: _number(documents[-1]) if documents else 0,
        )

    async def _add_rest(
        self,
        cached: CachedConversation,
        builder: IndexBuilder,
        chain: list[StoredSegment],
        documents: Sequence[Mapping[str, Any]],
    ) -> tuple[list[StoredSegment], int]:
        """Add the entries after some segments; return the segments that belong to this log, and the number added."""
        until = chain[-1].until if chain else 0
        # With the last covered entry, which shows whether the log was replaced by a backup.
        tail = [entry_from(document) for document in documents if _number(document) >= until]
        if chain and (not tail or (tail[0].number == until and tail[0].totals.link != chain[-1].link)):
            return await self._add_rest(cached, builder, [], documents)
        added = 0
        async for entries in self._before(cached, tail, until):
            if chain and not added and entries[0].number == until + 1 and entries[0].after != chain[-1].link:
                return await self._add_rest(cached, builder, [], documents)
            new = [entry for entry in entries if entry.number > until]
            await self.add(cached, builder, new)
            added += len(new)
        return chain, added

    async def _before(
        self, cached: CachedConversation, tail: Sequence[Entry], until: int
    ) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries after a number in order, in batches, and the last ones as given."""
        async for entries in self.entries(cached, start=until + 1, before=tail[0].number):
            yield entries
        await self._reader.check(cached, tail)
        yield tail

    async def entries(self, cached: CachedConversation, *, start: int, before: int) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from one number and before another with their sources, in order, in batches."""
        last = list[Entry]()
        while start < before:
            end = min(start + _ENTRIES_AT_ONCE, before)
            entries = await self._newest.entries(cached.conversation, start=start, before=end, limit=end - start)
            await self._reader.check(cached, [*last, *entries], first=start - len(last), last=end - 1)
            yield entries
            start, last = end, entries[-1:]

    async def add(self, cached: CachedConversation, builder: IndexBuilder, entries: Sequence[Entry]) -> None:
        """Read the payloads of entries and add their messages to a part, a few at a time."""
        for some in _batches(entries):
            messages = [message for entry in some for message in entry.messages]
            payloads = await self._reader.payloads_of(cached, messages)
            size = sum(map(len, payloads.values())) + sum(len(message.body) for message in messages)
            await run_in_thread_if_long(partial(self._add, builder, some, payloads), characters=_COST * size)

    def _add(self, builder: IndexBuilder, entries: Sequence[Entry], payloads: dict[str, str]) -> None:
        for entry in entries:
            for message in entry.messages:
                sources = [source for source in entry.sources if source.message_id == message.id]
                texts = self.texts(message, sources, payloads.get(message.id))
                builder.add(message, texts, at=entry.at)

    def texts_of_source(self, source: EntrySource) -> list[Text]:
        """Return the searchable texts of a source that has its piece: its text and its item."""
        return list(texts_of_source(source, None, self._codec))

    def texts(self, message: EntryMessage, sources: Sequence[EntrySource], payload: str | None = None) -> list[Text]:
        """Return the searchable texts of a message; those in a payload that was not read are empty.

        Raises:
            CorruptDocumentError: The message is damaged.
        """
        return texts_of(message, sources, read_message(self._codec, message), payload, self._codec)


def _number(document: Mapping[str, Any]) -> int:
    return int(str(document["_id"]).rpartition(":")[2])


def _question(tail: Sequence[Entry], rewinds: Rewinds) -> int:
    """Return the ordinal of the question of the turn in progress; 0 if the last turn is finished."""
    messages = [one for entry in reversed(tail) for one in reversed(entry.messages) if rewinds.is_active(one.ordinal)]
    if messages and messages[0].type == "ai" and not messages[0].calls:
        return 0
    return next((one.ordinal for one in messages if one.type == "human"), 0)


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Divide entries into batches whose payloads fit into memory."""
    some: list[Entry] = []
    size = 0
    for entry in entries:
        size += sum(message.payload.ends[-1] for message in entry.messages if message.payload)
        if some and size > _CHARACTERS_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(entry)
    if some:
        yield some

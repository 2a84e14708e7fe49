"""Read a conversation's log into searchable parts.

Floor 4; `searcher` calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from convstore.index.part import IndexBuilder, Part
from convstore.index.texts import Text, texts_of
from convstore.log.entry import Entry, EntryMessage, EntrySource
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.log.stored_message import read_message
from convstore.messages.values import Codec
from convstore.mongo.newest import Newest
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long

__all__ = ["LogParts", "SearchedLog"]

_TAIL_ENTRIES = 64
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
    """

    parts: Sequence[Part] = ()
    rewinds: Rewinds = NO_REWINDS
    last: int = 0
    question: int = 0


class LogParts:
    """Reads the logs of all conversations of a store."""

    def __init__(self, reader: LogReader, newest: Newest, *, codec: Codec) -> None:
        self._reader, self._newest, self._codec = reader, newest, codec

    async def read(self, cached: CachedConversation, is_wanted: Callable[[str], bool]) -> SearchedLog:
        """Return the log with the terms that a query needs."""
        tail = await self._reader.read_your_writes(
            cached,
            lambda: self._newest.entries(cached.conversation, limit=_TAIL_ENTRIES),
            last=lambda entries: entries[-1].number if entries else 0,
        )
        if not tail:
            return SearchedLog()
        cached.entries = max(cached.entries, tail[-1].number)
        rewinds = await self._reader.rewinds(cached, tail[-1].totals)
        builder = IndexBuilder(is_wanted)
        async for entries in self._before(cached, tail):
            await self.add(cached, builder, entries)
        return SearchedLog([builder], rewinds, tail[-1].last, _question(tail, rewinds))

    async def _before(self, cached: CachedConversation, tail: Sequence[Entry]) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries in order, in batches, and the last ones as given."""
        start, last = 1, list[Entry]()
        while start < tail[0].number:
            before = min(start + _ENTRIES_AT_ONCE, tail[0].number)
            entries = await self._newest.entries(cached.conversation, start=start, before=before, limit=before - start)
            await self._reader.check(cached, [*last, *entries], first=start - len(last), last=before - 1)
            yield entries
            start, last = before, entries[-1:]
        await self._reader.check(cached, [*last, *tail], first=start - len(last))
        yield tail

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

    def texts(self, message: EntryMessage, sources: Sequence[EntrySource], payload: str | None = None) -> list[Text]:
        """Return the searchable texts of a message; those in a payload that was not read are empty.

        Raises:
            CorruptDocumentError: The message is damaged.
        """
        return texts_of(message, sources, read_message(self._codec, message), payload, self._codec)


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

"""Read a conversation's log into searchable parts: its segments, and the entries after them.

If segments are missing or damaged, the log itself is read, which is slower and gives the same result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from convstore.index.part import IndexBuilder, IndexedMessage, Steps
from convstore.index.ranking import RankedMessage
from convstore.index.segment import Part
from convstore.index.texts import MAX_CHARACTERS, SearchableText, cut_to_fit, texts_of
from convstore.log.entry import Entry, EntryMessage, EntrySource, Totals
from convstore.log.stored_message import read_message
from convstore.messages.sizes import packed
from convstore.mongo.collection import Document
from convstore.mongo.documents import entry_from
from convstore.mongo.keys import entry_number
from convstore.mongo.log import SEARCHED
from convstore.mongo.parallel import together
from convstore.mongo.segments import SegmentChain, Segments, StoredSegment, segment_chain
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot, check_dense
from convstore.runtime.pace import COMMAND, Pace, no_pause
from convstore.runtime.threads import payload_characters
from convstore.search.request import SearchRequest

MAX_UNSEALED_ENTRIES = 64
MAX_UNSEALED_CHARACTERS = 64_000
"""A conversation is due to be sealed if so many entries, or so many characters, are not in a segment."""

_ENTRIES_AT_ONCE = 32
_CHARACTERS_AT_ONCE = 800_000
"""Maximum of entries and characters read at once."""

Unsealed = tuple[StoredSegment, IndexBuilder]
"""Successive entries that are not in a segment: the segment that they may become, and their words."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The segments and the last entries of a log, read in one round trip.

    Attributes:
        chain: The segments.
        entries: The last entries, beginning with the last one that the segments cover.
        documents: The documents of the last entries, perhaps of more of them.
    """

    chain: SegmentChain = field(default_factory=SegmentChain)
    entries: Sequence[Entry] = ()
    documents: Sequence[Document] = ()

    @property
    def unsealed(self) -> list[Entry]:
        """Return the entries that are not in a segment, as far as they were read."""
        return [entry for entry in self.entries if entry.number > self.chain.last.until]

    def are_all(self, cached: CachedConversation) -> bool:
        """Return True if a search does not have to read more of the log."""
        return (
            self.entries[0].number <= self.chain.last.until + 1
            and not any(message.payload for entry in self.unsealed for message in entry.messages)
            and not cached.active.missing(self.entries[-1].totals)
        )


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """A log in a search.

    Attributes:
        parts: Its parts in order.
        snapshot: The log with its active messages; None if these were not read.
        last: Ordinal of its last message.
        question: Ordinal of the question of the turn in progress, 0 if the last turn is finished.
        is_due: True if so many entries are not in a segment that it is due to be sealed.
        unsealed: The entries that are not in a segment, if one segment can contain them.
    """

    parts: Sequence[Part] = ()
    snapshot: Snapshot | None = None
    last: int = 0
    question: int = 0
    is_due: bool = False
    unsealed: Unsealed | None = None

    def is_active(self, message: IndexedMessage) -> bool:
        """Return True for an active message, or if the active messages were not read; False without any parts."""
        return bool(self.parts) and (
            self.snapshot is None or self.snapshot.active.has(message.ordinal)
        )

    def turn_of(self, found: RankedMessage) -> IndexedMessage:
        """Return the question of the turn that lists an active message, or the first active message."""
        turn = found.message.turn
        nearest: IndexedMessage | None = None
        for question in self._questions_before(found):
            if not self.is_active(question):
                continue
            if question.ordinal == turn:
                return question
            nearest = nearest or question
            if question.ordinal < turn or not turn:
                break
        return nearest or self._first_active()

    def _first_active(self) -> IndexedMessage:
        messages = (part.message(index) for part in self.parts for index in range(part.size))
        return next(message for message in messages if self.is_active(message))

    def _questions_before(self, found: RankedMessage) -> Iterator[IndexedMessage]:
        """Yield the questions up to a message, newest first."""
        part = self.parts[found.part]
        until = bisect_right(part.questions, part.windows.message_of[found.windows[0]])
        for index in reversed(part.questions[:until]):
            yield part.message(index)
        for earlier in reversed(self.parts[: found.part]):
            for index in reversed(earlier.questions):
                yield earlier.message(index)


class LogParts:
    """Reads the logs of all conversations of a store."""

    def __init__(self, reader: LogReader, segments: Segments | None) -> None:
        self._reader = reader
        self._segments = segments
        self._codec = reader.codec

    async def read(
        self, cached: CachedConversation, request: SearchRequest, chain: SegmentChain
    ) -> SearchedLog:
        """Return a log whose segments are known, with the terms that a query needs."""
        return await self.whole(cached, _ends(chain, await self._tail(cached)), request)

    async def ends(self, cached: CachedConversation) -> LogEnds:
        """Return the segments and the last entries of a log. One round trip."""
        segments, documents = await together(self._segments_of(cached), self._tail(cached))
        ends = _ends(segment_chain(segments), documents)
        if ends.entries:
            cached.entries = max(cached.entries, ends.entries[-1].number)
        return ends

    async def whole(
        self, cached: CachedConversation, ends: LogEnds, request: SearchRequest
    ) -> SearchedLog:
        """Return a log whose ends were read, with the terms that a query needs."""
        if not ends.entries:
            return SearchedLog()
        builder = IndexBuilder(keeps_texts=True)
        last = ends.entries[-1]
        snapshot, added = await together(
            self._reader.snapshot(cached, last.totals),
            self._add_rest(cached, builder, ends, request),
        )
        if added is None:
            return await self.whole(cached, _ends(SegmentChain(), ends.documents), request)
        is_due = added >= MAX_UNSEALED_ENTRIES or builder.characters >= MAX_UNSEALED_CHARACTERS
        question = 0 if last.totals.over else last.totals.turn
        unsealed = None
        if added and builder.characters <= MAX_CHARACTERS:
            segment = ends.chain.last.followed_by(last.totals, characters=builder.characters)
            unsealed = (segment, builder)
        return SearchedLog(
            [*ends.chain.parts, builder], snapshot, last.last, question, is_due, unsealed
        )

    async def _segments_of(self, cached: CachedConversation) -> Sequence[Document]:
        return await self._segments.documents(cached.conversation) if self._segments else ()

    async def _tail(self, cached: CachedConversation) -> Sequence[Document]:
        return await self._reader.read_your_writes(
            cached,
            lambda: self._reader.log.documents(
                cached.conversation, limit=MAX_UNSEALED_ENTRIES, fields=SEARCHED
            ),
            last=lambda documents: entry_number(documents[-1]["_id"]) if documents else 0,
        )

    async def _add_rest(
        self,
        cached: CachedConversation,
        builder: IndexBuilder,
        ends: LogEnds,
        request: SearchRequest,
    ) -> int | None:
        """Add the entries after the segments; return their number, None if the segments belong to another log."""
        added = 0
        async with aclosing(self._rest(cached, ends)) as batches:
            async for entries in batches:
                if ends.chain and not added and entries[0].after != ends.chain.last.link:
                    return None
                await self.add(cached, builder, entries, Pace(no_pause))
                if builder.characters > MAX_CHARACTERS:
                    builder.keep(request.groups)
                added += len(entries)
        return added

    async def _rest(
        self, cached: CachedConversation, ends: LogEnds
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the entries that are not in a segment, in order, in batches."""
        async with aclosing(
            self.entries(cached, start=ends.chain.last.until + 1, before=ends.entries[0].number)
        ) as batches:
            async for entries in batches:
                yield entries
        check_dense(cached.conversation, ends.entries)
        if unsealed := ends.unsealed:
            yield unsealed

    def entries(
        self, cached: CachedConversation, *, start: int, before: int
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the entries with numbers from `start` to before `before`, with their sources, in order, in batches."""
        everything = Snapshot(cached, Totals(entries=before - 1))
        return self._reader.batches(
            everything, start=start, at_once=_ENTRIES_AT_ONCE, fields=SEARCHED
        )

    async def add(
        self,
        cached: CachedConversation,
        builder: IndexBuilder,
        entries: Sequence[Entry],
        pace: Pace,
    ) -> int:
        """Read the payloads of entries and add their messages to a part, in small batches.

        Returns the number of entries that were added; a part for a segment has limited room.
        """
        total = 0
        for batch in packed(entries, limit=_CHARACTERS_AT_ONCE, size=payload_characters):
            messages = [message for entry in batch for message in entry.messages]
            payloads = await self._reader.payloads_of(cached, messages)
            await pace.spent(2 * COMMAND)
            added = await pace.steps(self._adding(builder, batch, payloads))
            total += added
            if added < len(batch):
                break
        return total

    def _adding(
        self, builder: IndexBuilder, entries: Sequence[Entry], payloads: dict[str, str]
    ) -> Steps[int]:
        for index, entry in enumerate(entries):
            messages = entry.messages
            texts = cut_to_fit(
                [self.texts(stored, entry.sources, payloads.get(stored.id)) for stored in messages]
            )
            if not builder.has_room(texts):
                return index
            for stored, message_texts in zip(messages, texts, strict=True):
                yield from builder.adding(stored, message_texts, first=entry.first, at=entry.at)
        return len(entries)

    def texts(
        self, message: EntryMessage, sources: Sequence[EntrySource], payload: str | None = None
    ) -> list[SearchableText]:
        """Return the searchable texts of a message; texts in a payload that was not read are empty."""
        own = [source for source in sources if source.message_id == message.id]
        return texts_of(message, own, read_message(self._codec, message), payload)


def _ends(chain: SegmentChain, documents: Sequence[Document]) -> LogEnds:
    """Return the ends of a log, without segments of another log, which a backup replaced."""
    if not documents:
        return LogEnds()
    last = entry_number(documents[-1]["_id"])
    first = min(chain.last.until, last)
    entries = [
        entry_from(document) for document in documents if entry_number(document["_id"]) >= first
    ]
    covered = next((entry for entry in entries if entry.number == chain.last.until), None)
    if chain.last.until > last or (covered and not chain.ends_with(covered.totals)):
        return _ends(SegmentChain(), documents)
    return LogEnds(chain, entries, documents)

"""Search several conversations at once: rank their messages together, and return hits by conversation.

Segments of all conversations are read with one command, and only the words of the query are kept in memory. Entries
that are not in a segment are read conversation by conversation, up to a limit in text and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar
from weakref import WeakKeyDictionary

from convstore.exceptions import ConversationDeletedError, CorruptDocumentError, SchemaVersionError
from convstore.index.part import IndexBuilder, IndexedMessage
from convstore.index.ranking import RankedMessage
from convstore.index.segment import Part
from convstore.log.entry import Totals
from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.mongo.parallel import in_parallel
from convstore.mongo.segments import SegmentChain, Segments
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.search.log_parts import LogParts, SearchedLog
from convstore.search.request import SearchRequest
from convstore.search.sealer import Sealer
from convstore.search.searcher import Match, Searcher, ranked_of

_AT_ONCE = 2
"""Number of such searches that an event loop runs at once; further ones wait."""
_MAX_CHARACTERS = 4_000_000
_MAX_SECONDS = 2.0
"""Limits of text and time for reading entries that are not in a segment."""
_SPARE = 200
"""Messages ranked beyond the limit, because some may not be active; if too few are, all are ranked again."""
_GAP = [IndexedMessage(0, "human", 0, "", "", datetime.min.replace(tzinfo=UTC))] * 8
"""Messages between two conversations, so that the end of one is not a neighbour of the beginning of the next."""

_Conversation = tuple[CachedConversation, Totals]
"""A conversation with the totals of its last entry."""
_Read = TypeVar("_Read")


@dataclass(slots=True)
class _AcrossSearch:
    """One search; `incomplete` has the indexes of conversations that were not searched completely."""

    conversations: Sequence[_Conversation]
    request: SearchRequest
    reader: LogReader
    incomplete: set[int] = field(default_factory=set)

    async def each(
        self, indexes: Sequence[int], read: Callable[[int], Awaitable[_Read]], default: _Read
    ) -> list[_Read]:
        """Call `read` for some conversations; the result is `default` for a deleted, damaged or newer one.

        Damaged and newer ones are added to `incomplete`.
        """

        async def guarded(index: int) -> _Read:
            try:
                async with self.reader.reading(self.conversations[index][0]):
                    return await read(index)
            except ConversationDeletedError:
                return default
            except (CorruptDocumentError, SchemaVersionError):
                self.incomplete.add(index)
                return default

        return await in_parallel(guarded, indexes)


class AcrossSearcher:
    """Searches any conversations of a store together."""

    def __init__(
        self,
        reader: LogReader,
        logs: LogParts,
        segments: Segments,
        searcher: Searcher,
        sealer: Sealer,
    ) -> None:
        self._reader = reader
        self._logs = logs
        self._segments = segments
        self._clock = reader.clock
        self._searcher = searcher
        self._sealer = sealer
        self._gates = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()

    async def search(
        self, conversations: Sequence[_Conversation], request: SearchRequest
    ) -> tuple[list[tuple[int, Match]], list[int]]:
        """Return the best messages, each with the index of its conversation, and the partly searched conversations.

        The conversations are given in order of importance, the most important first.
        """
        if not request.groups or not conversations:
            return [], []
        search = _AcrossSearch(conversations, request, self._reader)
        async with self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
            matches = await self._matches_of(search)
        return matches, sorted(search.incomplete)

    async def _matches_of(self, search: _AcrossSearch) -> list[tuple[int, Match]]:
        request = search.request
        logs = await self._read(search)
        found = await _ranked(logs, request, limit=request.limit + _SPARE)
        logs = await self._with_active(search, logs, {index for index, _ in found})
        active = [pair for pair in found if logs[pair[0]].is_active(pair[1].message)]
        if len(active) < request.limit and len(found) == request.limit + _SPARE:
            logs = await self._with_active(search, logs, range(len(logs)))
            active = await _ranked(logs, request, limit=request.limit)
        return await self._matches(search, logs, active[: request.limit])

    async def _read(self, search: _AcrossSearch) -> list[SearchedLog]:
        """Return the log of each conversation, still without its active messages."""
        known = await self._known(search)
        until = self._clock.monotonic() + _MAX_SECONDS

        async def read(index: int) -> SearchedLog:
            return await self._read_unsealed(search, index, known[index], until)

        logs = [SearchedLog(chain.parts) for chain in known]
        unsealed = _unsealed(search, known)
        found = await search.each(unsealed, read, SearchedLog())
        for index, log in zip(unsealed, found, strict=True):
            logs[index] = log
        for index in search.incomplete:
            self._sealer.schedule(*search.conversations[index][0].key)
        return logs

    async def _read_unsealed(
        self, search: _AcrossSearch, index: int, chain: SegmentChain, until: float
    ) -> SearchedLog:
        """Return a log that has entries after its segments; after the time limit, without these entries."""
        cached = search.conversations[index][0]
        if index not in search.incomplete and self._clock.monotonic() <= until:
            log = await self._logs.read(cached, search.request, chain)
            if log.unsealed:
                log.unsealed[1].keep(search.request.groups)
            self._sealer.searched(cached, chain, log)
            return log
        search.incomplete.add(index)
        if not chain:
            return SearchedLog()
        last = await self._reader.log.entry(cached.conversation, chain.last.until)
        if chain.ends_with(last.totals):
            return SearchedLog(chain.parts)
        return SearchedLog()

    async def _known(self, search: _AcrossSearch) -> list[SegmentChain]:
        """Return the segments of each conversation, with only the words of the query. One command."""
        known = [SegmentChain() for _ in search.conversations]
        chain_of = {
            cached.conversation: chain
            for (cached, _), chain in zip(search.conversations, known, strict=True)
        }
        async for document in self._segments.documents_of_all(chain_of):
            chain_of[document["conversation"]].add(document, only=search.request.groups)
        for (cached, _), chain in zip(search.conversations, known, strict=True):
            self._sealer.searched(cached, chain)
        return known

    async def _with_active(
        self, search: _AcrossSearch, logs: Sequence[SearchedLog], indexes: Collection[int]
    ) -> list[SearchedLog]:
        """Return the logs, some of them with their active messages; at most two commands for each of these."""

        async def read(index: int) -> SearchedLog:
            (cached, totals) = search.conversations[index]
            log = logs[index]
            if index not in indexes or log.snapshot:
                return log
            return replace(log, snapshot=await self._reader.snapshot(cached, totals))

        return await search.each(range(len(logs)), read, SearchedLog())

    async def _matches(
        self,
        search: _AcrossSearch,
        logs: Sequence[SearchedLog],
        found: Sequence[tuple[int, RankedMessage]],
    ) -> list[tuple[int, Match]]:
        async def match(index: int) -> list[tuple[int, Match]]:
            own = [place for owner, place in found if owner == index]
            cached = search.conversations[index][0]
            matches = await self._searcher.matches(cached, logs[index], own, search.request)
            return [(index, matched) for matched in matches]

        groups = await search.each(
            list(dict.fromkeys(index for index, _ in found)), match, list[tuple[int, Match]]()
        )
        return [pair for group in groups for pair in group]


async def _ranked(
    logs: Sequence[SearchedLog], request: SearchRequest, *, limit: int
) -> list[tuple[int, RankedMessage]]:
    """Return the best messages that may be active, each with the index of its log."""
    parts: list[Part] = []
    place_of: list[tuple[int, int]] = []
    for index, log in enumerate(logs):
        parts += [*log.parts, IndexBuilder(messages=_GAP)]
        place_of += [(index, number) for number in range(len(log.parts) + 1)]

    found = await ranked_of(parts, lambda part: logs[place_of[part][0]], request, limit=limit)
    return [
        (place_of[place.part][0], place._replace(part=place_of[place.part][1])) for place in found
    ]


def _unsealed(search: _AcrossSearch, known: Sequence[SegmentChain]) -> list[int]:
    """Return the conversations with entries after their segments; too long ones are marked as incomplete."""
    unsealed: list[int] = []
    room = _MAX_CHARACTERS
    for index, (_, totals) in enumerate(search.conversations):
        if not totals.entries or known[index].ends_with(totals):
            continue
        unsealed.append(index)
        size = max(0, totals.tokens - known[index].last.tokens) * CHARACTERS_PER_TOKEN
        if size > room:
            search.incomplete.add(index)
        else:
            room -= size
    return unsealed

"""Seal the texts of logs into immutable segments, in the background.

Appends write nothing for search: the timer that refreshes heads notes a conversation here when a burst of appends ends,
and a search notes one of which much is in no segment. One conversation is sealed at a time. Nothing is lost if none
ever is: searches read from the log what no segment covers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from convstore.exceptions import ConversationDeletedError, StoreClosedError, StoreUnavailableError
from convstore.index.part import IndexBuilder
from convstore.index.segment import merged, sections_of
from convstore.index.texts import MAX_CHARACTERS
from convstore.log.entry import Totals
from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.mongo.log import Log
from convstore.mongo.segments import Segments, StoredSegment
from convstore.runtime.background import retrieve_cancellation
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import APPEND_SECONDS, Clock
from convstore.runtime.log_reader import LogReader
from convstore.search.log_parts import MAX_UNSEALED_CHARACTERS, MAX_UNSEALED_ENTRIES, LogParts
from convstore.values.scope import Scope

_MAX_REMEMBERED = 10_000
_CLOSE_SECONDS = 1.0
"""Time for which a store that is closed goes on sealing."""
_RETRY_SECONDS = 600.0
"""Time after which a conversation is sealed again if that failed."""
_GROWTH = 4
"""A segment takes in the one before it unless that is this many times larger, so few segments are rewritten often."""

_Value = TypeVar("_Value")


class Sealer:
    """Seals the conversations of a store that are due; `everything` seals small ones, too."""

    def __init__(
        self, reader: LogReader, log: Log, logs: LogParts, segments: Segments, *, clock: Clock, everything: bool
    ) -> None:
        self._reader, self._log, self._logs, self._segments = reader, log, logs, segments
        self._clock, self._everything = clock, everything
        self._scheduled: dict[str, Scope] = {}
        self._sealed: OrderedDict[str, Totals] = OrderedDict()
        self._retry_at: OrderedDict[str, float] = OrderedDict()
        self._work: set[asyncio.Future[list[None]]] = set()
        self._is_closed = False

    def note(self, scope: Scope, conversation: str, totals: Totals) -> None:
        """Seal a conversation soon if, by its totals, enough was appended since the last seal of this store."""
        sealed = self._sealed.get(conversation, Totals())
        if self._everything or _is_due(totals.entries - sealed.entries, totals.tokens - sealed.tokens):
            self.schedule(scope, conversation)

    def schedule(self, scope: Scope, conversation: str) -> None:
        """Seal a conversation soon, after those that were noted before it; later if that failed a short time ago."""
        if self._is_closed or self._clock.monotonic() < self._retry_at.get(conversation, 0.0):
            return
        self._scheduled[conversation] = scope
        self._start()

    def _start(self) -> None:
        """Begin the work of this event loop, unless it is running."""
        loop = asyncio.get_running_loop()
        self._work -= {work for work in self._work if work.get_loop().is_closed()}
        if all(work.get_loop() is not loop for work in self._work):
            # gather instead of create_task: asyncio does not warn if the loop ends first.
            work = asyncio.gather(*[self._seal_scheduled()])
            self._work.add(work)
            work.add_done_callback(self._ended)
            work.add_done_callback(retrieve_cancellation)

    def _ended(self, work: asyncio.Future[list[None]]) -> None:
        self._work.discard(work)
        # A conversation may have been scheduled after the work had looked for the last time.
        if self._scheduled and not self._is_closed and not work.cancelled():
            self._start()

    async def wait(self) -> None:
        """Wait for the running work of this event loop, if any."""
        loop = asyncio.get_running_loop()
        while own := [work for work in self._work if work.get_loop() is loop]:
            await asyncio.gather(*own, return_exceptions=True)

    async def close(self) -> None:
        """Seal what is due for a moment; the next searches and appends seal the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.wait()
        self._is_closed = True

    async def _seal_scheduled(self) -> None:
        while self._scheduled and not self._is_closed:
            conversation = next(iter(self._scheduled))
            scope = self._scheduled.pop(conversation)
            try:
                await self.seal(scope)
            except (StoreUnavailableError, StoreClosedError):
                pass  # every call reports it
            except Exception as error:  # noqa: BLE001 - the event loop logs it; the others are sealed
                _remember(self._retry_at, conversation, self._clock.monotonic() + _RETRY_SECONDS)
                message = f"convstore cannot seal the conversation {conversation}; searches read its log instead"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    async def seal(self, scope: Scope, *, force: bool = True) -> None:
        """Seal a conversation; without `force`, only if enough of it is in no segment.

        It ends within the time of the longest append, so that a sweep finds what it wrote.
        """
        cached = await self._reader.find(scope)
        if cached is None:
            return
        try:
            async with asyncio.timeout(APPEND_SECONDS), self._reader.reading(cached):
                while await self._seal_once(cached, force=force or self._everything):
                    pass
        except (TimeoutError, ConversationDeletedError):
            return  # the rest, if there is any, is sealed by the next call

    async def _seal_once(self, cached: CachedConversation, *, force: bool) -> bool:
        """Seal up to the maximum size of a segment; return True if there may be more."""
        chain, tail = await asyncio.gather(
            self._segments.chain(cached.conversation, with_sections=False), self._log.last_totals(cached.conversation)
        )
        until, tokens = (chain[-1].until, chain[-1].tokens) if chain else (0, 0)
        if tail.entries <= until or not (force or _is_due(tail.entries - until, tail.tokens - tokens)):
            _remember(self._sealed, cached.conversation, tail)
            return False
        builder, last = IndexBuilder(), Totals()
        async for entries in self._logs.entries(cached, start=until + 1, before=tail.entries + 1):
            added = await self._logs.add(cached, builder, entries)
            last = entries[added - 1].totals if added else last
            if added < len(entries):
                break
        new = StoredSegment(until + 1, last.entries, last.link, last.tokens, builder.characters)
        return await self._put(cached, chain, builder, new)

    async def _put(
        self, cached: CachedConversation, chain: Sequence[StoredSegment], builder: IndexBuilder, new: StoredSegment
    ) -> bool:
        """Store a new segment, together with those before it that are not much larger."""
        absorbed = _absorbed(chain, new)
        if absorbed:
            chain = await self._segments.chain(cached.conversation)
            current = {(one.first, one.until): one for one in chain}
            whole = [current.get((one.first, one.until)) for one in absorbed]
            read = [one for one in whole if one is not None]
            if len(read) < len(absorbed):
                return False  # another process is sealing
            builder = await asyncio.to_thread(merged, [one.part for one in read], builder)
            characters = new.characters + sum(one.characters for one in absorbed)
            new = replace(new, first=absorbed[0].first, characters=characters)
        sections = await asyncio.to_thread(sections_of, builder)
        segment = replace(new, sections=sections)
        replaces = absorbed[0] if absorbed else None
        if not await self._segments.put(cached.conversation, segment, replaces=replaces, at=self._clock.now()):
            return False
        await self._segments.drop_covered(cached.conversation, segment)
        return True


def _remember(found: OrderedDict[str, _Value], conversation: str, value: _Value) -> None:
    found[conversation] = value
    while len(found) > _MAX_REMEMBERED:
        found.popitem(last=False)


def _is_due(entries: int, tokens: int) -> bool:
    return entries >= MAX_UNSEALED_ENTRIES or tokens * CHARACTERS_PER_TOKEN >= MAX_UNSEALED_CHARACTERS


def _absorbed(chain: Sequence[StoredSegment], new: StoredSegment) -> list[StoredSegment]:
    """Return the last segments of a chain that a new one takes in."""
    size, absorbed = new.characters, list[StoredSegment]()
    for segment in reversed(chain):
        if segment.characters > _GROWTH * size or segment.characters + size > MAX_CHARACTERS:
            break
        absorbed.insert(0, segment)
        size += segment.characters
    return absorbed

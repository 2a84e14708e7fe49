"""Refresh heads: concurrently with the first append of every 10 seconds, and with the first one after an import.

So the order of a listing is exact to 10 seconds. If a head is older than an append in flight can be, its conversation
is idle. Counts are not in heads; see `Heads.page`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from convstore.log.entry import Entry, Totals
from convstore.messages.compression import Chunk
from convstore.mongo.heads import EntryRef
from convstore.mongo.log import SlotTaken
from convstore.runtime.background import settle
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import backdated
from convstore.runtime.log_reader import LogReader
from convstore.values.scope import Scope

REFRESH_AFTER = timedelta(seconds=10)
"""Time for which a store appends to a conversation without refreshing its head."""


class HeadRefresher:
    """Refreshes the heads of conversations that a store appends to.

    `on_append` is called with scope and id after each append. It is injected, because the search index is a room above;
    it seals conversations that are idle.
    """

    def __init__(self, reader: LogReader, *, on_append: Callable[[Scope, str], None]) -> None:
        self._heads = reader.heads
        self._log = reader.log
        self._clock = reader.clock
        self._on_append = on_append

    async def insert(
        self,
        cached: CachedConversation,
        entry: Entry,
        chunks: Sequence[Chunk] = (),
        *,
        token: str = "",
    ) -> bool:
        """Insert an entry after its chunks, and refresh the head concurrently if that is due; see `Log.insert`.

        A cancelled caller waits for both, see `settle`. A refresh that fails is repeated once after the insert, because
        `prune` would delete a conversation whose head is old.

        Returns:
            False if the scope has no such conversation any more.
        """
        insert = self._log.insert(cached.conversation, [entry], chunks, token=token)
        return await settle(self._inserted(cached, entry, insert))

    async def _inserted(
        self, cached: CachedConversation, entry: Entry, insert: Awaitable[None]
    ) -> bool:
        exists: bool | BaseException = True
        named = EntryRef(entry.number, entry.totals.link), entry.at
        try:
            if self._is_due(cached, entry.at):
                exists, inserted = await asyncio.gather(
                    self._refresh(cached, *named), insert, return_exceptions=True
                )
                if isinstance(inserted, BaseException):
                    raise inserted
            else:
                await insert
        except SlotTaken:
            # the refresh succeeded, so the head names an entry that does not exist
            if cached.refreshed and cached.refreshed[2] == entry.totals.link:
                await self._refresh(cached, EntryRef(entry.number - 1, entry.after), entry.at)
            raise
        self._on_append(*cached.key)
        return await self._refresh(cached, *named) if isinstance(exists, BaseException) else exists

    async def catch_up(self, cached: CachedConversation, tail: Totals) -> None:
        """Refresh the head if that is due: the writer of the last entry may have died before its refresh."""
        if tail.updated_at and self._is_due(cached, tail.updated_at):
            await self.refresh(cached, tail)

    async def refresh(self, cached: CachedConversation, tail: Totals) -> None:
        """Refresh the head with the last entry, even if that is not due. One command."""
        if tail.updated_at:
            await self._refresh(cached, EntryRef(tail.entries, tail.link), tail.updated_at)

    def _is_due(self, cached: CachedConversation, at: datetime) -> bool:
        if cached.refreshed is None:
            return True
        moment, date, _ = cached.refreshed
        is_recent = self._clock.is_within(REFRESH_AFTER.total_seconds(), since=moment)
        # An import gives its messages old dates, and refreshes the head once at its end.
        return not is_recent or (at - date >= REFRESH_AFTER and not backdated())

    async def _refresh(self, cached: CachedConversation, entry: EntryRef, at: datetime) -> bool:
        scope = dict(cached.scope)
        written_at = self._clock.undated()
        if not await self._heads.refresh(
            scope, cached.conversation, entry=entry, updated_at=at, written_at=written_at
        ):
            return False
        cached.verified_at = self._clock.moment()
        cached.unverified = 0
        cached.refreshed = cached.verified_at, at, entry.link
        return True

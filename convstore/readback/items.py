"""Read the items of a log that are no messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from convstore.log.items import ItemRow, active_items, item_rows, read_log_item
from convstore.mongo.keys import entry_id
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.values.items import StoredItem
from convstore.values.scope import Scope, check_number

_END = 2**53
_PAGE = 100
"""Items whose payloads are read together."""


class ItemReader:
    """Reads the items of conversations."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    async def read(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: int | None = None,
        before: int | None = None,
        everything: bool = False,
    ) -> AsyncGenerator[StoredItem]:
        """Iterate over the active items, see `Conversation.items`, or over those of all messages."""
        low = 0 if after is None else check_number(after, name="after", minimum=0, maximum=_END)
        high = (
            _END if before is None else check_number(before, name="before", minimum=0, maximum=_END)
        )
        if (cached := await self._reader.find(scope)) is None:
            return
        async with self._reader.reading(cached):
            log = await self._reader.snapshot(cached)
            entries = await self._reader.log.entries_with_items(
                cached.conversation, after=low, before=high
            )
        rows = [row for row in item_rows(entries) if low <= row.item.after < high]
        active = active_items(rows, None if everything else log.active)
        shown = [row for row in active if kind in (None, row.item.kind)]
        for start in range(0, len(shown), _PAGE):
            async with self._reader.reading(cached):
                items = await self._decoded(cached, shown[start : start + _PAGE])
            for item in items:
                yield item

    async def _decoded(
        self, cached: CachedConversation, rows: Sequence[ItemRow]
    ) -> list[StoredItem]:
        refs = [row.item.payload for row in rows if row.item.payload]
        texts = iter(await self._reader.payloads(cached, refs))
        key = cached.conversation
        codec = self._reader.codec
        return [
            read_log_item(
                codec,
                row,
                next(texts) if row.item.payload else None,
                key=entry_id(key, row.entry.number),
            )
            for row in rows
        ]

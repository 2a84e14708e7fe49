"""Read the items of a log, which were appended between its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from convstore.log.facts.items import (
    ItemRow,
    active_items,
    item_rows,
    read_log_item,
    without_cuts,
)
from convstore.mongo.keys import entry_id
from convstore.mongo.log import LOG_END
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.log_records import StoredItem
from convstore.values.plain import slices
from convstore.values.scope import Scope, check_ordinals

_PAGE = 100
"""Number of items whose payloads are read together."""


async def read_items(
    reader: LogReader,
    scope: Scope,
    kind: str | None = None,
    *,
    after: int | None = None,
    before: int | None = None,
    everything: bool = False,
) -> AsyncGenerator[StoredItem]:
    """Iterate over the active items of a log, or over all; see `Conversation.items`."""
    check_ordinals(after=after, before=before)
    low = after or 0
    high = LOG_END if before is None else before
    if (cached := await reader.find(scope)) is None:
        return
    async with reader.reading(cached):
        log = await reader.snapshot(cached)
        entries = await reader.log.entries_with_items(cached.conversation, after=low, before=high)
    rows = [row for row in item_rows(entries) if low <= row.item.after < high]
    shown = active_items(rows, log.active)
    active = {row.place for row in shown}
    if everything:
        shown = without_cuts(rows)
    wanted = [row for row in shown if kind in (None, row.item.kind)]
    async with aclosing(_decode_rows(reader, cached, wanted)) as items:
        async for row, item in items:
            if row.place in active:
                yield item
            else:
                yield item.model_copy(update={"is_rewound": True})


async def items_of_all_messages(reader: LogReader, scope: Scope) -> AsyncGenerator[StoredItem]:
    """Iterate over the items of all messages, for exports; leave out items that a rewind to an item removed."""
    if (cached := await reader.find(scope)) is None:
        return
    async with reader.reading(cached):
        entries = await reader.log.entries_with_items(cached.conversation, after=0, before=LOG_END)
    rows = active_items(item_rows(entries), Snapshot(cached).active)
    async with aclosing(_decode_rows(reader, cached, rows)) as items:
        async for _, item in items:
            yield item


async def _decode_rows(
    reader: LogReader, cached: CachedConversation, rows: Sequence[ItemRow]
) -> AsyncGenerator[tuple[ItemRow, StoredItem]]:
    """Yield the items of rows in their order; reads in pages."""
    for page in slices(rows, _PAGE):
        async with reader.reading(cached):
            items = await _page(reader, cached, page)
        for row, item in zip(page, items, strict=True):
            yield row, item


async def _page(
    reader: LogReader, cached: CachedConversation, rows: Sequence[ItemRow]
) -> list[StoredItem]:
    refs = [row.item.payload for row in rows if row.item.payload]
    texts = iter(await reader.payloads(cached, refs))
    key = cached.conversation
    codec = reader.codec
    return [
        read_log_item(
            codec,
            row,
            next(texts) if row.item.payload else None,
            key=entry_id(key, row.entry.number),
        )
        for row in rows
    ]

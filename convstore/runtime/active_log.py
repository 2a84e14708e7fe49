"""Read the active messages of a log, in order or newest first, from any ordinal.

Entries are read in batches that grow; ranges that were rewound are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from convstore.log.rows import Row, rows_of
from convstore.mongo.log import LOG_END
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot, check_dense, grown

_MAXIMUM_ENTRIES = 1_000


async def read_page(
    reader: LogReader,
    cached: CachedConversation,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int,
    everything: bool = False,
) -> tuple[list[Row], Snapshot]:
    """Return up to `limit` active messages before or after an ordinal, or the last ones, in order, and the log.

    With `everything` rewound messages are included. The first read estimates the number of entries from the average
    number of messages in an entry; more entries are read if needed.
    """
    log = await reader.snapshot(cached)
    snapshot = Snapshot(cached, log.tail) if everything else log
    at_once = min(
        estimated_entries(limit, snapshot.tail.messages, snapshot.tail.entries), _MAXIMUM_ENTRIES
    )
    if after is None:
        reading = _newest_first(
            reader, snapshot, before=LOG_END if before is None else before, at_once=at_once
        )
    else:
        reading = _in_order(reader, snapshot, after=after, at_once=at_once)
    found: list[Row] = []
    async with aclosing(reading) as messages:
        async for row in messages:
            found.append(row)
            if len(found) == limit:
                break
    return found[::-1] if after is None else found, log


async def _newest_first(
    reader: LogReader, snapshot: Snapshot, *, before: int, at_once: int
) -> AsyncGenerator[Row, None]:
    """Yield the active messages before an ordinal, newest first; the first read is of `at_once` entries."""
    cached = snapshot.cached
    active = snapshot.active
    number = snapshot.tail.entries + 1 if before > snapshot.tail.messages else 0
    while number != 1:
        async with reader.reading(cached):
            if number:
                number = active.end_before(number)
                start = active.stretch_before(number, max(1, number - at_once))
                entries = await reader.entries(cached, start=start, before=number)
            else:  # the entry is not known yet
                entries = await reader.log.entries_around(
                    cached.conversation, before=before, limit=at_once
                )
                check_dense(cached.conversation, entries)
        for row in reversed(rows_of(active.of(entries))):
            if row.message.ordinal < before:
                yield row
        number = entries[0].number if entries else 1
        at_once = grown(at_once)


async def _in_order(
    reader: LogReader, snapshot: Snapshot, *, after: int, at_once: int
) -> AsyncGenerator[Row, None]:
    """Yield the active messages after an ordinal, in order."""
    start = await reader.entry_with(snapshot.cached, after + 1)
    async with aclosing(reader.batches(snapshot, start=start, at_once=at_once)) as batches:
        async for entries in batches:
            for row in rows_of(entries):
                if row.message.ordinal > after:
                    yield row


def estimated_entries(limit: int, items: int, entries: int) -> int:
    """Estimate how many entries contain `limit` items, plus a margin of two.

    >>> [estimated_entries(20, items, 60) for items in (6_000, 60, 30)], estimated_entries(20, 0, 0)
    ([2, 22, 42], 2)
    """
    return limit * entries // max(items, 1) + 2

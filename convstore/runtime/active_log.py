"""Read the active messages of a log, in order or newest first, from any ordinal.

Entries are read in batches that grow; ranges that were rewound are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from convstore.log.entry import Entry, EntryMessage
from convstore.log.rewind import NO_REWINDS
from convstore.log.selection import about
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot

LogMessage = tuple[Entry, EntryMessage]
"""A message and its entry, with totals as the last repair corrected them."""

_END = 2**53
_MAXIMUM_ENTRIES, _GROWN_ENTRIES = 1_000, 100


async def read_page(
    reader: LogReader,
    cached: CachedConversation,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int,
    rewound: bool = False,
) -> list[LogMessage]:
    """Return up to `limit` messages before or after an ordinal, or the last ones, in order.

    Rewound messages are left out unless `rewound` is true. The first read estimates the number of entries from
    their average size; more are read if needed.
    """
    snapshot = await reader.snapshot(cached)
    if rewound:
        snapshot = snapshot._replace(rewinds=NO_REWINDS)
    at_once = min(about(limit, snapshot.tail.messages, snapshot.tail.entries), _MAXIMUM_ENTRIES)
    if after is None:
        reading = newest_first(reader, snapshot, before=_END if before is None else before, at_once=at_once)
    else:
        reading = in_order(reader, snapshot, after=after, at_once=at_once)
    found = list[LogMessage]()
    async with aclosing(reading) as messages:
        async for one in messages:
            found.append(one)
            if len(found) == limit:
                break
    return found[::-1] if after is None else found


async def newest_first(
    reader: LogReader, snapshot: Snapshot, *, before: int, at_once: int
) -> AsyncGenerator[LogMessage, None]:
    """Yield the active messages before an ordinal, newest first; the first read is of `at_once` entries."""
    cached, rewinds = snapshot.cached, snapshot.rewinds
    number = snapshot.tail.entries + 1 if before > snapshot.tail.messages else 0
    while number != 1:
        async with reader.reading(cached):
            if number:
                number = rewinds.active_before(number)
                entries = await reader.entries(cached, start=max(1, number - at_once), before=number, is_whole=True)
            else:  # the entry is not known yet
                entries = await reader.log.entries_around(cached.conversation, before=before, limit=at_once)
                await reader.check(cached, entries)
        for entry in reversed(rewinds.corrected(entries)):
            for message in reversed(entry.messages):
                if message.ordinal < before and rewinds.is_active(message.ordinal):
                    yield entry, message
        number, at_once = entries[0].number if entries else 1, _grown(at_once)


async def in_order(
    reader: LogReader, snapshot: Snapshot, *, after: int, at_once: int, start: int = 0
) -> AsyncGenerator[LogMessage, None]:
    """Yield the active messages after an ordinal, in order; `start` is the number of their first entry, if known."""
    cached, rewinds = snapshot.cached, snapshot.rewinds
    if after and not start:
        found = await reader.log.entries_around(cached.conversation, before=after + 2, limit=1)
        start = found[0].number if found else 1
    while (start := rewinds.active_after(start or 1)) <= snapshot.tail.entries:
        end = min(start + at_once, snapshot.tail.entries + 1)
        async with reader.reading(cached):
            entries = await reader.entries(cached, start=start, before=end, is_whole=True)
        for entry in rewinds.corrected(entries):
            for message in entry.messages:
                if message.ordinal > after and rewinds.is_active(message.ordinal):
                    yield entry, message
        start, at_once = end, _grown(at_once)


def _grown(at_once: int) -> int:
    return max(at_once, min(2 * at_once, _GROWN_ENTRIES))

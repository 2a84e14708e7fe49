"""Read a page of messages before or after an ordinal."""

from __future__ import annotations

from convstore.log.rewind import NO_REWINDS
from convstore.log.selection import PlacedMessage, about, placed
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot

_END = 2**53
_MAXIMUM_ENTRIES = 1_000


async def read_page(
    reader: LogReader,
    cached: CachedConversation,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int,
    rewound: bool = False,
) -> list[PlacedMessage]:
    """Return up to `limit` messages before or after an ordinal, or the last ones, each with its date.

    Rewound messages are left out unless `rewound` is true. The first read estimates the number of entries from
    their average size; more are read if needed.
    """
    snapshot = await reader.snapshot(cached)
    if rewound:
        snapshot = snapshot._replace(rewinds=NO_REWINDS)
    at_once = min(about(limit, snapshot.tail.messages, snapshot.tail.entries), _MAXIMUM_ENTRIES)
    if after is None:
        return await _read_before(reader, snapshot, _END if before is None else before, limit, at_once)
    return await _read_after(reader, snapshot, after, limit, at_once)


async def _read_before(
    reader: LogReader, snapshot: Snapshot, before: int, limit: int, at_once: int
) -> list[PlacedMessage]:
    cached, rewinds = snapshot.cached, snapshot.rewinds
    found: list[PlacedMessage] = []
    while len(found) < limit and before > 1:
        before = next((one.first for one in rewinds.ranges if one.first < before <= one.last + 1), before)
        entries = await reader.log.entries_around(cached.conversation, before=before, limit=at_once)
        if not entries:
            break
        await reader.check(cached, entries)
        found = [one for one in placed(entries, rewinds) if one[0].ordinal < before] + found
        before = entries[0].first
        at_once = min(2 * at_once, _MAXIMUM_ENTRIES)
    return found[-limit:] if limit else []


async def _read_after(
    reader: LogReader, snapshot: Snapshot, after: int, limit: int, at_once: int
) -> list[PlacedMessage]:
    cached, rewinds = snapshot.cached, snapshot.rewinds
    entries = await reader.log.entries_around(cached.conversation, before=after + 2, limit=1)
    found = [one for one in placed(entries, rewinds) if one[0].ordinal > after]
    start = entries[0].number + 1 if entries else 1
    while len(found) < limit:
        start = rewinds.active_after(start)
        entries = await reader.entries(cached, start=start, before=start + at_once)
        found += [one for one in placed(entries, rewinds) if one[0].ordinal > after]
        if len(entries) < at_once:
            break
        start += at_once
        at_once = min(2 * at_once, _MAXIMUM_ENTRIES)
    return found[:limit]

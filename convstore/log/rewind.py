"""Which messages of a log are live: what was rewound stays in the log, and out of views and listings.

Layer 1. A rewind is an entry without messages, a marker. It says which ordinals are no longer live (gaps) and begins
the running totals anew from the message before the first of them, so that everything counted from totals counts what
is live. Taking a rewind back is a marker too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from convstore.log.entry import Entry, RewoundRange, Totals

__all__ = ["active_after", "active_before", "all_gaps", "is_active", "rewound", "undone"]


def is_active(gaps: Sequence[RewoundRange], ordinal: int) -> bool:
    """Whether a message was not rewound.

    >>> is_active([RewoundRange(first=3, last=4, entry=2, until=3)], 4)
    False
    """
    place = bisect_right(gaps, ordinal, key=lambda gap: gap.first)
    return not place or gaps[place - 1].last < ordinal


def all_gaps(gaps: Iterable[RewoundRange], totals: Totals, *, is_repaired: bool = False) -> tuple[RewoundRange, ...]:
    """What a marker with these totals says is rewound.

    Args:
        gaps: As they are stored.
        totals: Of the marker.
        is_repaired: The log was repaired; two writers may have used the same ordinals.

    Raises:
        ValueError: It is not just what is not live, in order.
    """
    found = tuple(gaps)
    ends = [end for gap in found for end in (gap.first, gap.last)]
    rewound = sum(gap.last - gap.first + 1 for gap in found)
    if ends != sorted(ends) or (rewound != totals.messages - totals.live and not is_repaired):
        raise ValueError("what is rewound does not agree with what is live")
    return found


def active_before(gaps: Sequence[RewoundRange], number: int) -> int:
    """The entry behind the last one before `number` that may hold live messages: `number` itself or a gap's begin."""
    return next((gap.entry for gap in gaps if gap.entry <= number - 1 <= gap.until), number)


def active_after(gaps: Sequence[RewoundRange], number: int) -> int:
    """The first entry from `number` on that may hold live messages."""
    return next((gap.until + 1 for gap in gaps if gap.entry <= number <= gap.until), number)


def rewound(
    after: Totals, gaps: Sequence[RewoundRange], *, ordinal: int, entry: int, point: Totals, at: datetime, link: int = 0
) -> Entry:
    """The marker behind a log with these totals and gaps that rewinds everything from an ordinal on.

    Args:
        after: The log before the marker.
        gaps: What is rewound in it already.
        ordinal: The first message to leave, which is live.
        entry: The first entry that holds none but messages that leave.
        point: What the log held before that message.
        at: When.
        link: Random number of the marker.
    """
    number = after.entries + 1
    gap = RewoundRange(ordinal, after.messages, entry, number)
    joined = _joined([old for old in gaps if old.last < ordinal], gap)
    return _marker(after, joined, point, undo=number, at=at, link=link)


def undone(
    after: Totals, *, before: Totals, gaps: Sequence[RewoundRange], undo: int, at: datetime, link: int = 0
) -> Entry:
    """The marker that takes a rewind back; what was appended since leaves in its turn.

    Args:
        after: The log before the marker.
        before: What the log held before the rewind.
        gaps: What was rewound in it then.
        undo: The rewind that could be taken back then.
        at: When.
        link: Random number of the marker.
    """
    number = after.entries + 1
    since = RewoundRange(before.messages + 1, after.messages, before.entries + 1, number)
    joined = _joined(gaps, since) if since.last >= since.first else tuple(gaps)
    return _marker(after, joined, before, undo=undo, at=at, link=link)


def _joined(gaps: Sequence[RewoundRange], last: RewoundRange) -> tuple[RewoundRange, ...]:
    """Gaps and one more behind them, in one piece if it touches the one before."""
    if gaps and gaps[-1].last == last.first - 1:
        return (*gaps[:-1], RewoundRange(gaps[-1].first, last.last, gaps[-1].entry, last.until))
    return (*gaps, last)


def _marker(
    after: Totals, gaps: tuple[RewoundRange, ...], point: Totals, *, undo: int, at: datetime, link: int
) -> Entry:
    """A marker with the live counts of an earlier point, and everything else as it is now."""
    totals = replace(
        point,
        entries=after.entries + 1,
        messages=after.messages,
        sources_through=after.sources_through,
        usage=after.usage,
        shown_at=after.shown_at,
        shown=after.shown,
        marker=after.entries + 1,
        updated_at=at,
        link=link,
    )
    first = after.messages + 1
    return Entry(first=first, at=at, messages=(), totals=totals, after=after.link, gaps=gaps, undo=undo)

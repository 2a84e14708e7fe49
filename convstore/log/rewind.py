"""Rewind messages: they stay in the log, but leave views and listings.

A rewind is stored as a rewind entry, which has no messages. It lists the ranges of ordinals that are no longer active.
Its running totals continue from the message before the first rewound one, so that totals only count active messages.
Undoing a rewind writes a rewind entry too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from convstore.log.entry import Entry, Repair, RewoundRange, Totals
from convstore.log.repairs import corrected


def is_active(rewound: Sequence[RewoundRange], ordinal: int) -> bool:
    """Return True if a message was not rewound.

    >>> is_active([RewoundRange(first=3, last=4, entry=2, until=3)], 4)
    False
    """
    index = bisect_right(rewound, ordinal, key=lambda one: one.first)
    return not index or rewound[index - 1].last < ordinal


@dataclass(frozen=True, slots=True)
class Rewinds:
    """The active messages of a log, as of its last rewind entry.

    Attributes:
        entry: Number of that entry, 0 if there is none.
        ranges: The rewound ranges.
        repair: The findings of the last repair, None if there was none.
    """

    entry: int = 0
    ranges: tuple[RewoundRange, ...] = ()
    repair: Repair | None = None

    @classmethod
    def of(cls, rewind_entry: Entry) -> Rewinds:
        """Return what a rewind entry says."""
        return cls(rewind_entry.number, rewind_entry.rewound, rewind_entry.repair)

    @property
    def joins(self) -> tuple[int, ...]:
        """Return the entries that are valid although they name another predecessor than the entry before them."""
        return self.repair.joins if self.repair else ()

    def is_active(self, ordinal: int) -> bool:
        """Return True if a message was not rewound."""
        return not self.ranges or is_active(self.ranges, ordinal)

    def active_before(self, number: int) -> int:
        """Return the end, exclusive, of the entries before `number` that may contain active messages.

        That is `number` itself, or the first entry of the rewound range directly before it.
        """
        return next((one.entry for one in self.ranges if one.entry <= number - 1 <= one.until), number)

    def active_after(self, number: int) -> int:
        """Return the first entry from `number` on that may contain active messages."""
        return next((one.until + 1 for one in self.ranges if one.entry <= number <= one.until), number)

    def corrected(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return entries with the totals that the last repair corrected."""
        return corrected(entries, self.repair) if self.repair else entries


NO_REWINDS = Rewinds()


def checked_ranges(
    ranges: Iterable[RewoundRange], totals: Totals, *, is_repaired: bool = False
) -> tuple[RewoundRange, ...]:
    """Return the rewound ranges of a stored rewind entry if they agree with its totals.

    Args:
        ranges: The ranges as stored.
        totals: Totals of the rewind entry.
        is_repaired: The log was repaired, so two writers may have used the same ordinals.

    Raises:
        ValueError: The ranges are not in order, or their size differs from the number of inactive messages.
    """
    found = tuple(ranges)
    ends = [end for one in found for end in (one.first, one.last)]
    size = sum(one.last - one.first + 1 for one in found)
    if ends != sorted(ends) or (size != totals.messages - totals.active and not is_repaired):
        raise ValueError("its rewound ranges do not agree with its count of active messages")
    return found


def rewind_from(
    after: Totals,
    rewound: Sequence[RewoundRange],
    *,
    ordinal: int,
    entry: int,
    point: Totals,
    at: datetime,
    link: int = 0,
) -> Entry:
    """Return the rewind entry that rewinds everything from an ordinal on.

    Args:
        after: Totals of the log before the rewind entry.
        rewound: Ranges that are already rewound.
        ordinal: The first message to rewind, which must be active.
        entry: The first entry that contains only messages to rewind.
        point: Totals of the log before that message.
        at: Date of the rewind.
        link: Random number of the rewind entry.
    """
    number = after.entries + 1
    new = RewoundRange(ordinal, after.messages, entry, number)
    joined = _joined([one for one in rewound if one.last < ordinal], new)
    return _rewind_entry(after, joined, point, undo=number, at=at, link=link)


def undo_rewind(
    after: Totals, *, before: Totals, rewound: Sequence[RewoundRange], undo: int, at: datetime, link: int = 0
) -> Entry:
    """Return the rewind entry that undoes a rewind; messages appended since then are rewound instead.

    Args:
        after: Totals of the log before the new rewind entry.
        before: Totals of the log before the rewind.
        rewound: Ranges that were rewound then.
        undo: The rewind that could be undone then.
        at: Date of the undo.
        link: Random number of the new rewind entry.
    """
    number = after.entries + 1
    since = RewoundRange(before.messages + 1, after.messages, before.entries + 1, number)
    joined = _joined(rewound, since) if since.last >= since.first else tuple(rewound)
    return _rewind_entry(after, joined, before, undo=undo, at=at, link=link)


def _joined(rewound: Sequence[RewoundRange], last: RewoundRange) -> tuple[RewoundRange, ...]:
    """Append a range, merged with the one before if they touch."""
    if rewound and rewound[-1].last == last.first - 1:
        return (*rewound[:-1], RewoundRange(rewound[-1].first, last.last, rewound[-1].entry, last.until))
    return (*rewound, last)


def _rewind_entry(
    after: Totals, rewound: tuple[RewoundRange, ...], point: Totals, *, undo: int, at: datetime, link: int
) -> Entry:
    """Return a rewind entry with the active counts of an earlier point and all other totals of the present."""
    totals = replace(
        point,
        entries=after.entries + 1,
        messages=after.messages,
        sources_through=after.sources_through,
        given_through=after.given_through,
        usage=after.usage,
        stored_bytes=after.stored_bytes,
        shown_at=after.shown_at,
        shown=after.shown,
        rewind_entry=after.entries + 1,
        updated_at=at,
        link=link,
    )
    first = after.messages + 1
    return Entry(first=first, at=at, messages=(), totals=totals, after=after.link, rewound=rewound, undo=undo)

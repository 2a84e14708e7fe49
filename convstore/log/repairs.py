"""Repair a log whose entries do not follow each other, because a backup was restored under running processes.

Missing entries are replaced by entries without messages that name the lost ordinals and source ids. A rewind entry at
the end lists the inactive ordinals and the entries with another predecessor than they name, and recounts the totals.
Stored entries are never changed, so the rewind entry also holds the corrections to the totals of earlier entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from convstore.log.entry import Entry, EntryMessage, Lost, Recount, Repair, RewoundRange, Totals
from convstore.log.rewind import COUNTS, NO_REWINDS, Rewinds
from convstore.log.totals import totals_after
from convstore.messages.encoding import decode_message
from convstore.messages.values import Codec


@dataclass(frozen=True, slots=True)
class Span:
    """Number and ordinals of an entry; `last` is below `first` if it has no messages."""

    number: int
    first: int
    last: int


@dataclass(slots=True)
class Survey:
    """The structure of a whole log, collected entry by entry.

    Attributes:
        spans: Spans of all entries.
        holes: For each run of missing entries, the entry before and the entry after it.
        joins: Numbers of entries that name another predecessor than the entry before them.
        lost: Numbers of entries that replace lost ones.
        sources_through: Highest source id in the totals of any entry.
        tail: The last entry.
        rewinds: The active messages as of the last rewind entry.
    """

    spans: list[Span] = field(default_factory=list)
    holes: list[tuple[Entry, Entry]] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    sources_through: int = 0
    tail: Entry | None = None
    rewinds: Rewinds = NO_REWINDS

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        before = self.tail or _BEGINNING
        if entry.number > before.number + 1:
            self.holes.append((before, entry))
        elif entry.after != before.totals.link:
            self.joins.append(entry.number)
        self.spans.append(Span(entry.number, entry.first, entry.last))
        self.sources_through = max(self.sources_through, entry.totals.sources_through)
        if entry.lost:
            self.lost.append(entry.number)
        self.tail = entry
        if entry.is_rewind:
            with suppress(ValueError):  # its whole list was lost with the tail
                self.rewinds = self.rewinds.after(entry)

    @property
    def repair(self) -> Repair | None:
        """The findings of the last repair, None without a repair."""
        return self.rewinds.repair

    @property
    def new_joins(self) -> list[int]:
        """Numbers of entries that no repair has joined yet."""
        repaired = self.repair.joins if self.repair else ()
        return [number for number in self.joins if number not in repaired]

    @property
    def new_lost(self) -> list[int]:
        """Numbers of entries that replace lost ones and that no repair has counted yet."""
        return [number for number in self.lost if number > (self.repair.until if self.repair else 0)]


_BEGINNING = Entry(first=1, at=datetime.min.replace(tzinfo=UTC), messages=(), totals=Totals())


def lost_entries(before: Entry, after: Entry, *, at: datetime, link: Callable[[], int]) -> list[Entry]:
    """Return replacements for the entries missing between two others, in order.

    The last of them has the link that the next entry names, so that the log is contiguous again.
    """
    numbers, last = range(before.number + 1, after.number), max(before.last, after.first - 1)
    own = [source.id for source in after.sources]
    through = max(before.totals.sources_through, min(own) - 1 if own else after.totals.sources_through)
    lost = Lost(before.last + 1, last, before.totals.sources_through + 1, through)
    made: list[Entry] = []
    for number in numbers:
        previous = made[-1].totals if made else before.totals
        totals = replace(
            previous,
            entries=number,
            messages=last,
            sources_through=through,
            given_through=through,
            updated_at=at,
            link=after.after if number == numbers[-1] else link(),
        )
        made.append(Entry(lost.first, at, (), totals, after=previous.link, lost=lost))
        lost = Lost(last + 1, last, through + 1, through)
    return made


class LogRecount:
    """Counts the active messages of a log again, entry by entry up to its tail, and makes the entry that says so."""

    def __init__(self, survey: Survey, tail: Entry, codec: Codec) -> None:
        self._survey, self._tail, self._codec = survey, tail, codec
        self._rewinds = Rewinds(ranges=_inactive_ranges(survey.spans, survey.lost, survey.rewinds))
        repaired_from = [survey.repair.entry] if survey.repair else []
        self._first = min(tail.number + 1, *survey.new_joins, *survey.new_lost, *repaired_from)
        self._all, self._active, self._shown_at = Totals(), Totals(), 0
        self._counters, self._recounts = set[str](), list[Recount]()

    def add(self, entry: Entry) -> None:
        """Count the next entry."""
        active = [message for message in entry.messages if self._rewinds.has(message.ordinal)]
        self._all = self._add(self._all, entry, entry.messages)
        # An entry's own totals count all of its messages, as it was appended before any of them was rewound.
        appended = self._add(self._active, entry, entry.messages)
        self._active = self._add(self._active, entry, active) if len(active) < len(entry.messages) else appended
        if active:
            self._counters.add(entry.totals.counter)
        if entry.sources:
            self._shown_at = entry.number
        if entry.number >= self._first:
            self._recount(entry, appended)

    def _add(self, before: Totals, entry: Entry, messages: Sequence[EntryMessage]) -> Totals:
        decoded = ((message, decode_message(self._codec, message.body)) for message in messages)
        return totals_after(before, decoded, at=entry.at) if messages else before

    def _recount(self, entry: Entry, counted: Totals) -> None:
        more = tuple(getattr(entry.totals, name) - getattr(counted, name) for name in COUNTS)
        last = self._recounts[-1] if self._recounts else None
        if last and last.until == entry.number - 1 and last[2:] == more:
            self._recounts[-1] = last._replace(until=entry.number)
        elif any(more):
            self._recounts.append(Recount(entry.number, entry.number, *more))

    def entry(self, *, at: datetime, link: int) -> Entry:
        """Return the rewind entry with the inactive ordinals, the new totals, and the corrections to earlier ones."""
        number, survey, last = self._tail.number + 1, self._survey, max(span.last for span in self._survey.spans)
        totals = replace(
            self._active,
            entries=number,
            messages=last,
            counter=self._counters.pop() if len(self._counters) == 1 else "",
            rewind_entry=number,
            whole_list=number,
            sources_through=survey.sources_through,
            given_through=survey.sources_through,
            usage=self._all.usage,
            stored_bytes=self._all.stored_bytes,
            shown_at=self._shown_at,
            updated_at=self._tail.totals.updated_at,  # a repair does not use the conversation
            link=link,
        )
        repair = Repair(self._first, number, tuple(survey.joins), tuple(self._recounts))
        ranges = self._rewinds.ranges
        return Entry(last + 1, at, (), totals, after=self._tail.totals.link, rewound=ranges, repair=repair)


def _inactive_ranges(spans: Sequence[Span], lost: Iterable[int], rewinds: Rewinds) -> tuple[RewoundRange, ...]:
    """Return all inactive ordinals: those in no entry, and those that were rewound.

    Args:
        spans: Spans of all entries.
        lost: Numbers of entries that replace lost ones.
        rewinds: The active messages as of the last rewind entry; it does not apply to entries after it.
    """
    is_lost, number = set(lost), rewinds.entry
    stored = _joined((span.first, span.last) for span in spans if span.number not in is_lost)
    later = _joined((span.first, span.last) for span in spans if span.number not in is_lost and span.number > number)
    maximum = max((span.last for span in spans), default=0)
    rewound = _without([(range_.first, range_.last) for range_ in rewinds.ranges], later)
    ranges = _joined([*_without([(1, maximum)], stored), *rewound])
    return tuple(_range_with_entries(first, last, spans) for first, last in ranges)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and merge those that touch or overlap; empty ones are dropped.

    >>> _joined([(5, 6), (1, 2), (3, 4), (9, 8)])
    [(1, 6)]
    """
    joined: list[tuple[int, int]] = []
    for first, last in sorted(pair for pair in ranges if pair[1] >= pair[0]):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _without(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Subtract other ranges, which must be sorted, from ranges.

    >>> _without([(1, 10)], [(3, 4), (10, 12)])
    [(1, 2), (5, 9)]
    """
    rest = []
    for first, last in ranges:
        start = first
        for low, high in others:
            if low <= last and high >= start:
                rest.append((start, low - 1))
                start = high + 1
        rest.append((start, last))
    return [pair for pair in rest if pair[1] >= pair[0]]


def _range_with_entries(first: int, last: int, spans: Sequence[Span]) -> RewoundRange:
    """Return a range of ordinals with the entries that contain no others."""
    full = [span for span in spans if span.last >= span.first]
    entry = max((span.number for span in full if span.first < first), default=0) + 1
    until = min((span.number for span in full if span.last > last), default=spans[-1].number + 1) - 1
    inside = (first <= span.first and span.last <= last for span in full if entry <= span.number <= until)
    return RewoundRange(first, last, entry, until if all(inside) else entry - 1)

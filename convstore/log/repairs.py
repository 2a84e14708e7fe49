"""Joins a log again whose entries do not follow each other, because a backup was restored beneath running processes.

Layer 1, pure. Missing entries are replaced by entries that hold no messages and name what is lost. A marker at the end
names the ordinals that are not live and the entries that follow another one than they name, and counts the totals
again. No stored entry is changed, so the marker also holds how to correct the totals of entries before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from convstore.log.entry import Entry, Lost, Repair, RewoundRange, Totals

__all__ = ["Span", "Survey", "corrected", "lost_entries", "repair_gaps"]


@dataclass(frozen=True, slots=True)
class Span:
    """Number and ordinals of an entry; its last ordinal is below the first if it has none."""

    number: int
    first: int
    last: int


@dataclass(slots=True)
class Survey:
    """Shape of a whole log, entry by entry.

    Attributes:
        spans: Of all entries.
        holes: Of missing entries: the entry before them and the one after them.
        joins: Numbers of entries that name another predecessor than the entry before them.
        lost: Numbers of entries that stand for lost ones.
        sources_through: Highest source id that an entry tells of.
        source_ids: All that entries hold.
        tail: The last entry.
        marker: The last marker.
    """

    spans: list[Span] = field(default_factory=list)
    holes: list[tuple[Entry, Entry]] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    sources_through: int = 0
    source_ids: set[int] = field(default_factory=set)
    tail: Entry | None = None
    marker: Entry | None = None

    def add(self, entry: Entry) -> None:
        """Take the next entry."""
        before = self.tail or _BEGINNING
        if entry.number > before.number + 1:
            self.holes.append((before, entry))
        elif entry.after != before.totals.link:
            self.joins.append(entry.number)
        self.spans.append(Span(entry.number, entry.first, entry.last))
        self.sources_through = max(self.sources_through, entry.totals.sources_through)
        self.source_ids.update(source.id for source in entry.sources)
        if entry.lost:
            self.lost.append(entry.number)
        self.tail = entry
        if entry.totals.marker == entry.number:
            self.marker = entry

    @property
    def repair(self) -> Repair | None:
        """What the last repair found out."""
        return self.marker.repair if self.marker else None

    @property
    def new_joins(self) -> list[int]:
        """Numbers of entries that no repair has joined yet."""
        known = self.repair.joins if self.repair else ()
        return [number for number in self.joins if number not in known]

    @property
    def new_lost(self) -> list[int]:
        """Numbers of entries that stand for lost ones and that no repair has counted yet."""
        return [number for number in self.lost if number > (self.repair.until if self.repair else 0)]


_BEGINNING = Entry(first=1, at=datetime.min.replace(tzinfo=UTC), messages=(), totals=Totals())


def lost_entries(before: Entry, behind: Entry, *, at: datetime, link: Callable[[], int]) -> list[Entry]:
    """The entries that stand for those missing between two others, in order.

    The last of them has the link that the entry behind it names, so that the log is whole again.
    """
    numbers, last = range(before.number + 1, behind.number), max(before.last, behind.first - 1)
    own = [source.id for source in behind.sources]
    through = max(before.totals.sources_through, min(own) - 1 if own else behind.totals.sources_through)
    lost = Lost(before.last + 1, last, before.totals.sources_through + 1, through)
    made: list[Entry] = []
    for number in numbers:
        previous = made[-1].totals if made else before.totals
        totals = replace(
            previous,
            entries=number,
            messages=last,
            sources_through=through,
            updated_at=at,
            link=behind.after if number == numbers[-1] else link(),
        )
        made.append(Entry(lost.first, at, (), totals, after=previous.link, lost=lost))
        lost = Lost(last + 1, last, through + 1, through)
    return made


def repair_gaps(spans: Sequence[Span], lost: Iterable[int], marker: Entry | None) -> tuple[RewoundRange, ...]:
    """All ordinals that are not live: those that no entry holds, and those that the last marker rewinds.

    Args:
        spans: Of all entries.
        lost: Numbers of entries that stand for lost ones.
        marker: The last marker; it says nothing of entries behind it.
    """
    is_lost, number = set(lost), marker.number if marker else 0
    held = _joined((span.first, span.last) for span in spans if span.number not in is_lost)
    later = _joined((span.first, span.last) for span in spans if span.number not in is_lost and span.number > number)
    most = max((span.last for span in spans), default=0)
    rewound = _without([(gap.first, gap.last) for gap in marker.gaps] if marker else [], later)
    ranges = _joined([*_without([(1, most)], held), *rewound])
    return tuple(_gap(first, last, spans) for first, last in ranges)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, in one piece where they touch or overlap.

    >>> _joined([(5, 6), (1, 2), (3, 4), (9, 8)])
    [(1, 6)]
    """
    made: list[tuple[int, int]] = []
    for first, last in sorted(one for one in ranges if one[1] >= one[0]):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made


def _without(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is in ranges and in no other; the others in order.

    >>> _without([(1, 10)], [(3, 4), (10, 12)])
    [(1, 2), (5, 9)]
    """
    left = []
    for first, last in ranges:
        start = first
        for low, high in others:
            if low <= last and high >= start:
                left.append((start, low - 1))
                start = high + 1
        left.append((start, last))
    return [one for one in left if one[1] >= one[0]]


def _gap(first: int, last: int, spans: Sequence[Span]) -> RewoundRange:
    """A range of ordinals with the entries that hold no others."""
    full = [span for span in spans if span.last >= span.first]
    entry = max((span.number for span in full if span.first < first), default=0) + 1
    until = min((span.number for span in full if span.last > last), default=spans[-1].number + 1) - 1
    inside = (first <= span.first and span.last <= last for span in full if entry <= span.number <= until)
    return RewoundRange(first, last, entry, until if all(inside) else entry - 1)


def corrected(entries: Sequence[Entry], repair: Repair | None) -> Sequence[Entry]:
    """Entries with totals of what the log holds, where they were written behind a tail that was not there any more."""
    if repair is None or not repair.recounts or not entries or entries[0].number >= repair.until:
        return entries
    return [_corrected(entry, repair) for entry in entries]


def _corrected(entry: Entry, repair: Repair) -> Entry:
    recount = next((one for one in repair.recounts if one.entry <= entry.number <= one.until), None)
    if recount is None:
        return entry
    totals = entry.totals
    return replace(
        entry,
        totals=replace(
            totals,
            live=totals.live - recount.live,
            turns=totals.turns - recount.turns,
            results=totals.results - recount.results,
            tokens=totals.tokens - recount.tokens,
            view_tokens=totals.view_tokens - recount.view_tokens,
        ),
    )

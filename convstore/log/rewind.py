"""Rewind messages: they stay in the log, but leave views and listings.

A rewind is stored as a rewind entry, which has no messages. It has the ranges of ordinals that are not active, as the
difference to the whole list of an earlier rewind entry: ranges that are rewound in addition, and ranges that are active
again. If the difference is large, the entry stores a new whole list. So the size of an entry does not grow with the
number of rewinds, and any change of the active messages is one entry.

The entries of a variant that is not active yet hide their own messages; see `log.branch`.

The running totals of a rewind entry continue from the message before the first rewound one, so that totals only count
active messages. Undoing a rewind writes a rewind entry too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from convstore.log.entry import NO_FACTS, Entry, EntryMessage, Facts, Totals
from convstore.log.facts.branch import BRANCH, shown_event
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.rewound import REWOUND, Rewound, RewoundRange
from convstore.log.facts.standing import branched_after
from convstore.values.ranges import has

MAX_DIFFERENCE = 64
"""Number of ranges in the largest difference; a rewind that would exceed it stores a whole list."""

_LONG = 16
"""Number of successive entries without active messages from which a read skips them."""

SIZES = ("tokens", "view_tokens")
"""The totals that depend on the token counter."""

COUNTS = ("active", "turns", "failed", *SIZES)
"""The totals that count active messages only."""

OF_ACTIVE = (*COUNTS, "counter", "calls", "preview", "turn", "over", "cut")
"""All totals that depend on which messages are active."""

Ranges = tuple[RewoundRange, ...]
"""Rewound ranges in order."""

_first = attrgetter("first")
_entry = attrgetter("entry")


@dataclass(frozen=True, slots=True)
class Rewinds:
    """The active messages of a log, as of its last rewind entry.

    Attributes:
        entry: Number of that entry, 0 if nothing was rewound.
        ranges: The rewound ranges.
        undo: Number of the rewind that can be undone, or 0.
        whole: The active messages as of the last entry with a whole list; None if `entry` has it.
    """

    entry: int = 0
    ranges: Ranges = ()
    undo: int = 0
    whole: Rewinds | None = None

    def after(self, entry: Entry) -> Rewinds:
        """Return the active messages as of a rewind entry.

        Raises:
            ValueError: The entry continues another whole list, or its ranges are wrong.
        """
        totals = entry.totals
        change = REWOUND.of(entry)
        if change is None:
            raise ValueError("its rewound ranges are missing")
        is_whole = totals.whole_list == entry.number
        whole = NO_REWINDS if is_whole or not totals.whole_list else self.whole or self
        if not is_whole and whole.entry != totals.whole_list:
            raise ValueError("the whole list of rewound ranges that it continues is missing")
        ranges = _changed(whole.ranges, change.ranges, change.restored)
        size = sum([range_.last - range_.first + 1 for range_ in ranges])
        if size != totals.messages - totals.active:
            raise ValueError("its rewound ranges do not agree with its count of active messages")
        return Rewinds(entry.number, ranges, change.undo, None if is_whole else whole)

    def _needed(self, totals: Totals) -> list[int]:
        """Return the numbers of the rewind entries to apply for the active messages as of some totals, in order."""
        if totals.rewind_entry in (0, self.entry):
            return []
        known = (0, totals.rewind_entry, (self.whole or self).entry)
        return [*{totals.whole_list}.difference(known), totals.rewind_entry]

    def missing(self, totals: Totals, entries: Sequence[Entry] = ()) -> list[int]:
        """Return the numbers of the entries that a call of `at` needs and that are not given; two at most."""
        found = {entry.number for entry in entries}
        return [number for number in self._needed(totals) if number not in found]

    def at(self, totals: Totals, entries: Sequence[Entry]) -> Rewinds:
        """Return the active messages as of some totals, given the entries that were `missing`; see `after`."""
        found = {entry.number: entry for entry in entries}
        rewinds = self if totals.rewind_entry else NO_REWINDS
        for number in self._needed(totals):
            rewinds = rewinds.after(found[number])
        return rewinds

    def has(self, ordinal: int) -> bool:
        """Return True if a message is active: it was not rewound.

        >>> Rewinds(ranges=(RewoundRange(first=3, last=4, entry=2, until=3),)).has(4)
        False
        """
        return not has(self.ranges, ordinal)

    def last_active(self, ordinal: int) -> int:
        """Return the last active ordinal up to `ordinal`, or 0."""
        for range_ in reversed(self.through(ordinal)):
            if range_.last < ordinal:
                break
            ordinal = range_.first - 1
        return ordinal

    def next_active(self, ordinal: int) -> int:
        """Return the first ordinal from `ordinal` on that was not rewound; it may be beyond the end of the log."""
        for range_ in self.ranges[max(0, bisect_right(self.ranges, ordinal, key=_first) - 1) :]:
            if range_.first <= ordinal <= range_.last:
                ordinal = range_.last + 1
        return ordinal

    def through(self, ordinal: int) -> Ranges:
        """Return the ranges that begin at an ordinal or before it."""
        return self.ranges[: bisect_right(self.ranges, ordinal, key=_first)]

    def end_before(self, number: int) -> int:
        """Return the end, exclusive, of the entries before `number` that may contain active messages.

        That is `number` itself, or the first entry of the rewound range directly before it.
        """
        found = self._with_entry(number - 1)
        return found.entry if found else number

    def read_before(self, number: int) -> int:
        """Return the end, exclusive, of the entries before `number` that are read; see `read_from`."""
        found = self._with_entry(number - 1, at_least=_LONG)
        return found.entry if found else number

    def read_from(self, number: int) -> int:
        """Return the first entry from `number` on that a read needs.

        A read skips a long series of rewound entries. It does not skip a short one, as these entries may have events.
        """
        found = self._with_entry(number, at_least=_LONG)
        return found.until + 1 if found else number

    def stretch_from(self, start: int, end: int) -> int:
        """Return the end, exclusive, of a read that begins at an entry: `end`, or a long series of rewound entries."""
        for range_ in self.ranges[bisect_right(self.ranges, start, key=_entry) :]:
            if range_.entry >= end:
                break
            if range_.until - range_.entry >= _LONG:
                return range_.entry
        return end

    def stretch_before(self, end: int, start: int) -> int:
        """Return the first entry of a read that ends before `end`: `start`, or one after a long rewound series."""
        for range_ in reversed(self.ranges[: bisect_right(self.ranges, end - 1, key=_entry)]):
            if range_.until < start:
                break
            if range_.until - range_.entry >= _LONG:
                return range_.until + 1
        return start

    def has_long_gap(self, first: int, last: int) -> bool:
        """Return True if many entries between two messages, or directly after the second one, are all rewound."""
        ranges = self.ranges[bisect_right(self.ranges, first, key=_first) :]
        return any(
            range_.until - range_.entry >= _LONG for range_ in ranges if range_.first <= last + 1
        )

    def _with_entry(self, number: int, *, at_least: int = 0) -> RewoundRange | None:
        """Return the range that covers an entry and at least so many more, if there is one."""
        index = bisect_right(self.ranges, number, key=_entry)
        found = self.ranges[index - 1] if index else None
        if found is None or found.until < number or found.until - found.entry < at_least:
            return None
        return found

    def event_of(self, entry: Entry) -> TurnEvent | None:
        """Return the event of an entry, unless the event is hidden or was rewound.

        A rewind also undoes ends of turns and changes of variants. It does not undo waits and decisions.
        """
        event = shown_event(entry)
        if event is None or event.is_of_call or not (event.over or event.variant):
            return event
        if entry.first <= entry.last:
            is_active = self.has(entry.last)
        else:
            is_active = self._with_entry(entry.number) is None
        return event if is_active else None

    @staticmethod
    def totals_after_change(entry: Entry) -> Totals | None:
        """Return the totals after an entry if it changed which messages are active, else None."""
        return entry.totals if entry.is_rewind else None

    def gaps(self, last: int) -> tuple[tuple[int, int], ...]:
        """Return first and last ordinals of the rewound ranges up to an ordinal.

        >>> Rewinds(ranges=(RewoundRange(3, 9, 2, 4),)).gaps(5)
        ((3, 5),)
        """
        return tuple((range_.first, min(range_.last, last)) for range_ in self.through(last))

    def of(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries without rewound messages and without ends of turns that were rewound.

        Totals count the other messages only. Entries of a variant keep their events.
        """
        is_whole = not self.ranges and not any(entry.facts for entry in entries)
        return entries if is_whole else [self._shown(entry) for entry in entries]

    def _shown(self, entry: Entry) -> Entry:
        shown = self._without_rewound(entry)
        if not shown.facts or BRANCH.of(shown) or EVENT.of(shown) is None or self.event_of(entry):
            return shown
        return EVENT.on(shown, None)

    def _without_rewound(self, entry: Entry) -> Entry:
        index = bisect_right(self.ranges, entry.last, key=_first)
        branch = BRANCH.of(entry)
        if not branch and (not index or self.ranges[index - 1].last < entry.first):
            return entry
        rewound = [message for message in entry.messages if not self.has(message.ordinal)]
        kept = tuple(message for message in entry.messages if self.has(message.ordinal))
        if branch and not kept:  # the totals of a hidden entry do not count its messages
            return replace(entry, messages=())
        totals = continued(entry.totals, branch) if branch else entry.totals
        return replace(entry, messages=kept, totals=_less(totals, active_counts(rewound)))


NO_REWINDS = Rewinds()


def active_counts(messages: Sequence[EntryMessage]) -> Counter[str]:
    """Return the counts that some messages add to the totals of active messages."""
    return Counter(
        active=len(messages),
        turns=sum(message.begins_turn for message in messages),
        tokens=sum(message.tokens for message in messages),
        view_tokens=sum(message.view_tokens for message in messages),
        failed=sum(message.is_failed for message in messages),
    )


def _less(totals: Totals, counts: Mapping[str, int]) -> Totals:
    return replace(totals, **{name: getattr(totals, name) - counts[name] for name in COUNTS})


def continued(totals: Totals, point: Totals) -> Totals:
    """Return totals with the fields that depend on active messages taken from those at a point of the log."""
    return replace(totals, **{name: getattr(point, name) for name in OF_ACTIVE})


def difference(ranges: Ranges, later: Ranges) -> tuple[Ranges, Ranges]:
    """Return the ranges that only a later list has, and those that only the earlier one has.

    >>> one, two, three = (RewoundRange(first, first, 0, 0) for first in (1, 2, 3))
    >>> difference((one, two), (one, three)) == ((three,), (two,))
    True
    """
    start = min(len(ranges), len(later))
    while start and ranges[start - 1] != later[start - 1]:  # long lists differ only at their ends
        start -= 1
    start = start if ranges[:start] == later[:start] else 0
    before = set(ranges[start:])
    after = set(later[start:])
    return tuple(sorted(after - before)), tuple(sorted(before - after))


def _changed(ranges: Ranges, rewound: Ranges, restored: Ranges) -> Ranges:
    """Apply a difference to a list of ranges; raise a ValueError if ranges overlap afterwards."""
    changed = [range_.first for range_ in (*rewound[:1], *restored[:1])]
    start = bisect_left(ranges, min(changed), key=_first) if changed else len(ranges)
    end = sorted([*rewound, *set(ranges[start:]).difference(restored)])
    if any(
        range_.last >= following.first
        for range_, following in pairwise([*ranges[:start][-1:], *end])
    ):
        raise ValueError("its rewound ranges overlap")
    return ranges[:start] + tuple(end)


class ActiveChange(NamedTuple):
    """A change of the active messages.

    Attributes:
        kept: The rewound ranges before `first`, as of the change.
        first: The first message to rewind, with all later ones; the next ordinal of the log to rewind no message.
        entry: The first entry that contains only messages to rewind.
        point: Totals with the counts of the messages that are active after the change.
        undo: Number of the rewind that can be undone after the change; None for the change itself.
        facts: Further facts of its entry.
    """

    kept: Ranges
    first: int
    entry: int
    point: Totals
    undo: int | None = None
    facts: Facts = NO_FACTS


def rewind_entry(
    after: Totals, rewinds: Rewinds, change: ActiveChange, *, at: datetime, link: int
) -> Entry:
    """Return the rewind entry of a change, given the totals and the active messages of the log before the change."""
    number = after.entries + 1
    ranges = joined(change.kept, RewoundRange(change.first, after.messages, change.entry, number))
    totals = replace(after, entries=number, updated_at=at, link=link)
    made = Entry(after.messages + 1, at, (), totals, after.link, facts=change.facts)
    return changed(
        made,
        rewinds,
        ranges,
        point=change.point,
        undo=number if change.undo is None else change.undo,
    )


def changed(entry: Entry, rewinds: Rewinds, ranges: Ranges, *, point: Totals, undo: int) -> Entry:
    """Return an entry after which exactly the messages in `ranges` are rewound; `point` counts the other messages."""
    number = entry.number
    whole = rewinds.whole or rewinds
    rewound, restored = difference(whole.ranges, ranges)
    is_whole = len(rewound) + len(restored) > MAX_DIFFERENCE
    totals = replace(
        entry.totals, rewind_entry=number, whole_list=number if is_whole else whole.entry
    )
    if is_whole:
        rewound = ranges
        restored = ()
    facts = REWOUND.put(Rewound(rewound, restored, undo, rewinds.entry), entry.facts)
    made = replace(entry, totals=continued(totals, point), facts=facts)
    branched = branched_after(made, made.totals.branched)
    return replace(made, totals=replace(made.totals, branched=branched))


def joined(rewound: Ranges, last: RewoundRange) -> Ranges:
    """Append a range to some ranges, merged with the last of them if they touch; an empty range is ignored."""
    if last.last < last.first:
        return rewound
    if rewound and rewound[-1].last == last.first - 1:
        last = RewoundRange(rewound[-1].first, last.last, rewound[-1].entry, last.until)
        rewound = rewound[:-1]
    return (*rewound, last)

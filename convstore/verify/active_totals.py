"""Counts the active messages after each rewind entry, to compare them with the entry's totals."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from langchain_core.messages import BaseMessage

from convstore.log.entry import RULES, Entry, RewoundRange, Totals
from convstore.log.rewind import COUNTS, NO_REWINDS, OF_ACTIVE, Rewinds, continued, counts_of, difference
from convstore.log.totals import totals_after


@dataclass(slots=True)
class ActiveTotals:
    """The totals of the active messages of one conversation, counted entry by entry; it keeps 56 bytes of each message.

    Attributes:
        messages: The active messages as of the last rewind entry that could be read.
        problems: Problems of the entry added last, if it is a rewind entry.
    """

    messages: Rewinds = NO_REWINDS
    problems: list[str] = field(default_factory=list)
    _active: Counter[str] | None = field(default_factory=Counter)
    _counters: set[str] = field(default_factory=set)
    _entries: array[int] = field(default_factory=lambda: array("q"))
    _ordinals: array[int] = field(default_factory=lambda: array("q"))
    _counts: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in COUNTS})

    def lose(self) -> None:
        """Mark the totals as unknown, because an entry cannot be read."""
        self._active = None

    def add(self, entry: Entry) -> None:
        """Count an entry; if it is a rewind entry, compare its totals."""
        before, self.problems = self.messages, []
        if entry.is_rewind:
            try:
                self.messages = before.after(entry)
            except ValueError as error:
                self.problems = [str(error)]
        if self._active is None:
            return
        self._active.update(counts_of(entry.messages))
        for message in entry.messages:
            self._counters.add(entry.totals.counter)
            self._entries.append(entry.number)
            self._ordinals.append(message.ordinal)
            for name, number in counts_of([message]).items():
                self._counts[name].append(number)
        if self.messages is not before:
            rewound, restored = difference(before.ranges, self.messages.ranges)
            for range_ in restored:
                self._active.update(self._counts_in(range_))
            for range_ in rewound:
                self._active.subtract(self._counts_in(range_))
            # Sizes made by different token counters cannot be added.
            names = COUNTS if len(self._counters) <= 1 else COUNTS[:3]
            if wrong := [name for name in names if getattr(entry.totals, name) != self._active[name]]:
                self.problems = [f"the totals of active messages are wrong: {', '.join(wrong)}"]

    def _counts_in(self, range_: RewoundRange) -> Counter[str]:
        """Return the counts of a rewound range, which may begin in the middle of the entry before its first one."""
        start, end = bisect_left(self._entries, range_.entry - 1), bisect_right(self._entries, range_.until + 1)
        found = [at for at in range(start, end) if range_.first <= self._ordinals[at] <= range_.last]
        return Counter({name: sum(numbers[at] for at in found) for name, numbers in self._counts.items()})


def with_active(totals: Totals, entry: Entry, before: Totals) -> Totals:
    """Return the expected totals of an entry with what `ActiveTotals` checks as stored."""
    if entry.is_rewind:
        changed = {name: getattr(entry.totals, name) for name in ("rewind_entry", "whole_list")}
        return replace(continued(totals, entry.totals), **changed)
    if not entry.branch:
        return totals
    sizes = {name: getattr(totals, name) for name in ("tokens", "view_tokens", "counter")}  # it may have recounted all
    return replace(continued(totals, before), **sizes)


def branch_problem(entry: Entry, messages: Sequence[BaseMessage], known: dict[tuple[str, str], Totals]) -> str:
    """Compare the totals of a variant with those that follow from its last entry, in `known`; "" if they agree.

    Those of its first entry are compared by `ActiveTotals`, once it becomes active.
    """
    event, stored = entry.event, entry.branch or entry.totals
    if event is None or not event.variant or not entry.is_of(event.variant):
        return ""
    before = known.get((event.first_turn, event.variant))
    known[event.first_turn, event.variant] = stored
    if before is None or entry.rules != RULES or before.counter != stored.counter:
        return ""
    made = totals_after(before, zip(entry.messages, messages, strict=True), at=entry.at, event=event)
    wrong = [name for name in OF_ACTIVE if getattr(made, name) != getattr(stored, name)]
    return f"the totals of variant {event.variant!r} do not follow: {', '.join(wrong)}" if wrong else ""


def number_in(key: str) -> int:
    """Return the number in the key of an entry, 0 without a number."""
    text = key.rpartition(":")[2]
    return int(text) if text.isdecimal() else 0

"""Counts the active messages after each rewind entry, to compare them with the entry's totals.

All entries are counted during the pass. Ranges that a rewind entry hides are read a second time, each part once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from convstore.log.entry import Entry, RewoundRange, Totals
from convstore.log.rewind import COUNTS, NO_REWINDS, OF_ACTIVE, Rewinds, counts_of, difference
from convstore.mongo.documents import entry_from
from convstore.mongo.keys import entry_id
from convstore.verify.findings import Subject


@dataclass(slots=True)
class ActiveTotals:
    """The totals of the active messages of one conversation, counted entry by entry.

    Attributes:
        messages: The active messages as of the last rewind entry that could be read.
        problems: Problems of the entry added last, if it is a rewind entry.
    """

    subject: Subject
    messages: Rewinds = NO_REWINDS
    problems: list[str] = field(default_factory=list)
    _active: Counter[str] | None = field(default_factory=Counter)
    _counters: set[str] = field(default_factory=set)
    _known: dict[int, tuple[RewoundRange, Counter[str]]] = field(default_factory=dict)

    def lose(self) -> None:
        """Mark the totals as unknown, because an entry cannot be read."""
        self._active = None

    async def add(self, entry: Entry) -> None:
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
        if entry.messages:
            self._counters.add(entry.totals.counter)
        if self.messages is not before:
            rewound, restored = difference(before.ranges, self.messages.ranges)
            for range_ in restored:
                self._active.update(self._known[range_.first][1])
            for range_ in rewound:
                self._active.subtract(await self._counts_in(range_, entry.number))
            # Sizes made by different token counters cannot be added.
            names = COUNTS if len(self._counters) <= 1 else COUNTS[:3]
            if wrong := [name for name in names if getattr(entry.totals, name) != self._active[name]]:
                self.problems = [f"the totals of active messages are wrong: {', '.join(wrong)}"]

    async def _counts_in(self, range_: RewoundRange, number: int) -> Counter[str]:
        """Return the counts of a rewound range, continuing those made for an earlier rewind entry."""
        known, found = self._known.get(range_.first, (None, Counter[str]()))
        if known == range_:
            return found
        start, after, counts = range_.entry - 2, range_.first - 1, Counter[str]()
        if known and known.entry == range_.entry and known.last <= range_.last and known.until <= range_.until:
            start, after, counts = known.until, known.last, Counter(found)
        conversation, read = self.subject.conversation, self.subject.inspection.entries
        key, end = (entry_id(conversation, at) for at in (max(0, start), min(range_.until + 1, number)))
        while key < end and (documents := await read(conversation, after=key, through=end)):
            messages = (one for document in documents for one in entry_from(document).messages)
            counts.update(counts_of([one for one in messages if after < one.ordinal <= range_.last]))
            key = str(documents[-1]["_id"])
        self._known[range_.first] = (range_, counts)
        return counts


def recounted_totals(entry: Entry, before: Totals) -> Totals | None:
    """Return the totals of a rewind entry as far as they follow from the previous ones, None for any other entry.

    A repair recounts all. `ActiveTotals` checks the others.
    """
    if not entry.is_rewind:
        return None
    if entry.repair and entry.repair.until == entry.number:
        return replace(entry.totals, entries=before.entries + 1, updated_at=before.updated_at)
    of_entry = {name: getattr(entry.totals, name) for name in (*OF_ACTIVE, "rewind_entry", "whole_list", "link")}
    return replace(before, **of_entry, entries=before.entries + 1, updated_at=entry.at)


def number_in(key: str) -> int:
    """Return the number in the key of an entry, 0 if there is none."""
    text = key.rpartition(":")[2]
    return int(text) if text.isdecimal() else 0

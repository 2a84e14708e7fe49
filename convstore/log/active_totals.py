"""Count the active messages after each rewind entry, to compare them with the entry's totals."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from convstore.log.entry import Entry
from convstore.log.rewind import COUNTS, NO_REWINDS, SIZES, Rewinds, active_counts
from convstore.values.ranges import has


@dataclass(slots=True)
class ActiveTotals:
    """The totals of the active messages of one conversation, counted entry by entry. It takes 48 bytes for a message.

    Attributes:
        messages: The active messages as of the last rewind entry that could be read.
        problems: Problems of the entry added last, if it is a rewind entry.
    """

    messages: Rewinds = NO_REWINDS
    problems: list[str] = field(default_factory=list)
    _is_known: bool = True
    _counters: set[str] = field(default_factory=set)
    _questions: list[int] = field(default_factory=list)
    _sums: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q", [0]) for name in COUNTS}
    )

    def lose(self) -> None:
        """Mark the totals as unknown, because an entry is missing or cannot be read."""
        self._is_known = False

    def add(self, entry: Entry) -> None:
        """Count an entry; if it is a rewind entry, compare its totals."""
        before = self.messages
        self.problems = []
        if entry.is_rewind:
            try:
                self.messages = before.after(entry)
            except ValueError as error:
                self.problems = [str(error)]
        if not self._is_known:
            return
        self.count(entry)
        if entry.messages:
            self._counters.add(entry.totals.counter)
        if self.messages is not before:
            wrong = self._wrong_totals(entry)
            if wrong:
                self.problems = [f"the totals of active messages are wrong: {', '.join(wrong)}"]

    def _wrong_totals(self, entry: Entry) -> list[str]:
        """Return the names of a rewind entry's totals that differ from the counts of the active messages after it."""
        rewound = [range_[:2] for range_ in self.messages.ranges]
        counts = self.counts(entry.last, rewound)
        # Sizes made by different token counters cannot be added.
        names = [name for name in COUNTS if len(self._counters) <= 1 or name not in SIZES]
        wrong = [name for name in names if getattr(entry.totals, name) != counts[name]]
        if entry.totals.turn != self.newest_question(rewound):
            wrong.append("turn")
        return wrong

    def count(self, entry: Entry) -> None:
        """Count the messages of an entry; they replace messages with the same or later ordinals."""
        for sums in self._sums.values():
            del sums[entry.first :]
        while self._questions and self._questions[-1] >= entry.first:
            self._questions.pop()
        self._questions += [message.ordinal for message in entry.messages if message.begins_turn]
        for message in entry.messages:
            for name, number in active_counts([message]).items():
                self._sums[name].append(self._sums[name][-1] + number)

    def newest_question(self, rewound: Sequence[tuple[int, int]]) -> int:
        """Return the ordinal of the newest question outside the rewound ranges, or 0."""
        for ordinal in reversed(self._questions):
            if not has(rewound, ordinal):
                return ordinal
        return 0

    def counts(self, through: int, rewound: Iterable[tuple[int, int]]) -> dict[str, Any]:
        """Return the counts of the messages up to an ordinal that are not in rewound ranges.

        An ordinal beyond the last message, as a damaged entry may have it, counts as that of the last message.
        """
        through = min(through, len(self._sums["active"]) - 1)
        found = {name: sums[through] for name, sums in self._sums.items()}
        for first, last in rewound:
            for name, sums in self._sums.items() if first <= through else ():
                found[name] -= sums[min(last, through)] - sums[first - 1]
        return found

"""Plans which messages a view shows under a budget, and which marks to store so that later views agree.

Pure. A view is a function of the log, the policy and the policy's stored record: three marks that only move forward.
They move when the view exceeds the budget, in few large steps, so that a provider's prompt cache stays valid between
them. docs/internals.md ("Where a view starts") explains the rule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import neg
from typing import NamedTuple

from convstore.values.stamps import ViewMarks
from convstore.view.decoder import Showing
from convstore.view.sizes import SizedLog

NoteSize = Callable[[int, Sequence[range]], int]
"""Function that returns the size of the note of a view that begins with a row and leaves out later steps."""


class ViewPlan(NamedTuple):
    """The messages that a view shows, and their forms.

    Attributes:
        marks: The marks of the view, from which it can be rebuilt.
        stored: Start, `short_through` and `stubs_through` for the policy's record.
        begin: Index of the first row that is shown.
        shown: The form of each row from there on, None for a row that is left out.
        left: Steps after the start that are left out, as ranges of rows.
        is_excursion: True if this view alone leaves out more than the stored marks do.
    """

    marks: ViewMarks
    stored: tuple[int, int, int]
    begin: int
    shown: Sequence[Showing | None]
    left: Sequence[range] = ()
    is_excursion: bool = False


def decide(log: SizedLog, record: tuple[int, int, int], note: NoteSize) -> ViewPlan:
    """Plan a view.

    Args:
        log: The turns from the record's start on, or so many that earlier ones cannot be shown.
        record: The stored start, `short_through` and `stubs_through`; zeros for a policy without a record.
        note: Measures notes.
    """
    choice = _MarkChooser(log, record, note)
    choice.limit_turns()
    budget = log.policy.max_tokens
    if budget is None or choice.size() <= budget:
        return choice.plan(choice.record)
    choice.move(budget)
    if choice.size() > budget and not choice.leaves_a_quarter:
        choice.condense()
    stored = choice.record
    if choice.size() > budget:
        choice.excursion(budget)
    return choice.plan(stored)


def plan_from_marks(log: SizedLog, marks: ViewMarks) -> ViewPlan:
    """Return the plan of a past view from the marks in its stamp."""
    choice = _MarkChooser(
        log, (marks.start, marks.short_through, marks.stubs_through), lambda *_: 0
    )
    choice.gap = marks.gap
    return choice.plan(choice.record)


def is_enough(log: SizedLog) -> bool:
    """Return True if turns before these can neither be shown nor change the plan, under any record."""
    budget = log.policy.max_tokens
    turns = len(log.turns)
    limit = log.policy.max_turns
    end = turns + (log.now.begin < log.now.end)
    if limit and end > limit:
        return True
    if budget is None or turns < 2:  # the start must be able to move
        return False
    # `max_turns` may leave only these to exceed the budget
    first = max(0, end - (limit - limit // 4)) if limit else 0
    sizes = (
        log.part(index, short=log.last, stubs=0).size for index in reversed(range(first, turns))
    )
    return any(size > budget for size in accumulate(sizes))


class _MarkChooser:
    """Chooses the marks of a view step by step. `start` is the index of a turn; the turn in progress comes last."""

    def __init__(self, log: SizedLog, record: tuple[int, int, int], note: NoteSize) -> None:
        self.log = log
        self._note = note
        first, self.short, self.stubs = record
        self._known_start = first
        self.start = log.index_of(first)
        self._known_index = self.start
        self.gap = (log.policy.max_tokens or 0) // 4
        self._known_stubs = self.stubs
        self._is_excursion = False
        self._sums: dict[int, tuple[list[int], list[tuple[int, Sequence[range]]]]] = {}

    @property
    def record(self) -> tuple[int, int, int]:
        start = self._known_start if self.start == self._known_index else self.log.first(self.start)
        return start, self.short, self.stubs

    def limit_turns(self) -> None:
        """If the view has more than `max_turns` turns, keep the newest three quarters of that number."""
        maximum = self.log.policy.max_turns
        end = len(self.log.turns) + (self.log.now.begin < self.log.now.end)
        if maximum and end - self.start > maximum:
            self.start = end - (maximum - maximum // 4)

    def early(
        self, start: int | None = None, short: int | None = None, *, left: Sequence[range] = ()
    ) -> int:
        """Return the size of the note and of the turns before the one in progress.

        `left` are further steps for the note to mention.
        """
        first = self.start if start is None else start
        sizes, parts = self._later(self.short if short is None else short)
        steps = [step for index, part in parts if index >= first for step in part]
        return self._note(self.log.begin(first), [*steps, *left]) + sizes[first]

    def _later(self, short: int) -> tuple[list[int], list[tuple[int, Sequence[range]]]]:
        """Return the total size of the finished turns from each one on, and the steps that each leaves out."""
        if short not in self._sums:
            # New stubs are always in the current turn; the turn that had them before is shortened instead.
            parts: list[tuple[int, Sequence[range]]] = []
            sizes = self.log.plain_sizes()
            for index in self.log.changed(short, self._known_stubs):
                part = self.log.part(index, short=short, stubs=self._known_stubs)
                sizes[index] = part.size
                parts += [(index, part.left)] if part.left else []
            self._sums[short] = list(accumulate(reversed(sizes), initial=0))[::-1], parts
        return self._sums[short]

    def size(self, start: int | None = None) -> int:
        """Return the size of the view."""
        now = self.log.current(self.stubs, self.gap)
        return self.log.fixed + self.early(start, left=now.left) + now.size

    def move(self, budget: int) -> None:
        """Shorten turns before the newest, then the newest, then move the start; each only if it is still needed."""
        newest = len(self.log.turns) - 1
        may_move = self.log.unseen <= budget // 2 or self.early() > budget
        if newest < 0 or not may_move or self.early() <= budget // 4:
            return
        marks = [self.short, self._through(newest - 1)]
        self.short = marks[-1]
        if self.size() > budget and self.size(newest) > budget:
            marks.append(self._through(newest))
            self.short = marks[-1]
        if self.early() > budget // 4:
            self._move_start(budget)
        # The smallest mark that gives the same size; turns before the start do not count, as they may be unread.
        self.short = min(marks, key=lambda short: self.early(short=short))

    def _move_start(self, budget: int) -> None:
        """Leave out the oldest turns until the view takes half of the budget; keep the newest turn."""
        newest = len(self.log.turns) - 1
        self._skip(max(budget // 2 - self._others, budget // 8))
        while self.start < newest and self.size() > budget // 2 and self.early() > budget // 8:
            self.start += 1

    @property
    def _others(self) -> int:
        """The size of the view without finished turns and the note."""
        return self.log.fixed + self.log.current(self.stubs, self.gap).size

    @property
    def leaves_a_quarter(self) -> bool:
        """True if unread media leave exactly a quarter of the budget to earlier turns."""
        return self.log.leaves_a_quarter(self.stubs, self.gap)

    def _skip(self, most: int) -> None:
        """Move the start until the finished turns without a note take at most `most`, or only the newest is left."""
        sizes, _ = self._later(self.short)
        self.start = bisect_left(
            sizes, -most, self.start, max(self.start, len(self.log.turns) - 1), key=neg
        )

    def _through(self, index: int) -> int:
        """Return `short_through` with all turns up to the one with this index shortened."""
        return max(self.short, self.log.ends(index)) if index >= self.start else self.short

    def condense(self) -> None:
        """Condense all steps of the turn in progress except the last one."""
        log = self.log
        before = self.log.before_last_step
        if before <= self.stubs:
            return
        if (holder := log.holder(self.stubs)) is not None:
            self.short = max(self.short, log.ends(holder))
        self.stubs = before

    def excursion(self, budget: int) -> None:
        """For this view only, leave out more, to make room for messages that the model has not read yet."""
        log = self.log
        end = len(self.log.turns)
        newest = max(0, end - 1)
        self._is_excursion = True
        if end > 1:
            self.short = max(self.short, log.ends(end - 2))
        most = budget // 4 if self.leaves_a_quarter else budget // 8
        self._skip(min(budget - self._others, most))
        while self.start < newest and (self.size() > budget or self.early() > most):
            self.start += 1
        if self.size() > budget and end:
            self.short = max(self.short, log.ends(newest))
        if self.size() > budget:
            self._leave_steps_out(budget)
        if self.size() > budget:
            self.start = end
            self._leave_steps_out(budget)

    def _leave_steps_out(self, budget: int) -> None:
        """Give condensed steps only the room that the rest of the view leaves.

        Exactly a quarter of the budget would mean the usual room, in which exempt results do not count.
        """
        room = budget - self.log.unseen - self.early()
        self.gap = max(0, room - (room == budget // 4))

    def plan(self, stored: tuple[int, int, int]) -> ViewPlan:
        log = self.log
        marks = ViewMarks(
            start=log.first(self.start),
            short_through=self.short,
            stubs_through=self.stubs,
            gap=self.gap,
        )
        first = log.begin(self.start)
        shown = log.plainly_shown(self.start)
        left: list[range] = []
        for index in log.changed(self.short, self.stubs):
            if index >= self.start:
                turn = log.turns[index]
                part = log.part(index, short=self.short, stubs=self.stubs)
                shown[turn.begin - first : turn.end - first] = part.shown
                left += part.left
        now = log.current(self.stubs, self.gap)
        return ViewPlan(
            marks, stored, first, [*shown, *now.shown], [*left, *now.left], self._is_excursion
        )

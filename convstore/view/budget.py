"""Chooses where a view begins: at a whole turn, moved by the budget in large steps.

Pure. The loader calls it with the rows at the end of the log.

All sizes are those of the policy: a turn in progress counts with all its results in full, a finished turn as views show
it. Each turn, while in progress, leaves room for a certain number of earlier turns. Among the turns at which a view
may begin so that earlier turns fill between half of that room and all of it, it begins at the one whose number is
divisible by the largest power of two. So the start moves by at least half of those turns at a time, and a provider's
prompt cache survives many turns. What a turn requires holds for all later views, so the start never moves back.

A start depends only on turns shortly before it. No view that ends at a turn or later begins before the turns that fill
the whole budget there. Every process reads back to them, and so computes the same start. A turn that exceeds the whole
budget moves the start only while it is in progress; afterwards it counts in the size in which it is shown then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from convstore.log.rows import Row, is_exempt, is_finished, is_hidden, kept_result, leading_system, results_before
from convstore.sources.shortening import SHORTENED
from convstore.values.policy import HistoryPolicy

_MAX_NOTE_TOKENS = 600
"""Upper bound for the size of a note that names the newest results by UUID."""

_SHORTENED_TEXT_TOKENS = 100
"""Approximate size of a text that was shortened as far as possible."""


class Required(NamedTuple):
    """The start that earlier turns require of every view, so that they need not be weighed again.

    Attributes:
        turn: Number of a turn; no view begins before it.
        through: Number of the last turn that was weighed for it; 0 for none.
    """

    turn: int = 0
    through: int = 0


NOTHING_REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Window:
    """The range of rows that a view shows.

    Attributes:
        start: Index of the first row, not counting leading system messages.
        left_out_turns: Number of turns before the first row.
        anchor: Index of the row at which later reads under the same policy may begin; None if there is none.
        room: Tokens to shorten the newest finished turn to, if the view begins with it; 0 if the turn fits.
        without: The window without that turn, used if its texts cannot be shortened enough.
        required: What the turns before the last one require; nothing if there is no anchor.
    """

    start: int
    left_out_turns: int
    anchor: int | None
    room: int = 0
    without: Window | None = None
    required: Required = NOTHING_REQUIRED


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    begin: int
    end: int


def choose_window(
    rows: Sequence[Row],
    policy: HistoryPolicy,
    *,
    fixed_tokens: int,
    note_tokens: Callable[[int], int],
    summarized: bool = False,
    sizes: Sequence[int] | None = None,
    missing_tokens: int = 0,
    known: Required = NOTHING_REQUIRED,
) -> Window | None:
    """Choose where the view begins; return None if earlier rows must be read first.

    If the newest finished turn is too large to be shown along with the next one, it is kept and marked for shortening.

    Args:
        rows: The end of the log, without holes.
        policy: Limits of the view.
        fixed_tokens: Size of the leading system messages.
        note_tokens: Return the size of the note in a view that begins at a given row.
        summarized: True if the rows follow a summary, so that none of them is a leading system message.
        sizes: Size of each row in a finished turn, if the policy shows texts or media differently from the default.
        missing_tokens: Size of a result that a view makes up for a call without one.
        known: The `required` of an earlier window of the same log under this policy.
    """
    first = _first_row(rows, fixed_tokens) if not summarized else 0 if rows and rows[0].place == 1 else -1
    turns = _turns(rows, first)
    if not turns:
        return Window(len(rows), 0, anchor=None) if first >= 0 or not rows else None
    if policy.max_tokens is None:
        number = _first_allowed(turns[-1], policy)
        start = turns[_index_of_number(turns, number)]
        is_known = first >= 0 or number >= turns[0].number
        return Window(start.begin, _turns_left_out(start, first), anchor=start.begin) if is_known else None
    budget = _Budget(
        rows, turns, policy, first=first, fixed=fixed_tokens, note=note_tokens, sizes=sizes, missing=missing_tokens
    )
    return budget.window(known)


def _first_allowed(turn: _Turn, policy: HistoryPolicy) -> int:
    """Return the number of the first turn that `max_turns` allows in a view that ends with `turn`, 0 for any.

    From eight on it is rounded up to a quarter of `max_turns`.
    """
    maximum = policy.max_turns
    first = turn.number - maximum + 1 if maximum is not None else 0
    return -(-first // step) * step if first > 1 and (step := max(1, (maximum or 0) // 4)) else 0


def _roundest(low: int, high: int) -> int:
    """Return the number from `low` to `high` that is divisible by the largest power of two.

    >>> [_roundest(low, low + 5) for low in range(1, 12)]
    [4, 4, 8, 8, 8, 8, 8, 8, 12, 12, 16]
    """
    bits = ((low - 1) ^ high).bit_length() - 1
    return high >> bits << bits


def _first_row(rows: Sequence[Row], fixed_tokens: int) -> int:
    """Return the index of the first row after the log's leading system messages, -1 if it is not among the rows."""
    first = len(leading_system(rows))
    if rows and rows[0].place == 1:
        return first
    row = rows[first] if first < len(rows) else None
    # Leading system messages may be in separate entries that were not read this time.
    begins_log = row and row.before == fixed_tokens and row.turn == (row.message.type == "human") and not row.result
    return first if begins_log else -1


def _turns(rows: Sequence[Row], first: int) -> list[_Turn]:
    """Split rows into whole turns.

    Rows before the first human message form a turn if the log's `first` row is among them.
    """
    begins = [index for index, row in enumerate(rows) if row.message.type == "human" and index >= first]
    if 0 <= first < len(rows) and begins[:1] != [first]:
        begins.insert(0, first)
    if not begins:
        return []
    return [_Turn(rows[begin].turn, begin, end) for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)]


def _index_of_number(turns: Sequence[_Turn], minimum: int) -> int:
    return next((index for index, turn in enumerate(turns) if turn.number >= minimum), len(turns) - 1)


def _turns_left_out(turn: _Turn, first: int) -> int:
    return 0 if turn.begin == first else max(1, turn.number - 1)


class _Start(NamedTuple):
    """The turn at which a view begins; `unsure` is its upper bound as long as earlier rows were not read."""

    number: int
    unsure: int = 0


class _Budget:
    """Finds the start of a view under a token budget; computes the size of any view in constant time."""

    def __init__(
        self,
        rows: Sequence[Row],
        turns: Sequence[_Turn],
        policy: HistoryPolicy,
        *,
        first: int,
        fixed: int,
        note: Callable[[int], int],
        sizes: Sequence[int] | None,
        missing: int,
    ) -> None:
        self.rows, self.policy, self.first, self.fixed, self.note = rows, policy, first, fixed, note
        # The end of a turn whose beginning was not read is a lower bound of the turn's size.
        cut = [_Turn(rows[0].turn, 0, turns[0].begin)] if first < 0 and turns[0].begin else []
        self.turns, self.whole, self.first_whole = [*cut, *turns], len(cut), turns[0].number
        self.budget = policy.max_tokens or 0
        self.note_reserve = max(self.budget // 8, min(_MAX_NOTE_TOKENS, self.budget // 2))
        full = [row.message.tokens for row in rows]
        final = [row.message.view_tokens for row in rows] if sizes is None else list(sizes)
        if policy.view == "conversation":
            hidden = [index for index, row in enumerate(rows) if is_hidden(row.message, policy)]
            for index in hidden:
                full[index] = final[index] = 0
        kept = final.copy()
        for index in (index for index, row in enumerate(rows) if row.message.type == "tool"):
            kept[index] = full[index]
            if is_exempt(rows[index], policy, None):
                final[index] = full[index]
        if policy.view == "full":
            for turn in turns:
                self._add_missing(turn, missing, full, final, kept)
        self.full, self.final, self.kept = _sums(full), _sums(final), _sums(kept)

    def _add_missing(self, turn: _Turn, missing: int, full: list[int], final: list[int], kept: list[int]) -> None:
        """Add what a view makes up: results of unanswered calls, and headers of results whose call may be left out."""
        unanswered = added = 0
        for index in range(turn.begin, turn.end):
            message = self.rows[index].message
            unanswered += message.calls
            if message.type == "tool" and unanswered and message.arguments:
                unanswered -= 1
                full[index] = max(full[index], missing)  # so that a turn never shrinks while it is in progress
            elif message.type == "tool":
                added += missing * (2 + len(message.tool + message.arguments) // 40)
        for sizes in (full, final, kept):
            sizes[turn.begin] += added + unanswered * missing

    def window(self, known: Required) -> Window | None:
        """Return the window of the view; None if earlier rows must be read first."""
        last, is_done = len(self.turns) - 1, is_finished(self.rows)
        earlier = self._required(last, known)
        if not is_done and self.size_alone(last) > self.budget:
            return self._window(last, earlier)
        now = self._required(last + 1, Required(earlier.number, self.turns[last].number - 1))
        allowed, newest = self._first_allowed(last), last - (not is_done)
        is_bounded = newest >= self.whole or self.first >= 0 or allowed >= self.first_whole
        if not is_bounded or not self._is_known(now._replace(unsure=max(now.unsure, earlier.unsure))):
            return None
        index = _index_of_number(self.turns, now.number)
        while index < last and not self._fits(index):
            index += 1
        window = self._window(index, earlier)
        if not index >= newest >= self.whole or self.turns[newest].number < allowed or not (room := self.room(newest)):
            return window
        return replace(self._window(newest, earlier), room=room, without=window)

    def _window(self, index: int, earlier: _Start) -> Window:
        """Return the window that begins with a turn; later reads need what the turns before the last one require."""
        turn = self.turns[index]
        left_out = _turns_left_out(turn, self.first)
        if not self._is_known(earlier):
            return Window(turn.begin, left_out, anchor=None)
        required = Required(earlier.number, max(0, self.turns[-1].number - 1))
        # Later reads must include the turn that is required now, and the newest finished one, whole.
        stable = self.turns[_index_of_number(self.turns, max(earlier.number, self._first_allowed(-1)))]
        return Window(turn.begin, left_out, min(turn.begin, stable.begin, self._anchor()), required=required)

    def _anchor(self) -> int:
        """Return the last row with which no view can begin, now or later, as far as it was read.

        The rows from it to any later turn exceed the budget, because sizes of finished turns only add up.
        """
        end = self.turns[-1].begin
        row = bisect_left(self.final, self.final[end] - self.budget + self.fixed, hi=end) - 1
        allowed = self._first_allowed(-1)
        first = _index_of_number(self.turns, allowed) if allowed >= self.first_whole else 0
        return max(row, self.turns[first].begin)

    def _is_known(self, start: _Start) -> bool:
        """Return True if unread rows cannot change a start."""
        return self.first >= 0 or max(start.number, self._first_allowed(-1)) >= max(self.first_whole, start.unsure)

    def _required(self, end: int, known: Required) -> _Start:
        """Return the last start that any of the first `end` turns requires."""
        number, unsure = known.turn, 0
        for index in reversed(range(self.whole, end)):
            if self.turns[index].number <= max(number, known.through):
                break
            start = self._start(index, number)
            number, unsure = max(number, start.number), max(unsure, start.unsure)
        return _Start(number, unsure)

    def _start(self, index: int, known: int) -> _Start:
        """Return the start that turn `index` requires; any number up to `known` if it requires no more."""
        begin, size = self.turns[index].begin, self.size_alone(index)
        if size > self.budget:
            size = self.fixed + self._finished(begin, self.turns[index].end)
        room = self.budget - size
        if begin == self.first:
            return _Start(0)
        # Building a note costs much of a load; mostly the start is the same with the smallest and the largest one.
        start = self._choose(index, room - self.note_reserve)
        if max(start) <= known or start == self._choose(index, room):
            return start
        # The margin covers notes that name other results and differ slightly in size.
        return self._choose(index, room - min(self.note_reserve, self.note(begin) * 5 // 4))

    def _choose(self, index: int, room: int) -> _Start:
        """Return the start before turn `index` that fills between half of `room` and all of it."""
        first, allowed = self._first_within(room, index), self._first_allowed(index)
        low = max(first, self.whole)  # a turn whose beginning was not read may be too large
        if (not low and self.first >= 0) or self.turns[low].number <= allowed:
            return _Start(allowed)
        half = max(low, self._first_within(room // 2, index))
        # If two turns fit, there are two to choose from, so that the start does not move with every turn.
        high = max(low, half - 1, min(low + 1, half, index - 1))
        # A lower bound of either gives no higher number, so this is the upper bound if earlier turns may fit.
        number = _roundest(max(1, self.turns[low].number), self.turns[high].number)
        return _Start(number) if first or room < 0 else _Start(0, number)

    def _first_within(self, room: int, index: int) -> int:
        """Return the index of the first turn from which on the turns before turn `index` fit in `room` tokens."""
        end = self.turns[index].begin
        kept = self._kept_row(end)
        return bisect_left(self.turns, -room, hi=index, key=lambda one: -self._finished(one.begin, end, kept))

    def _first_allowed(self, index: int) -> int:
        return _first_allowed(self.turns[index], self.policy)

    def _fits(self, index: int) -> bool:
        """Return True if a view that begins with turn `index` is within the budget.

        The last turn, if it is larger than the whole budget, is finished and counts in the size in which it is shown.
        """
        begin, turn = self.turns[index].begin, self.turns[-1]
        end = turn.begin if self.size_alone(-1) <= self.budget else turn.end
        later = self.full[turn.end] - self.full[end]
        return self.fixed + self._note(begin) + self._finished(begin, end) + later <= self.budget

    def room(self, index: int) -> int:
        """Return the tokens to shorten an oversized finished turn to, so that it fits before the turn after it.

        The result is a fixed part of the budget, so that it seldom changes while the next turn continues. It is 0 if
        the turn fits as it is, if the budget has no room, or if shortening long texts would not be enough.
        """
        turn = self.turns[index]
        later = self.full[self.turns[-1].end] - self.full[turn.end]
        available = self.budget - self.fixed - self._note(turn.begin) - later
        rooms = [room for room in (self.budget * part // 16 for part in (12, 8, 4, 2)) if room <= available]
        minimum = sum(
            size if row.message.type not in SHORTENED else min(size, _SHORTENED_TEXT_TOKENS)
            for row, size in zip(self.rows[turn.begin : turn.end], self._sizes(turn), strict=True)
        )
        size = self._finished(turn.begin, turn.end)
        is_large = size > available and size > self.budget * 3 // 4 - self.fixed - self._note(turn.begin)
        return rooms[0] if is_large and rooms and minimum <= rooms[0] else 0

    def _sizes(self, turn: _Turn) -> list[int]:
        return [self.final[row + 1] - self.final[row] for row in range(turn.begin, turn.end)]

    def size_alone(self, index: int) -> int:
        """Return the size of a turn in full plus the leading system messages."""
        turn = self.turns[index]
        return self.fixed + self.full[turn.end] - self.full[turn.begin]

    def _finished(self, begin: int, end: int, kept: int | None = None) -> int:
        """Return the size of rows of finished turns when other turns follow them; results are whole from row `kept`."""
        kept_from = max(begin, min(end, self._kept_row(end) if kept is None else kept))
        return self.final[kept_from] - self.final[begin] + self.kept[end] - self.kept[kept_from]

    def _note(self, begin: int) -> int:
        return 0 if begin == self.first else self.note(begin)

    def _kept_row(self, end: int) -> int:
        """Return the first row whose results are kept whole when the finished turns end before row `end`."""
        if not self.policy.keep_last_results:
            return end
        minimum = kept_result(results_before(self.rows, end), self.policy)
        return bisect_left(self.rows, minimum, hi=end, key=lambda row: row.result)


def _sums(weights: Iterable[int]) -> list[int]:
    """Return the running sums, beginning with 0."""
    return [0, *accumulate(weights)]

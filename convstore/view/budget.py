"""Chooses where a view begins: at a whole turn, moved by the budget in large steps.

Positions are counted in tokens of the default view from the beginning of the log; entries store them as running
totals. The start required by the budget is rounded up to a large step and never moves back. So every process computes
the same start, and a provider's prompt cache survives many turns. A turn in progress counts with all its results in
full, a finished turn with stubs. A turn that exceeds the whole budget moves the start only while it is in progress.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    """What earlier turns require of every view, so that they need not be weighed again.

    Attributes:
        position: No view begins before this position, in view tokens.
        through: Number of the last turn that was weighed for it; 0 for none.
    """

    position: int = 0
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
    before: int


def choose_window(
    rows: Sequence[Row],
    policy: HistoryPolicy,
    *,
    fixed_tokens: int,
    note_tokens: Callable[[int], int],
    anchored: bool,
    summarized: bool = False,
    sizes: Sequence[int] | None = None,
    known: Required = NOTHING_REQUIRED,
) -> Window | None:
    """Choose where the view begins; return None if earlier rows must be read first.

    If the newest finished turn is too large to be shown along with the next one, it is kept and marked for shortening.

    Args:
        rows: The end of the log, without holes.
        policy: Limits of the view.
        fixed_tokens: Size of the leading system messages.
        note_tokens: Return the size of the note in a view that begins at a given row.
        anchored: True if the rows include the anchor of an earlier window under this policy.
        summarized: True if the rows follow a summary, so that none of them is a leading system message.
        sizes: Size of each row in a finished turn, if the policy shows texts or media differently from the default.
        known: The `required` of an earlier window of the same log under this policy.
    """
    first = _first_row(rows, fixed_tokens) if not summarized else 0 if rows and rows[0].place == 1 else -1
    turns = _turns(rows, first)
    if not turns:
        return Window(len(rows), 0, anchor=None) if first >= 0 or not rows else None
    allowed = _allowed(turns, policy)
    choice = _Choice(allowed.turn, allowed.turn, first >= 0 or anchored or allowed.is_certain)
    if policy.max_tokens is not None:
        kind = _TurnBudget if _margin(policy) else _Budget
        budget = kind(rows, turns, policy, first=first, fixed=fixed_tokens, note=note_tokens, sizes=sizes, known=known)
        choice = _within_budget(budget, allowed, anchored=anchored)
    return _window(rows, turns, choice, policy, first) if choice.is_certain else None


class _Choice(NamedTuple):
    """A choice of the turn at which a view begins.

    Attributes:
        turn: Index of the first turn of the view.
        stable: Index of the first turn of a view in which the last turn has not begun yet; -1 if it is unknown.
        is_certain: True if unread rows cannot change the first turn.
        has_anchor: True if they cannot change `stable` either.
        room: See `Window`.
    """

    turn: int
    stable: int
    is_certain: bool
    has_anchor: bool = False
    room: int = 0


def _allowed(turns: Sequence[_Turn], policy: HistoryPolicy) -> _Choice:
    """Return the first turn that `max_turns` allows. Turns before it are named in a note, which the budget includes."""
    number = _first_turn(turns, policy.max_turns) if policy.max_turns is not None else 0
    index = _index_of_number(turns, number)
    return _Choice(index, index, number >= turns[0].number + _margin(policy))


def _within_budget(budget: _Budget, allowed: _Choice, *, anchored: bool) -> _Choice:
    """Return the first turn that keeps the view within the budget, not before the one that `max_turns` allows."""
    turns, is_done = budget.turns, is_finished(budget.rows)
    if not is_done and budget.size_alone(turns[-1]) > budget.budget:
        return _Choice(len(turns) - 1, allowed.turn if allowed.is_certain else -1, True)
    # The last turn may still outgrow the budget; then it no longer moves the start.
    stable_position = budget.position(turns[:-1])
    position = max(stable_position, budget.position(turns[-1:]))
    index = _first_fitting_turn(budget, position, turns, allowed.turn)
    stable = _first_fitting_turn(budget, stable_position, turns[:-1], allowed.turn)
    last_finished = len(turns) - 1 - (not is_done)
    is_bounded = budget.first >= 0 or allowed.is_certain
    if index > last_finished < 0 and not is_bounded:
        return _Choice(index, stable, is_certain=False)
    is_known = is_bounded or anchored
    room = budget.room(last_finished) if index >= last_finished >= allowed.turn else 0
    return _Choice(
        index, stable, is_known or position > budget.horizon, is_known or stable_position > budget.horizon, room
    )


def _window(rows: Sequence[Row], turns: Sequence[_Turn], choice: _Choice, policy: HistoryPolicy, first: int) -> Window:
    """Return the window of a choice, which begins with an oversized turn if there is room to shorten it."""
    index, stable, margin = choice.turn, choice.stable, _margin(policy)
    is_anchored = index == stable or (choice.has_anchor and 0 <= stable < index)
    anchor = _anchor(turns, stable, margin) if is_anchored else None
    is_weighed = is_anchored and not margin and len(turns) > 1
    required = Required(turns[stable].before, turns[-2].number) if is_weighed else NOTHING_REQUIRED
    window = Window(turns[index].begin, _turns_left_out(turns[index], first), anchor, required=required)
    if not choice.room:
        return window
    last = len(turns) - 1 - (not is_finished(rows))
    anchor = _anchor(turns, last, margin) if stable >= last else None
    return Window(turns[last].begin, _turns_left_out(turns[last], first), anchor, choice.room, window)


def _margin(policy: HistoryPolicy) -> int:
    """Return the number of turns before the start that a read must include for the start to be certain.

    Positions in tokens are known from the log's totals. Under `shorten_over` the start is a turn that fits, rounded up
    by less than this many turns; if every turn that was read fits, it is one of the first of them.
    """
    turns = _turns_at_once(policy) if policy.shorten_over and policy.max_tokens is not None else 1
    return turns if turns > 1 else 0


def _anchor(turns: Sequence[_Turn], index: int, margin: int) -> int:
    """Return the row at which later reads may begin if no later view begins before turn `index`."""
    if not margin:
        return turns[index].begin
    number = turns[index].number - margin
    return next((turn.begin for turn in reversed(turns) if turn.number <= number), turns[0].begin)


def _turns_at_once(policy: HistoryPolicy) -> int:
    """Return how many turns leave the view together, at most, under a policy that shortens texts.

    That many turns of the greatest length fill half the budget.

    >>> _turns_at_once(HistoryPolicy(shorten_over=500)), _turns_at_once(HistoryPolicy(shorten_over=20_000))
    (8, 1)
    """
    longest = 2 * ((policy.shorten_over or 0) + _SHORTENED_TEXT_TOKENS)
    return 1 << max(1, (policy.max_tokens or 0) // 2 // longest).bit_length() - 1


def _first_fitting_turn(budget: _Budget, position: int, turns: Sequence[_Turn], first_allowed: int) -> int:
    """Return the index of the first turn that keeps every view within the budget.

    The turn is not before `first_allowed` or `position`. Every view means: with each of `turns` as the last one.
    """
    last = len(turns) - 1
    index = max(
        first_allowed, next((index for index, turn in enumerate(budget.turns) if turn.before >= position), last)
    )
    if budget.fits_all(index, turns):
        return index
    turn = last
    while turn > index:
        is_over = turn < len(budget.turns) - 1 and budget.size_alone(turns[turn]) > budget.budget
        if is_over or budget.fits(index, turn):
            turn -= 1
        else:
            index += 1
    return index


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
    return [
        _Turn(rows[begin].turn, begin, end, rows[begin].before)
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)
    ]


def _first_turn(turns: Sequence[_Turn], maximum: int) -> int:
    """Return the number of the first turn allowed by `max_turns`, rounded up to a quarter of it in longer logs."""
    first = turns[-1].number - maximum + 1
    return _round_up(first, max(1, maximum // 4)) if first > 1 else 0


def _index_of_number(turns: Sequence[_Turn], minimum: int) -> int:
    return next((index for index, turn in enumerate(turns) if turn.number >= minimum), len(turns) - 1)


def _turns_left_out(turn: _Turn, first: int) -> int:
    return 0 if turn.begin == first else max(1, turn.number - 1)


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
        sizes: Sequence[int] | None = None,
        known: Required = NOTHING_REQUIRED,
    ) -> None:
        self.rows, self.turns, self.policy, self.first, self.fixed, self.note = rows, turns, policy, first, fixed, note
        self.known, self.budget = known, policy.max_tokens or 0
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
        self.full, self.final, self.kept = _sums(full), _sums(final), _sums(kept)

    @property
    def horizon(self) -> int:
        """Every position above this one is certain, whatever precedes the rows."""
        return self.rows[0].before

    def position(self, turns: Sequence[_Turn]) -> int:
        """Return the position where the view begins: the maximum that any row of `turns` required.

        For each row, its turn up to the row in full and the earlier turns as stubs must fit. The required position is
        rounded up to a step, so that it seldom changes. The step is larger if the turn leaves more room.
        """
        position = self.known.position
        for turn in reversed(turns):
            if turn.before <= position or turn.number <= self.known.through:
                break
            if self.size_alone(turn) <= self.budget and self._may_require(turn, position):
                position = max(position, self._required_position(turn))
        return position

    def fits(self, index: int, last: int) -> bool:
        """Return True if a view from turn `index` to turn `last` is within the budget while `last` is in progress.

        A turn larger than the whole budget counts as finished, in the size in which it is shown then.
        """
        begin, turn = self.turns[index].begin, self.turns[last]
        whole = self.size_alone(turn) <= self.budget
        end = turn.begin if whole else turn.end
        size = self.fixed + self._note(begin) + self._finished(begin, end) + self.full[turn.end] - self.full[end]
        return size <= self.budget

    def fits_all(self, index: int, turns: Sequence[_Turn]) -> bool:
        """Return True if every view from turn `index` to one of `turns` is surely within the budget."""
        begin = self.turns[index].begin
        rest = self.budget - self.fixed - self._note(begin) + self.final[begin]
        sizes = (self.final[turn.begin] + self.full[turn.end] - self.full[turn.begin] for turn in turns[index + 1 :])
        return not self.policy.keep_last_results and all(size <= rest for size in sizes)

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

    def size_alone(self, turn: _Turn) -> int:
        """Return the size of a turn in full plus the leading system messages."""
        return self.fixed + self.full[turn.end] - self.full[turn.begin]

    def _may_require(self, turn: _Turn, position: int) -> bool:
        """Return False if no note makes a turn require more than `position`; building one costs much of a load."""
        least = self.budget - self.size_alone(turn) - self.note_reserve
        most = self.budget - self.fixed - self.full[turn.begin + 1] + self.full[turn.begin]
        step = self._step(least)
        return turn.before > least and (self._step(most) != step or _round_up(turn.before - least, step) > position)

    def _required_position(self, turn: _Turn) -> int:
        # The margin covers notes that name other results and differ slightly in size.
        base = self.fixed + self._note(turn.begin) * 5 // 4
        available = self.budget - base + self.full[turn.begin]
        rooms = [available - self.full[turn.begin + 1], available - self.full[turn.end]]
        if self._step(rooms[0]) != self._step(rooms[1]):
            rooms = [available - end for end in self.full[turn.begin + 1 : turn.end + 1]]
        # With one step the least room requires the most.
        required = (_round_up(turn.before - room, self._step(room)) for room in rooms if turn.before > room)
        return min(turn.before, max(required, default=0))

    def _step(self, room: int) -> int:
        """Return the largest of a half, a quarter, an eighth … of the budget that is at most half of `room`."""
        step = self.budget // 2
        while step > max(1, room // 2):
            step //= 2
        return max(1, step)

    def _finished(self, begin: int, end: int) -> int:
        """Return the size of rows of finished turns when other turns follow them."""
        kept_from = max(begin, min(end, self._kept_row(end)))
        return self.final[kept_from] - self.final[begin] + self.kept[end] - self.kept[kept_from]

    def _note(self, begin: int) -> int:
        return 0 if begin == self.first else self.note(begin)

    def _kept_row(self, end: int) -> int:
        """Return the first row whose results are kept whole when the finished turns end before row `end`."""
        if not self.policy.keep_last_results:
            return end
        minimum = kept_result(results_before(self.rows, end), self.policy)
        return bisect_left(self.rows, minimum, hi=end, key=lambda row: row.result)


class _TurnBudget(_Budget):
    """Counts positions in groups of turns, because the log's totals do not include the sizes of shortened texts."""

    @property
    def horizon(self) -> int:
        """Every position above this one is certain, whatever precedes the rows."""
        number = self.turns[0].number + _margin(self.policy)
        return max(turn.before for turn in self.turns if turn.number < number)

    def position(self, turns: Sequence[_Turn]) -> int:
        """Return the position where the view begins, in tokens of the default view, as `_Budget.position` does."""
        number = 0
        for turn in reversed(turns):
            if turn.number <= number:
                break
            if self.size_alone(turn) <= self.budget:
                number = max(number, self._first_number(turn))
        return next((turn.before for turn in self.turns if turn.number >= number), 0) if number else 0

    def _first_number(self, turn: _Turn) -> int:
        """Return the number of the first turn in a view while `turn` is in progress; 0 if all read turns fit."""
        room = self.budget - self._note(turn.begin) * 5 // 4 - self.size_alone(turn)
        earlier = [one for one in self.turns if one.begin < turn.begin]
        index = bisect_left(earlier, -room, key=lambda one: -self._finished(one.begin, turn.begin))
        if index == 0:
            return 0
        first = earlier[index].number if index < len(earlier) else turn.number
        step = _turns_at_once(self.policy)
        while step > max(1, (turn.number - first + 1) // 2):
            step //= 2
        return _round_up(first, step)


def _sums(weights: Iterable[int]) -> list[int]:
    """Return the running sums, beginning with 0."""
    return [0, *accumulate(weights)]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step

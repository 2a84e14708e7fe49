"""Where a view begins: whole turns, chosen by the budget in large steps.

Layer 1. Positions are counted in tokens of the default view from the beginning of the log, which entries hold as running
totals. A view may begin only at the first turn behind a multiple of half the budget, and it never moves back, so every
process comes to the same start and a provider's prompt cache outlives many turns. A turn counts with all its results in
full while it is in progress, with stubs afterwards; a turn that is larger than the whole budget moves the start only
while it is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from convstore.entries import Entry, EntryMessage
from convstore.policy import HistoryPolicy

__all__ = ["Row", "Window", "choose_window", "is_finished", "leading_system", "rows_of", "shown_whole"]


@dataclass(frozen=True, slots=True)
class Row:
    """A message of the log with what the running totals say of it.

    Attributes:
        message: The message as its entry holds it.
        entry: Number of the entry.
        before: View tokens of the log before it.
        turn: Number of its turn; 0 before the first human message.
        result: Tool results in the log before it.
    """

    message: EntryMessage
    entry: int
    before: int
    turn: int
    result: int


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of a view.

    Attributes:
        start: Index of its first row, leading system messages apart.
        left_out_turns: Turns before it.
        lasting: Later views under the same policy begin here or further on.
    """

    start: int
    left_out_turns: int
    lasting: bool


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    begin: int
    end: int
    before: int


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """The messages of successive entries with their running totals."""
    rows = []
    for entry in entries:
        turn = entry.totals.turns - sum(message.type == "human" for message in entry.messages)
        result = entry.totals.results - sum(message.type == "tool" for message in entry.messages)
        before = entry.totals.view_tokens - sum(message.view_tokens for message in entry.messages)
        for message in entry.messages:
            turn += message.type == "human"
            rows.append(Row(message, entry.number, before, turn, result))
            before += message.view_tokens
            result += message.type == "tool"
    return rows


def leading_system(rows: Sequence[Row]) -> list[Row]:
    """The system messages that a log begins with, from its first rows."""
    end = next((place for place, row in enumerate(rows) if row.message.type != "system"), len(rows))
    return list(rows[:end])


def is_finished(rows: Sequence[Row]) -> bool:
    """Whether the last turn is finished: its last message is an AI message without tool calls."""
    return not rows or (rows[-1].message.type == "ai" and not rows[-1].message.calls)


def shown_whole(rows: Sequence[Row], policy: HistoryPolicy) -> list[bool]:
    """For each row whether a policy shows it in full: the turn in progress, and the results that it exempts."""
    last_turn = None if is_finished(rows) else rows[-1].turn
    kept_from = _kept_from(rows, policy, last_turn)
    return [row.turn == last_turn or _is_exempt(row, policy, kept_from) for row in rows]


def choose_window(
    rows: Sequence[Row],
    policy: HistoryPolicy,
    *,
    fixed_tokens: int,
    note_tokens: Callable[[int], int],
    anchored: bool,
) -> Window | None:
    """Where the view begins; None if earlier rows must be read to tell.

    Args:
        rows: The end of the log, without holes.
        policy: What the view may hold.
        fixed_tokens: Size of the leading system messages.
        note_tokens: Size of the note of a view that begins at a row.
        anchored: The rows hold an earlier lasting start under this policy.
    """
    complete = bool(rows) and rows[0].message.ordinal == 1
    first = len(leading_system(rows)) if complete else 0
    turns = _turns(rows, first, complete=complete)
    if not turns:
        return Window(len(rows), 0, lasting=False) if complete or not rows else None
    sizes = _Sizes(rows, turns, policy, first if complete else -1, fixed_tokens, note_tokens)
    place, lasting = sizes.first_that_fits()
    certain = complete or anchored or place > 0 or _is_enough(turns, policy)
    if not certain:
        return None
    place = max(place, _by_turns(turns, policy))
    begin = turns[place].begin
    return Window(begin, _left_out(turns[place], begin, first if complete else -1), lasting)


def _turns(rows: Sequence[Row], first: int, *, complete: bool) -> list[_Turn]:
    """The whole turns among rows; what precedes the first human message counts if the rows begin the log."""
    begins = [place for place in range(first, len(rows)) if rows[place].message.type == "human"]
    if complete and first < len(rows) and begins[:1] != [first]:
        begins.insert(0, first)
    if not begins:
        return []
    return [
        _Turn(rows[begin].turn, begin, end, rows[begin].before)
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)
    ]


def _is_enough(turns: Sequence[_Turn], policy: HistoryPolicy) -> bool:
    """Whether `max_turns` alone says that no earlier turn is in the view."""
    return policy.max_turns is not None and _first_turn(turns, policy) >= turns[0].number


def _by_turns(turns: Sequence[_Turn], policy: HistoryPolicy) -> int:
    if policy.max_turns is None:
        return 0
    first = _first_turn(turns, policy)
    return next((place for place, turn in enumerate(turns) if turn.number >= first), len(turns) - 1)


def _first_turn(turns: Sequence[_Turn], policy: HistoryPolicy) -> int:
    """Number of the first turn that `max_turns` allows, rounded up to a quarter of it."""
    most = policy.max_turns or 1
    step = max(1, most // 4)
    first = turns[-1].number - most + 1
    return -(-first // step) * step if first > 0 else 0


def _left_out(turn: _Turn, begin: int, first: int) -> int:
    return 0 if begin == first else max(1, turn.number - 1)


class _Sizes:
    """Sizes of views that begin at one turn and end with another, each in constant time."""

    def __init__(
        self,
        rows: Sequence[Row],
        turns: Sequence[_Turn],
        policy: HistoryPolicy,
        first: int,
        fixed: int,
        note: Callable[[int], int],
    ) -> None:
        self.turns, self.policy, self.first, self.fixed, self.note = turns, policy, first, fixed, note
        self.budget = policy.max_tokens
        self.step = max(1, (self.budget or 1) // 2)
        self.finished = is_finished(rows)
        self.results = [row.result for row in rows]
        full = [_weight(row, policy, whole=True) for row in rows]
        final = [_weight(row, policy, whole=_is_exempt(row, policy, None)) for row in rows]
        kept = [_weight(row, policy, whole=row.message.type == "tool") for row in rows]
        self.full = [0, *accumulate(full)]
        self.final = [0, *accumulate(final)]
        self.kept = [0, *accumulate(kept)]

    def first_that_fits(self) -> tuple[int, bool]:
        """The turn that the view begins with, and whether later views will not begin before it."""
        last = len(self.turns) - 1
        if self.budget is None:
            return 0, True
        if self._alone(last) > self.budget and not self.finished:
            return last, False
        place = self._advance(0, last, ends_whole=self._alone(last) <= self.budget)
        for turn in range(last - 1, -1, -1):
            if turn < place:
                break
            if self._alone(turn) <= self.budget:
                place = self._advance(place, turn, ends_whole=True)
        return place, True

    def _advance(self, place: int, last: int, *, ends_whole: bool) -> int:
        """From one allowed start to the next until the view up to the turn `last` fits."""
        place = self._allowed(place)
        while place < last and self._size(place, last, ends_whole=ends_whole) > (self.budget or 0):
            place = self._allowed(place + 1)
        return place

    def _allowed(self, place: int) -> int:
        """The first turn from `place` on that a view may begin with: the first behind a multiple of the step."""
        while 0 < place < len(self.turns) - 1:
            if self.turns[place].before // self.step != self.turns[place - 1].before // self.step:
                break
            if self.turns[place].before % self.step == 0:
                break
            place += 1
        return place

    def _alone(self, turn: int) -> int:
        """A turn in full with nothing but system messages and the note before it."""
        return self._size(turn, turn, ends_whole=True)

    def _size(self, place: int, last: int, *, ends_whole: bool) -> int:
        begin, middle, end = self.turns[place].begin, self.turns[last].begin, self.turns[last].end
        kept_from = max(begin, min(middle, self._kept_row(last)))
        before = self.final[kept_from] - self.final[begin] + self.kept[middle] - self.kept[kept_from]
        sums = self.full if ends_whole else self.final
        note = 0 if begin == self.first else self.note(begin)
        return self.fixed + note + before + sums[end] - sums[middle]

    def _kept_row(self, last: int) -> int:
        """The row from which results are kept whole while a turn is in progress."""
        begin = self.turns[last].begin
        if not self.policy.keep_last_results:
            return begin
        least = _kept_result(self.results[begin], self.policy)
        return next((row for row in range(begin) if self.results[row] >= least), begin)


def _weight(row: Row, policy: HistoryPolicy, *, whole: bool) -> int:
    message = row.message
    if policy.view == "conversation" and (message.type in ("tool", "function") or message.calls):
        return 0
    return message.tokens if whole else message.view_tokens


def _is_exempt(row: Row, policy: HistoryPolicy, kept_from: int | None) -> bool:
    """Whether a policy shows the result of a finished turn in full."""
    message = row.message
    if message.type != "tool":
        return False
    return (
        policy.stub_tools == "never"
        or message.tool in policy.never_stub
        or (kept_from is not None and row.result >= kept_from)
        or (not message.sources and message.tokens <= policy.stub_min_tokens)
    )


def _kept_from(rows: Sequence[Row], policy: HistoryPolicy, last_turn: int | None) -> int | None:
    """Index of the first result that `keep_last_results` keeps whole; None if it keeps none."""
    if not policy.keep_last_results or not rows:
        return None
    end = next((row for row in rows if row.turn == last_turn), None)
    count = end.result if end else rows[-1].result + (rows[-1].message.type == "tool")
    return _kept_result(count, policy)


def _kept_result(count: int, policy: HistoryPolicy) -> int:
    """Of `count` results the first that is kept: at least `keep_last_results`, fewer than twice as many."""
    step = max(2, policy.keep_last_results)
    return max(0, count - policy.keep_last_results) // step * step

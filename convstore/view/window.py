"""Where a view begins: whole turns, chosen by the budget in large steps.

Layer 1. Positions are counted in tokens of the default view from the beginning of the log, which entries hold as
running totals. What the budget asks for is rounded up to a large step and never taken back, so every process comes to
the same start, and a provider's prompt cache outlives many turns. A turn counts with all its results in full while it
is in progress, with stubs afterwards; a turn that is larger than the whole budget moves the start only while it is in
progress.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from convstore.entries import Entry, EntryMessage, Gap
from convstore.entries.rewinds import is_live
from convstore.policy import HistoryPolicy
from convstore.summaries import SummaryRecord

__all__ = ["Row", "Window", "choose_window", "is_finished", "is_hidden", "leading_system", "rows_of", "shown_whole"]

_NOTE_TOKENS = 600
"""More than a note that names the newest results by uuids takes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message of the log with what the running totals say of it.

    Attributes:
        message: The message as its entry holds it.
        entry: Number of the entry.
        place: Its place among the live messages.
        before: View tokens of the log before it, by the counter of the rows.
        turn: Number of its turn; 0 before the first human message.
        result: Tool results in the log before it.
    """

    message: EntryMessage
    entry: int
    place: int
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


def rows_of(entries: Sequence[Entry], gaps: Sequence[Gap] = (), summary: SummaryRecord | None = None) -> list[Row]:
    """The live messages of successive entries with their running totals.

    Those that a summary stands for are left out, and places, sizes and turns are counted from its end.

    Args:
        entries: In order, up to the end of the log unless they begin where rows do.
        gaps: What is rewound.
        summary: The current one.
    """
    # Behind a repair two messages may have one ordinal.
    last = (summary.entry, summary.last) if summary else (0, 0)
    live, turns = (summary.live, summary.turns) if summary else (0, 0)
    rows = []
    for entry in entries:
        turn = entry.totals.turns - sum(message.type == "human" for message in entry.messages)
        result = entry.totals.results - sum(message.type == "tool" for message in entry.messages)
        place = entry.totals.live - len(entry.messages)
        for message in entry.messages:
            turn += message.type == "human"
            place += 1
            if (entry.number, message.ordinal) > last and is_live(gaps, message.ordinal):
                rows.append((message, entry.number, place - live, turn - turns, result))
            result += message.type == "tool"
    sizes = [message.view_tokens for message, *_ in rows]
    begins = bool(rows) and rows[0][2] == 1
    through = entries[-1].totals.view_tokens - (summary.view_tokens if summary else 0) if entries else 0
    befores = accumulate(sizes, initial=0 if begins else through - sum(sizes))
    return [
        Row(message, number, place, before, turn, result)
        for (message, number, place, turn, result), before in zip(rows, befores, strict=False)
    ]


def leading_system(rows: Sequence[Row]) -> list[Row]:
    """The system messages that a log begins with, from its first rows."""
    end = next((place for place, row in enumerate(rows) if row.message.type != "system"), len(rows))
    return list(rows[:end])


def is_finished(rows: Sequence[Row]) -> bool:
    """Whether the last turn is finished: its last message is an AI message without tool calls."""
    return not rows or (rows[-1].message.type == "ai" and not rows[-1].message.calls)


def is_hidden(message: EntryMessage, policy: HistoryPolicy) -> bool:
    """Whether a view of the talk alone leaves a message out."""
    return policy.view == "conversation" and (message.type in ("tool", "function") or bool(message.calls))


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
    summarized: bool = False,
) -> Window | None:
    """Where the view begins; None if earlier rows must be read to tell.

    Args:
        rows: The end of the log, without holes.
        policy: What the view may hold.
        fixed_tokens: Size of the leading system messages.
        note_tokens: Size of the note of a view that begins at a row.
        anchored: The rows hold an earlier lasting start under this policy.
        summarized: The rows follow a summary, so that none of them is a leading system message.
    """
    first = _first_row(rows, fixed_tokens) if not summarized else 0 if rows and rows[0].place == 1 else -1
    complete = first >= 0
    turns = _turns(rows, first)
    if not turns:
        return Window(len(rows), 0, lasting=False) if complete or not rows else None
    least = _first_turn(turns, policy.max_turns) if policy.max_turns is not None else 0
    # What `max_turns` leaves out has a note, which the budget must have room for.
    allowed = _numbered(turns, least)
    reaches_allowed = least >= turns[0].number
    place, settled, certain = allowed, allowed, complete or anchored or reaches_allowed
    if policy.max_tokens is not None:
        budget = _Budget(rows, turns, policy, first=first, fixed=fixed_tokens, note=note_tokens)
        if budget.alone(turns[-1]) > policy.max_tokens and not is_finished(rows):
            place, settled, certain = len(turns) - 1, allowed if reaches_allowed else -1, True
        else:
            position = budget.position(turns)
            place, certain = _first_that_fits(budget, position, turns, allowed), certain or position > rows[0].before
            # The last turn may still outgrow the budget, and then does not count any more.
            settled = _first_that_fits(budget, budget.position(turns[:-1]), turns[:-1], allowed)
    begin = turns[place].begin
    return Window(begin, _left_out(turns[place], begin, first), lasting=place == settled) if certain else None


def _first_that_fits(budget: _Budget, position: int, turns: Sequence[_Turn], allowed: int) -> int:
    """The first turn from `allowed` on, behind a position, with which views are in the budget.

    That is every view while one of `turns` was the last.
    """
    last = len(turns) - 1
    place = max(allowed, next((place for place, turn in enumerate(budget.turns) if turn.before >= position), last))
    turn = last
    while turn > place:
        is_over = turn < len(budget.turns) - 1 and budget.alone(turns[turn]) > budget.budget
        if is_over or budget.fits(place, turn):
            turn -= 1
        else:
            place += 1
    return place


def _first_row(rows: Sequence[Row], fixed_tokens: int) -> int:
    """Index of the first row behind the leading system messages of the log, -1 if it is not among the rows."""
    first = len(leading_system(rows))
    if rows and rows[0].place == 1:
        return first
    row = rows[first] if first < len(rows) else None
    # Leading system messages may stand in entries of their own, which were not read again.
    begins_log = row and row.before == fixed_tokens and row.turn == (row.message.type == "human") and not row.result
    return first if begins_log else -1


def _turns(rows: Sequence[Row], first: int) -> list[_Turn]:
    """The whole turns among rows; what precedes the first human message counts if the log's `first` row is there."""
    begins = [place for place, row in enumerate(rows) if row.message.type == "human" and place >= first]
    if 0 <= first < len(rows) and begins[:1] != [first]:
        begins.insert(0, first)
    if not begins:
        return []
    return [
        _Turn(rows[begin].turn, begin, end, rows[begin].before)
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)
    ]


def _first_turn(turns: Sequence[_Turn], most: int) -> int:
    """Number of the first turn that `max_turns` allows, rounded up to a quarter of it once there are more turns."""
    first = turns[-1].number - most + 1
    return _round_up(first, max(1, most // 4)) if first > 1 else 0


def _numbered(turns: Sequence[_Turn], least: int) -> int:
    return next((place for place, turn in enumerate(turns) if turn.number >= least), len(turns) - 1)


def _left_out(turn: _Turn, begin: int, first: int) -> int:
    return 0 if begin == first else max(1, turn.number - 1)


class _Budget:
    """Finds the start of a view under a token budget, and tells sizes of views in constant time."""

    def __init__(
        self,
        rows: Sequence[Row],
        turns: Sequence[_Turn],
        policy: HistoryPolicy,
        *,
        first: int,
        fixed: int,
        note: Callable[[int], int],
    ) -> None:
        self.rows, self.turns, self.policy, self.first, self.fixed, self.note = rows, turns, policy, first, fixed, note
        self.budget = policy.max_tokens or 0
        self.roomy = max(self.budget // 8, min(_NOTE_TOKENS, self.budget // 2))
        self.full = _sums(_weight(row, policy, whole=True) for row in rows)
        self.final = _sums(_weight(row, policy, whole=_is_exempt(row, policy, None)) for row in rows)
        self.kept = _sums(_weight(row, policy, whole=row.message.type == "tool") for row in rows)

    def position(self, turns: Sequence[_Turn]) -> int:
        """Tokens of the default view behind which the view begins: the most that any moment in `turns` asked for.

        A moment is a row: the turns before its turn as stubs and its turn in full up to it have to fit. What is asked
        for is rounded up to a step, the larger the more room there is beside the turn, so that it seldom changes.
        """
        position = 0
        for turn in reversed(turns):
            if turn.before <= position:
                break
            if self.alone(turn) <= self.budget:
                position = max(position, self._asked_for(turn))
        return position

    def fits(self, place: int, last: int) -> bool:
        """Whether a view from one turn to another is within the budget while the other is in progress.

        One that is larger than the budget is finished: it counts as it is shown then.
        """
        begin, turn = self.turns[place].begin, self.turns[last]
        whole = self.alone(turn) <= self.budget
        end = turn.begin if whole else turn.end
        size = self.fixed + self._note(begin) + self._finished(begin, end) + self.full[turn.end] - self.full[end]
        return size <= self.budget

    def alone(self, turn: _Turn) -> int:
        """A turn in full with the system messages before it."""
        return self.fixed + self.full[turn.end] - self.full[turn.begin]

    def _asked_for(self, turn: _Turn) -> int:
        if turn.before + self.alone(turn) + self.roomy <= self.budget:
            return 0  # there is room for any note; making one for every turn would cost more than the rest of a load
        # Notes that name other results differ a little in size.
        base = self.fixed + self._note(turn.begin) * 5 // 4
        most = 0
        for end in range(turn.begin + 1, turn.end + 1):
            room = self.budget - base - (self.full[end] - self.full[turn.begin])
            if turn.before > room:
                most = max(most, min(turn.before, _round_up(turn.before - room, self._step(room))))
        return most

    def _step(self, room: int) -> int:
        """The largest of a half, a quarter, an eighth … of the budget that leaves half the room filled."""
        step = self.budget // 2
        while step > max(1, room // 2):
            step //= 2
        return max(1, step)

    def _finished(self, begin: int, end: int) -> int:
        """What rows of finished turns hold while the view goes on behind them."""
        kept_from = max(begin, min(end, self._kept_row(end)))
        return self.final[kept_from] - self.final[begin] + self.kept[end] - self.kept[kept_from]

    def _note(self, begin: int) -> int:
        return 0 if begin == self.first else self.note(begin)

    def _kept_row(self, end: int) -> int:
        """The row from which results are kept whole when the finished turns end before a row."""
        if not self.policy.keep_last_results:
            return end
        least = _kept_result(_results_before(self.rows, end), self.policy)
        return bisect_left(self.rows, least, hi=end, key=lambda row: row.result)


def _results_before(rows: Sequence[Row], end: int) -> int:
    """Tool results in the log before a row; `end` may be the place behind the last one."""
    return rows[end].result if end < len(rows) else rows[-1].result + (rows[-1].message.type == "tool")


def _sums(weights: Iterable[int]) -> list[int]:
    """Sums up to each place, from 0."""
    return [0, *accumulate(weights)]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _weight(row: Row, policy: HistoryPolicy, *, whole: bool) -> int:
    message = row.message
    if is_hidden(message, policy):
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
        or (not message.sources and message.tokens <= policy.stub_min_tokens and not _is_split_for_size(message))
    )


def _is_split_for_size(message: EntryMessage) -> bool:
    """Whether a small result has a large part, such as its artifact: a finished turn is shown without payloads."""
    return message.payload is not None and message.stub is None


def _kept_from(rows: Sequence[Row], policy: HistoryPolicy, last_turn: int | None) -> int | None:
    """Index of the first result that `keep_last_results` keeps whole; None if it keeps none."""
    if not policy.keep_last_results or not rows:
        return None
    end = next((row for row in rows if row.turn == last_turn), None)
    return _kept_result(end.result if end else _results_before(rows, len(rows)), policy)


def _kept_result(count: int, policy: HistoryPolicy) -> int:
    """Of `count` results the first that is kept: at least `keep_last_results`, fewer than twice as many."""
    step = max(2, policy.keep_last_results)
    return max(0, count - policy.keep_last_results) // step * step

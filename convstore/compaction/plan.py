"""Plan a compaction from sizes and types of messages: when to summarise, which turns, and where a log may be cut.

A compaction folds the oldest turns after the current summary into the next one. It runs rarely and then folds many
turns, so that the prefix of views stays the same for a long time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from convstore.log.entry import EntryMessage
from convstore.log.rows import (
    Row,
    is_finished,
    question_in_progress,
    turn_begins,
    unread_results,
    weigh,
)
from convstore.log.turns import LoggedTurn, unread
from convstore.values.policy import CompactionRule

_MAX_OPEN_ROUNDS = 8
_MIN_SAVING = 8
"""A saving below this fraction (1/8) of the trigger is not worth a model call and a new prompt prefix."""


def plan_compaction(
    rows: Sequence[Row], rule: CompactionRule, *, view_start: int = 0, force: bool = False
) -> int:
    """Return how many active messages after the current summary to fold into the next one; 0 to fold nothing.

    Whole turns are folded. If the turn in progress is itself too large, its question and its older calls are folded,
    each call with all its results. `rows` are all active messages after the current summary, or after the leading
    system messages. Turns before `view_start`, the ordinal with which views begin, are always folded, because views do
    not show them. With `force`, as much as the rule allows is folded, even if that saves little.
    """
    sizes = [0, *accumulate(weigh(rows))]
    cuts = _summary_cuts(rows)
    left = bisect_left(rows, view_start, key=lambda row: row.message.ordinal)
    unseen = max((cut for cut, _ in cuts if cut <= left), default=0)
    if not force and sizes[-1] <= rule.trigger:
        return unseen
    cut = _preferred_cut(cuts, sizes, rule, is_open=not is_finished(rows))
    saved = sizes[cut] - rule.max_summary_tokens
    if force or saved >= rule.trigger // _MIN_SAVING:
        return max(cut, unseen)
    return unseen


def _preferred_cut(
    cuts: Sequence[tuple[int, int]], sizes: Sequence[int], rule: CompactionRule, *, is_open: bool
) -> int:
    """Return the last cut that keeps as many turns as the rule says, or a later one if these exceed half the trigger.

    Args:
        cuts: Indexes in the rows, each with the number of turns after it.
        sizes: Total size before each row in tokens, and of all rows.
        rule: The rule.
        is_open: True if the last turn is in progress; then it is kept in addition.
    """
    room = rule.trigger // 2
    kept = rule.keep_last_turns + is_open
    cut = max((cut for cut, turns in cuts if turns >= kept), default=0)
    if sizes[-1] - sizes[cut] <= room:
        return cut
    for other, _ in cuts:
        if other > cut and sizes[-1] - sizes[other] <= room:
            return other
    return cuts[-1][0] if cuts else 0


def replacement_cuts(rows: Sequence[Row]) -> list[int]:
    """Return the cuts at which messages may replace others; none inside an open turn whose question has a payload.

    Such a question is shown whole while its turn continues, and only the log has its payload.
    """
    cuts = [cut for cut, _ in _clean_cuts(rows)]
    last_question = turn_begins(rows)[-1] if rows else 0
    is_kept = (
        bool(rows) and not is_finished(rows) and rows[last_question].message.payload is not None
    )
    return [cut for cut in cuts if cut <= last_question] if is_kept else cuts


def _clean_cuts(rows: Sequence[Row]) -> list[tuple[int, bool]]:
    """Return the indexes where a log may be cut without separating calls from their results, in order.

    Each index comes with True if a turn begins there. A cut may be before a question, before a reply of a model if all
    calls of its turn have results, and after a finished log. A call that is still open after several more replies is
    treated as abandoned.
    """
    cuts: dict[int, bool] = {}
    pending = _PendingCalls()
    begins = set(turn_begins(rows))
    end = min(_first_unread(rows), _unread_question(rows) + 1)
    for index, row in enumerate(rows[:end]):
        message = row.message
        if index in begins:
            cuts[index] = True
            pending = _PendingCalls()
        elif message.is_reply:
            pending.rounds += 1
            if pending.are_done:
                cuts[index] = False
                pending = _PendingCalls()
        pending.add(message)
    if rows and end == len(rows) and is_finished(rows):
        cuts[end] = True
    cuts.pop(0, None)  # it has no messages before it
    return list(cuts.items())


@dataclass(slots=True)
class _PendingCalls:
    """Calls whose results may be missing, of one turn or of several interleaved ones.

    Attributes:
        turns: The messages of each turn since the first of these calls.
        rounds: Number of replies since then.
    """

    turns: dict[int, LoggedTurn] = field(default_factory=dict)
    rounds: int = 0

    def add(self, message: EntryMessage) -> None:
        """Add the next message of the log."""
        turn = self.turns.setdefault(message.turn, LoggedTurn(message.turn, ""))
        turn.add([message])

    @property
    def are_done(self) -> bool:
        """True if every call has a result or is abandoned."""
        has_open = any(turn.without_result for turn in self.turns.values())
        return not has_open or self.rounds > _MAX_OPEN_ROUNDS


def _first_unread(rows: Sequence[Row]) -> int:
    """Return the index of the first unread result; the number of rows if all results were read."""
    ordinals = unread_results(rows)
    return next((at for at, row in enumerate(rows) if row.message.ordinal in ordinals), len(rows))


def _unread_question(rows: Sequence[Row]) -> int:
    """Return the index of the question in progress if it is unread, else the number of rows."""
    question = question_in_progress(rows)
    if not question or question not in unread([row.message for row in rows], question=question):
        return len(rows)
    return bisect_left(rows, question, key=lambda row: row.message.ordinal)


def _summary_cuts(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the cuts at which a running summary may end, in order, each with the number of turns after it."""
    begins = turn_begins(rows)
    last = begins[-1] if begins else 0
    if is_finished(rows):
        last = len(rows)
    return [
        (cut, len(begins) - bisect_left(begins, cut)) if is_begin else (cut, 0)
        for cut, is_begin in _clean_cuts(rows)
        if is_begin or cut > last + 1
    ]

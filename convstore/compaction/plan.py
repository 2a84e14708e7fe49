"""Plan a compaction: when to summarise, which turns, and where a log may be cut, from sizes and types of messages.

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
"""Divisor of the trigger. Saving a smaller part is not worth a model call and a new prompt prefix."""


def plan_compaction(
    rows: Sequence[Row], rule: CompactionRule, *, view_start: int = 0, force: bool = False
) -> int:
    """Return how many active messages after the current summary to fold into the next one; 0 to fold nothing.

    Whole turns are folded. If the turn in progress is itself too large, its question and its older calls are folded,
    each call with all its results. `rows` are all active messages after the current summary, or after the leading
    system messages. Turns before `view_start`, the ordinal that views begin with, are folded in any case, as no view
    shows them. With `force`, as much as the rule allows is folded, even if that saves little.
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
    """Return the last cut that keeps as many turns as the rule says, or a later one that leaves less than its room.

    Args:
        cuts: Indexes in the rows, each with the number of turns after it.
        sizes: Tokens before each row, and those of all rows.
        rule: The rule.
        is_open: True if the last turn is in progress, which is kept, too.
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
    """Return where messages may replace others: not inside a turn in progress whose question has a payload.

    The payload stays in the log, and the question is shown whole while its turn continues.
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
    cuts = dict[int, bool]()
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
            if pending.is_settled:
                cuts[index] = False
                pending = _PendingCalls()
        pending.add(message)
    if rows and end == len(rows) and is_finished(rows):
        cuts[end] = True
    cuts.pop(0, None)  # nothing to fold is before it
    return list(cuts.items())


@dataclass(slots=True)
class _PendingCalls:
    """Calls whose results may be missing, of one turn or of several that interleave.

    Attributes:
        turns: The messages of each turn since the first of the calls.
        rounds: Number of replies since then.
    """

    turns: dict[int, LoggedTurn] = field(default_factory=dict)
    rounds: int = 0

    def add(self, message: EntryMessage) -> None:
        """Add the next message of the log."""
        turn = self.turns.setdefault(message.turn, LoggedTurn(message.turn, ""))
        turn.add([message])

    @property
    def is_settled(self) -> bool:
        """Return True if all calls have results, or those without are abandoned."""
        has_open = any(turn.without_result for turn in self.turns.values())
        return not has_open or self.rounds > _MAX_OPEN_ROUNDS


def _first_unread(rows: Sequence[Row]) -> int:
    """Return the index of the first result that no model has read; the number of rows if there is none."""
    ordinals = unread_results(rows)
    return next((at for at, row in enumerate(rows) if row.message.ordinal in ordinals), len(rows))


def _unread_question(rows: Sequence[Row]) -> int:
    """Return the index of the question in progress if no model has read it; the number of rows if one has."""
    question = question_in_progress(rows)
    if not question or question not in unread([row.message for row in rows], question=question):
        return len(rows)
    return bisect_left(rows, question, key=lambda row: row.message.ordinal)


def _summary_cuts(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return where a running summary may end, in order, each with the number of turns that remain after it."""
    begins = turn_begins(rows)
    last = begins[-1] if begins else 0
    if is_finished(rows):
        last = len(rows)
    return [
        (cut, len(begins) - bisect_left(begins, cut)) if is_begin else (cut, 0)
        for cut, is_begin in _clean_cuts(rows)
        if is_begin or cut > last + 1
    ]

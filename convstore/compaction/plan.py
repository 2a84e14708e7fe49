"""When turns are summarised, and which: planned from what is known of messages without reading them.

Layer 1. A compaction folds the oldest turns behind the current summary into the next one. It is made rarely and then
folds much, so that views stay as they are for many turns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from convstore.log.rows import Row, is_finished, weigh
from convstore.values.policy import CompactionRule

__all__ = ["clean_cuts", "plan_compaction"]

_MAX_OPEN_ROUNDS = 8


_MIN_SAVING = 8
"""At least this part of the trigger must be saved: less is not worth a model call and another prompt prefix."""


def plan_compaction(rows: Sequence[Row], rule: CompactionRule, *, force: bool = False) -> int:
    """How many of the live messages behind the current summary are to be folded into the next one; 0 for none.

    Whole turns are folded. Of a turn in progress only older calls with all their results are, with its question, when
    it is itself what makes the view large.

    Args:
        rows: All live messages behind the current summary, or behind the leading system messages.
        rule: When and how many.
        force: Fold as much as the rule allows, also if that would save little.
    """
    sizes = [0, *accumulate(weigh(rows))]
    total, room = sizes[-1], rule.max_tokens_before_summary // 2
    if not force and total <= rule.max_tokens_before_summary:
        return 0
    cuts = _cuts(rows)
    kept = rule.keep_last_turns + (not is_finished(rows))
    preferred = [cut for cut, turns in cuts if turns >= kept] or [0]
    cut = max(preferred)
    if total - sizes[cut] > room:
        cut = next(
            (other for other, _ in cuts if other > cut and total - sizes[other] <= room), cuts[-1][0] if cuts else 0
        )
    saved = sizes[cut] - rule.max_summary_tokens
    return cut if force or saved >= rule.max_tokens_before_summary // _MIN_SAVING else 0


def clean_cuts(rows: Sequence[Row]) -> list[tuple[int, bool]]:
    """Where a log may be parted without parting calls from their results, in order, each with whether a turn begins.

    Before a human message, before an AI message when all calls of its turn have results, and behind a finished log. A
    call that is still open when the agent has gone on several times is given up: it is not answered any more.
    """
    cuts, calls, answered, rounds = list[tuple[int, bool]](), 0, set[str](), 0
    for index, message in enumerate(row.message for row in rows):
        if message.type == "human":
            cuts += [(index, True)] if index else []
            calls, answered, rounds = 0, set(), 0
        elif message.type == "tool":
            answered.add(message.call)  # a second result for a call answers no other
        elif message.type == "ai":
            rounds += 1
            if len(answered) >= calls or rounds > _MAX_OPEN_ROUNDS:
                calls, answered, rounds = 0, set(), 0
                cuts += [(index, False)] if index else []
            calls += message.calls
    return [*cuts, (len(rows), True)] if rows and is_finished(rows) else cuts


def _cuts(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Where a running summary may end, in order, each with the number of turns that stay behind it.

    In the turn in progress also before an AI message, once its question is not all that is folded.
    """
    begins = [index for index, row in enumerate(rows) if row.message.type == "human"]
    last = len(rows) if is_finished(rows) else begins[-1] if begins else 0
    return [
        (cut, len(begins) - bisect_left(begins, cut)) if is_begin else (cut, 0)
        for cut, is_begin in clean_cuts(rows)
        if is_begin or cut > last + 1
    ]

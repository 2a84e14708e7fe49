"""When turns are summarised, and which: planned from what is known of messages without reading them.

Layer 1. A compaction folds the oldest turns behind the current summary into the next one. It is made rarely and then
folds much, so that views stay as they are for many turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from convstore.exceptions import InvalidInputError
from convstore.view.window import Row, is_finished

__all__ = ["CompactionRule", "plan_compaction", "weigh"]

_LEAST_SAVING = 8
"""At least this part of the trigger must be saved: less is not worth a model call and another prompt prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRule:
    """When turns are summarised, and how many.

    Attributes:
        max_tokens_before_summary: Summarise once what is not summarised is larger, as views show it.
        max_summary_tokens: What a summary is expected to take; it is not enforced.
        keep_last_turns: So many finished turns stay as they are, as far as they fit in half of the trigger.
    """

    max_tokens_before_summary: int = 16_000
    max_summary_tokens: int = 1_000
    keep_last_turns: int = 4

    def __post_init__(self) -> None:
        for name, least in (("max_tokens_before_summary", 1), ("max_summary_tokens", 1), ("keep_last_turns", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidInputError(f"{name} is a whole number from {least}, not {value!r}")
        if self.max_summary_tokens >= self.max_tokens_before_summary:
            raise InvalidInputError("max_summary_tokens must be less than max_tokens_before_summary")


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
    wanted = [cut for cut, turns in cuts if turns >= kept] or [0]
    cut = max(wanted)
    if total - sizes[cut] > room:
        cut = next(
            (other for other, _ in cuts if other > cut and total - sizes[other] <= room), cuts[-1][0] if cuts else 0
        )
    saved = sizes[cut] - rule.max_summary_tokens
    return cut if force or saved >= rule.max_tokens_before_summary // _LEAST_SAVING else 0


def weigh(rows: Sequence[Row]) -> list[int]:
    """What each message takes in a view: in full in the turn in progress."""
    last = None if is_finished(rows) else rows[-1].turn
    return [row.message.tokens if row.turn == last else row.message.view_tokens for row in rows]


def _cuts(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Where a summary may end, in order, each with the number of turns that stay behind it.

    Before a human message, at the end of a finished log, and in the turn in progress before an AI message when all
    calls before it have their results.
    """
    begins = [place for place, row in enumerate(rows) if row.message.type == "human"]
    cuts = [(begin, len(begins) - number) for number, begin in enumerate(begins) if begin]
    if is_finished(rows):
        return [*cuts, (len(rows), 0)] if rows else []
    begin, calls, answered = begins[-1] if begins else 0, 0, set[str]()
    for place in range(begin, len(rows)):
        message = rows[place].message
        if message.type == "tool":
            answered.add(message.call)  # a second result for a call answers no other
        elif message.type == "ai":
            if len(answered) >= calls:
                calls, answered = 0, set()
                cuts += [(place, 0)] if place > begin + 1 else []
            calls += message.calls
    return cuts

"""Compare the views of two calls: what was added, stubbed or folded, and how far a prompt cache holds.

Floor 7, pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, takewhile

from langchain_core.messages import AIMessage, BaseMessage

from convstore.ext.inspector.comparison import STATES, View, reason_at
from convstore.values.models import PastView
from convstore.values.stamps import ViewReason

__all__ = ["Changes", "changes_between"]

_MAX_CHANGES = 40

_ADDED = "added"
_CHANGES = {
    "whole": "shown whole again",
    "stub": "became stubs",
    "summarised": "folded into summary {}",
    "left_out": "left out, to stay within the limits",
}
"""What happened to messages that a view shows in another way than the view before; by default their label."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between a view and the one of the call before.

    Attributes:
        earlier: Number of messages in the view before.
        same: Number of messages at the beginning of both that are equal, which a prompt cache can reuse.
        same_tokens: Their size.
        ranges: Ranges of ordinals by what happened to them, such as "added" or "became stubs", in the log's order.
        cause: The first of these that is no addition, "" if there is none.
        left: Number of further ranges.
    """

    earlier: int
    same: int
    same_tokens: int
    ranges: dict[str, list[tuple[int, int]]]
    cause: str
    left: int


def changes_between(before: View, after: View) -> Changes:
    """Return what changed from the view of one call to the view of the next."""
    pairs = zip(before.history.messages, after.history.messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: _is_same(*pair), pairs))
    ranges = _changed(before.history, after.history)
    grouped: dict[str, list[tuple[int, int]]] = {}
    for first, last, change in ranges[:_MAX_CHANGES]:
        grouped.setdefault(change, []).append((first, last))
    return Changes(
        earlier=len(before.history.messages),
        same=same,
        same_tokens=sum(after.sizes[:same]),
        ranges=grouped,
        cause=next((change for change in grouped if not change.startswith(_ADDED)), ""),
        left=len(ranges[_MAX_CHANGES:]),
    )


def _is_same(one: BaseMessage, other: BaseMessage) -> bool:
    """Return True if two views show a message alike; the comparison of whole messages costs twenty times as much."""
    calls = [message.tool_calls if isinstance(message, AIMessage) else [] for message in (one, other)]
    return (one.type, one.id, one.content) == (other.type, other.id, other.content) and calls[0] == calls[1]


def _changed(before: PastView, after: PastView) -> list[tuple[int, int, str]]:
    """Return the ranges of messages that the views show differently, and those that only the later one knows."""
    reasons = [*before.report.reasons, *after.report.reasons]
    edges = sorted({one.first for one in reasons} | {one.last + 1 for one in reasons})
    found: list[tuple[int, int, str]] = []
    for first, end in pairwise(edges):
        old, new = (reason_at(view.report.reasons, first) for view in (before, after))
        if new is None or (old is None and first <= before.ordinal):
            continue
        change = _change(old, new)
        if change and found and found[-1][1:] == (first - 1, change):
            found[-1] = (found[-1][0], end - 1, change)
        elif change:
            found.append((first, end - 1, change))
    return found


def _change(old: ViewReason | None, new: ViewReason) -> str:
    """Return what happened to a range from one view to the next, "" for nothing."""
    if old is None:
        return _ADDED if new.state == "whole" else f"{_ADDED}, {STATES[new.state][0]}"
    if (old.state, old.summary) == (new.state, new.summary):
        return ""
    return _CHANGES.get(new.state, "").format(new.summary) or STATES[new.state][0]

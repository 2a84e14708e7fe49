"""Moments of a conversation: the view that a model got for one answer, and what changed from the call before.

Floor 7. An answer that was appended with a stamp gives exactly the view that it answers. Any other message gives the
view directly after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from langchain_core.messages import AIMessage, BaseMessage
from starlette.exceptions import HTTPException
from starlette.requests import Request

from convstore.conversation import Conversation
from convstore.ext.inspector.comparison import STATES, View
from convstore.ext.inspector.rendering import number_in
from convstore.values.models import PastView, StoredMessage
from convstore.values.stamps import ViewReason

__all__ = ["DIFFERENCES", "Changes", "Moment", "changes_between", "load_view", "moment_of"]

_LOOKED_BACK = 60
_MAX_CHANGES = 40

DIFFERENCES = {
    "counter": "This store counts tokens with another counter than the one of that call, so the view begins elsewhere.",
    "view format": "That call was made by a version of convstore that builds views by other rules.",
    "type": "The view has values of types that are not registered here; they are shown as they are stored.",
    "adapted": "The model got this view with changes: with messages appended with the answer, or with results that a "
    "middleware shortened.",
    "log": "The log is not as it was then, as after a repair.",
}
"""Why a view differs from what the model was given."""

_ADDED = "added"
_CHANGES = {
    "whole": "shown whole again",
    "stub": "became stubs",
    "summarised": "folded into summary {}",
    "left_out": "left out, to stay within the limits",
}
"""What happened to messages that a view shows in another way than the view before; by default their label."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A message and the view that belongs to it.

    Attributes:
        stored: The message; None for now.
        before: The AI message before it, whose view is compared with this one.
    """

    stored: StoredMessage | None = None
    before: StoredMessage | None = None


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


async def moment_of(request: Request, chat: Conversation) -> Moment:
    """Return the moment that ``at=`` in the address names by an ordinal, by default now.

    Raises:
        HTTPException: There is no such message.
    """
    ordinal = number_in(request, "at")
    if ordinal is None:
        return Moment()
    page = await chat.list_messages(before=ordinal + 1, limit=_LOOKED_BACK, rewound=True)
    if not page or page[-1].ordinal != ordinal:
        raise HTTPException(404)
    answers = [one for one in reversed(page[:-1]) if one.message.type == "ai" and not one.is_rewound]
    stamped = (one for one in answers if one.seen and page[-1].seen)
    return Moment(page[-1], next(stamped, next(iter(answers), None)))


async def load_view(
    chat: Conversation, stored: StoredMessage | None = None, *, before: int | None = None, is_compared: bool = True
) -> View:
    """Load the view of a message, or of now, with the reasons for messages before an ordinal.

    Args:
        chat: The conversation.
        stored: The message; None for now.
        before: Only reasons that begin before this ordinal.
        is_compared: Compare the view with its stamp.
    """
    seen = stored.seen if stored else None
    policy = None if seen is None or is_compared else seen.history_policy
    history = await chat.view_at(seen or (stored.ordinal if stored else None), policy=policy, reasons_before=before)
    return View(history, chat.store.token_counter, answer=stored.ordinal if stored and seen else 0)


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
        old, new = (_reason(view.report.reasons, first) for view in (before, after))
        if new is None or (old is None and first <= before.ordinal):
            continue
        change = _change(old, new)
        if change and found and found[-1][1:] == (first - 1, change):
            found[-1] = (found[-1][0], end - 1, change)
        elif change:
            found.append((first, end - 1, change))
    return found


def _reason(reasons: Sequence[ViewReason], ordinal: int) -> ViewReason | None:
    return next((one for one in reasons if one.first <= ordinal <= one.last), None)


def _change(old: ViewReason | None, new: ViewReason) -> str:
    """Return what happened to a range from one view to the next, "" for nothing."""
    if old is None:
        return _ADDED if new.state == "whole" else f"{_ADDED}, {STATES[new.state][0]}"
    if (old.state, old.summary) == (new.state, new.summary):
        return ""
    return _CHANGES.get(new.state, "").format(new.summary) or STATES[new.state][0]

"""Moments of a conversation: the view that a model got for one answer, and what changed from the call before.

Floor 7. An answer that was appended with a stamp gives exactly the view that it answers. Any other message gives the
view directly after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from starlette.exceptions import HTTPException
from starlette.requests import Request

from convstore.conversation import Conversation
from convstore.ext.inspector.comparison import STATES, View
from convstore.ext.inspector.rendering import number_in
from convstore.values.models import PastView, StoredMessage
from convstore.values.stamps import ViewReason

__all__ = ["Changes", "Moment", "changes_between", "load_view", "moment_of"]

_LOOKED_BACK = 60
_MAX_CHANGES = 40


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
        same: Number of messages at the beginning that are equal, which a prompt cache can reuse.
        same_tokens: Their size.
        added: Number of messages after them.
        ranges: Ranges of ordinals that are shown differently: first, last, how before, how now.
        left: Number of further ranges.
    """

    same: int
    same_tokens: int
    added: int
    ranges: list[tuple[int, int, str, str]]
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


async def load_view(chat: Conversation, stored: StoredMessage | None = None, *, before: int | None = None) -> View:
    """Load the view of a message, or of now, with the reasons for messages before an ordinal."""
    at = None if stored is None else stored.seen or stored.ordinal
    return View(await chat.view_at(at, reasons_before=before), chat.store.token_counter)


def changes_between(before: View, after: View) -> Changes:
    """Return what changed from the view of one call to the view of the next."""
    pairs = zip(before.history.messages, after.history.messages, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    ranges = _changed(before.history, after.history)
    return Changes(
        same=same,
        same_tokens=sum(after.sizes[:same]),
        added=len(after.history.messages) - same,
        ranges=ranges[:_MAX_CHANGES],
        left=len(ranges[_MAX_CHANGES:]),
    )


def _changed(before: PastView, after: PastView) -> list[tuple[int, int, str, str]]:
    """Return the ranges of messages that the views show differently, and those that only the later one knows."""
    reasons = [*before.report.reasons, *after.report.reasons]
    edges = sorted({one.first for one in reasons} | {one.last + 1 for one in reasons})
    found: list[tuple[int, int, str, str]] = []
    for first, end in pairwise(edges):
        old, new = _label(before.report.reasons, first), _label(after.report.reasons, first)
        if old == new or not new or (not old and first <= before.ordinal):
            continue
        if found and found[-1][1:] == (first - 1, old, new):
            found[-1] = (found[-1][0], end - 1, old, new)
        else:
            found.append((first, end - 1, old, new))
    return found


def _label(reasons: Sequence[ViewReason], ordinal: int) -> str:
    """Return how a view shows a message, "" if it does not know it."""
    reason = next((one for one in reasons if one.first <= ordinal <= one.last), None)
    if reason is None:
        return ""
    return f"in summary {reason.summary}" if reason.summary else STATES[reason.state][0]

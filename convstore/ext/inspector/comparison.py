"""Align the log with the view, to say what the model gets of each message and why; compare the views of two calls.

Messages that the store adds to a view, such as a summary or a note, have no stored message next to them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.provenance import kind_of
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import has_calls
from convstore.types import PastView, StoredMessage
from convstore.values.stamps import ViewReason

STATES: Mapping[str, tuple[str, str]] = {
    "whole": ("whole", "The model gets this message as it is stored."),
    "stub": (
        "stub",
        "The turn is finished, so a stub replaces the result. The model can read it again with its id or its numbers.",
    ),
    "shortened": ("shortened", "A long text of a finished turn: the model gets its beginning and its end."),
    "placeholder": ("placeholder", "Images, audio and files of finished turns are named, not sent again."),
    "summarised": ("in the summary", "The model gets the summary instead. The messages stay in the log."),
    "left_out": (
        "left out",
        "Older than the view, because of its budget or its limit of turns. It stays in the log.",
    ),
    "hidden": ("left out", "Views of conversations without tools leave out calls and results."),
    "orphan": ("left out", "No call in the view matches this result."),
    "late": ("as text", "The result came after its call was summarised or left out, so it is shown as text."),
    "answer": ("the answer", "The model answered the view with this message."),
    "later": ("later", "The message came after this view."),
    "rewound": ("rewound", "Rewound, as after an edited question. The model does not get it; it stays in the log."),
}
"""Label and explanation of each state of a stored message."""

ADDED: Mapping[str, tuple[str, str]] = {
    "summary": ("summary", "Replaces the older messages that it covers."),
    "note": ("note", "Says how much is left out, and how the model gets it back."),
    "missing_result": ("added", "The call has no result in the log. Models reject a call without one."),
    "late_result": ("as text", "A result whose call is not in the view."),
    "joined": ("joined", "Messages that the provider wants as one."),
    "media": ("added", "The provider does not take images and files in tool results."),
    "beginning": ("added", "The provider wants a human message before the first answer."),
}
"""Label and explanation of each kind of message that only a view contains."""

_LIMITS = {
    "max_tokens": "Older than the view, whose token budget ends before it. It stays in the log.",
    "max_turns": "Older than the view, which is limited to a number of turns. It stays in the log.",
}

_SHARED = {"summarised": "summary", "left_out": "note", "rewound": "", "later": ""}
"""States of messages that share a row, and the kind of the message in the view that replaces them."""

_PARTS = (
    ("system", "System messages"),
    ("summary", "Summary"),
    ("note", "Note"),
    ("stubs", "Stubs"),
    ("turns", "Finished turns"),
    ("current", "Turn in progress"),
)

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
class Given:
    """The part of a view that one row shows, with its size there; `state` is a key of `STATES` or `ADDED`.

    `why` is the reason in a sentence. `message` is None if the view does not contain it, and `version` that of the
    summary which covers the message, else 0.
    """

    state: str
    label: str
    why: str
    tokens: int = 0
    message: BaseMessage | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Stored messages next to the part of the view that shows them.

    Several messages that one summary covers, or that are left out or rewound together, share a row. A message that only
    the view has is in a row without stored messages.
    """

    stored: tuple[StoredMessage, ...]
    given: Given


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the bar that shows what fills a view; `start` and `width` are in thousandths of the bar."""

    key: str
    title: str
    messages: int
    tokens: int
    start: float
    width: float


class View:
    """A view of a conversation, prepared for comparison with pages of its log.

    Args:
        history: The view, with the reasons for the page.
        counter: Counts the tokens of its messages.
        origin: The reason why it has its policy, in words.
        answer: Ordinal of the message that answers it, 0 if that is not known.
    """

    def __init__(self, history: PastView, counter: TokenCounter, *, origin: str, answer: int = 0) -> None:
        self.history, self.policy, self.origin, self._answer = history, history.policy, origin, answer
        self.sizes = [count(counter, message) for message in history.messages]
        self._late = frozenset(history.report.late_results)
        self._by_id: dict[str | None, tuple[BaseMessage, int]] = {}
        self._added_after: dict[str | None, list[Given]] = {}
        self._added_before: dict[str | None, list[Given]] = {}
        self._replacing: dict[str, Given] = {}
        self._place()

    def _place(self) -> None:
        """Assign each message that only the view has to the logged message before it, or after it at the beginning."""
        pending: list[Given] = []
        last: str | None = None
        for message, size in zip(self.history.messages, self.sizes, strict=True):
            kind = kind_of(message)
            if kind in ADDED and message.id not in self._late:
                version = self.history.version if kind == "summary" else 0
                added = Given(kind, *ADDED[kind], size, message, version)
                is_leading = kind in ("summary", "note") or last is None
                (pending if is_leading else self._added_after.setdefault(last, [])).append(added)
                self._replacing.setdefault(kind, added)
                continue
            self._by_id[message.id] = message, size
            self._added_before[message.id], pending = pending, []
            last = message.id
        self._added_after.setdefault(last, []).extend(pending)

    def rows(self, stored: Sequence[StoredMessage]) -> list[Row]:
        """Return a page of the log next to the view."""
        rows: list[Row] = []
        for one in stored:
            shown = {_SHARED.get(row.given.state) for row in rows}
            rows += [Row((), added) for added in self._added_before.get(one.message.id, ()) if added.state not in shown]
            given = self.given(one)
            if rows and given.state in _SHARED and rows[-1].given == given:
                rows[-1] = Row((*rows[-1].stored, one), given)
            else:
                rows.append(Row((one,), given))
            rows += [Row((), added) for added in self._added_after.get(one.message.id, ())]
        return rows

    def given(self, stored: StoredMessage) -> Given:
        """Return what the model gets of a stored message."""
        reason = _reason_at(self.history.report.reasons, stored.ordinal)
        if reason is None:
            state = "answer" if stored.ordinal == self._answer else "later"
            return Given(state, *STATES[state])
        label, why = STATES[reason.state]
        if reason.summary:
            label = f"in summary {reason.summary}"
        message, size = self._by_id.get(stored.message.id, (None, 0))
        if message is None and (added := self._replacing.get(_SHARED.get(reason.state, ""))):
            message, size = added.message, added.tokens
        return Given(reason.state, label, _LIMITS.get(reason.limit, why), size, message, reason.summary)


def _reason_at(reasons: Sequence[ViewReason], ordinal: int) -> ViewReason | None:
    """Return the reason of the range that contains an ordinal; the ranges are in order."""
    index = bisect_right(reasons, ordinal, key=lambda one: one.first) - 1
    return reasons[index] if index >= 0 and ordinal <= reasons[index].last else None


def parts_of_view(view: View) -> list[Part]:
    """Return the parts that fill a view, in order; empty ones are left out."""
    messages, sizes = view.history.messages, view.sizes
    last_human = max((index for index, one in enumerate(messages) if _is_question(one)), default=0)
    is_finished = not messages or (messages[-1].type == "ai" and not has_calls(messages[-1]))
    stubbed = set(view.history.report.stubbed)

    def key(index: int, message: BaseMessage) -> str:
        kind = kind_of(message)
        if message.type == "system" or kind in ("summary", "note"):
            return "system" if message.type == "system" else kind
        if index >= last_human and not is_finished:
            return "current"
        return "stubs" if message.id in stubbed else "turns"

    keys = [key(index, message) for index, message in enumerate(messages)]
    parts, start, total = [], 0.0, max(1, sum(sizes))
    for name, title in _PARTS:
        if number := keys.count(name):
            tokens = sum(size for one, size in zip(keys, sizes, strict=True) if one == name)
            parts.append(Part(name, title, number, tokens, start, 1000 * tokens / total))
            start += parts[-1].width
    return parts


def _is_question(message: BaseMessage) -> bool:
    return message.type == "human" and not kind_of(message)


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between a view and the one of the call before, which had `earlier` messages.

    Both begin with `same` equal messages, which a prompt cache can reuse. `ranges` has ranges of ordinals by what
    happened to them, such as "added" or "became stubs", in the log's order; `left` more are not in it. `cause` is the
    first of these that is no addition, "" if there is none.
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
        old, new = (_reason_at(view.report.reasons, first) for view in (before, after))
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

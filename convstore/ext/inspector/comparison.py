"""Align the log with a view: find the form in which the model gets each stored message, and the reason.

Messages that the store adds to a view, such as a summary or a note, are rows without a stored message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from convstore.messages.provenance import kind_of, view_parts_of
from convstore.messages.tokens import APPROXIMATE, TokenCounter, count
from convstore.types import PastView, StoredMessage
from convstore.values.explanations import (
    ADDED,
    MISSING_RESULT,
    STATES,
    label_of,
    limit_of,
    why_stub,
)
from convstore.values.list_rows import ConversationEnd
from convstore.values.stamps import ViewParts, ViewReason
from convstore.wire.history import ids_in_progress, open_turn_of

LEGEND: Mapping[str, tuple[str, str]] = {
    **STATES,
    "answer": ("output", "The model answered the view with this message."),
    "later": ("later", "The message came after this view."),
}
"""Label and explanation of each state of a stored message, including messages after the view."""

_SHARED = {"summarised": "summary", "left_out": "note"}
"""States whose messages share a row, and the kind of the view's message that replaces them."""

SHOWN = frozenset({"whole", "stub", "shortened", "placeholder", "late"})
"""States of messages that are in the view, not replaced by a summary or a note."""

PARTS: Mapping[str, str] = {
    "system": "System",
    "summary": "Summary, note",
    "stub": "Stubs, shortened",
    "turn": "Finished turns",
    "now": "Turn in progress",
}
"""Title of each part of a view, in the order in which bars show them."""


def begins_turn(stored: StoredMessage) -> bool:
    """Return True for a question. Other human messages, which a tool or a writer added to a turn, are not questions."""
    return stored.turn_id == stored.message.id


@dataclass(frozen=True, slots=True)
class ShownForm:
    """Form of one row in a view.

    Attributes:
        state: A key of `LEGEND` or `ADDED`.
        label: The label of the state.
        why: The reason in a sentence.
        tokens: The size in the view.
        message: The view's message; None if the view does not have it.
        version: Version of the summary that covers the message, else 0.
        part: A key of `PARTS`, or the state of a message that is not in the view.
        replaces: Number of messages that the summary or note replaces, on this page or elsewhere.
    """

    state: str
    label: str
    why: str
    tokens: int = 0
    message: BaseMessage | None = None
    version: int = 0
    part: str = "later"
    replaces: int = 0


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """Stored messages aligned with their form in the view.

    Consecutive messages that one summary covers, or that are left out together, share a row. A message that only the
    view has is in a row without stored messages.
    """

    stored: tuple[StoredMessage, ...]
    given: ShownForm


class AlignedView:
    """A view of a conversation, prepared for comparison with pages of its log.

    Args:
        history: The view, with the reasons for the page.
        counter: Counts the tokens of its messages.
        origin: The origin of its policy, in words.
        answer: Ordinal of the message that answers it; 0 if it is not known.
        end: The end of the conversation, for the view of the next call.

    Attributes:
        labels: Label and explanation of each message that only the view has, by Python's `id()` of it.
    """

    def __init__(
        self,
        history: PastView,
        counter: TokenCounter,
        *,
        origin: str,
        answer: int = 0,
        end: ConversationEnd | None = None,
    ) -> None:
        self.history = history
        self.end = end
        self.policy = history.policy
        self.origin = origin
        self._answer = answer
        self.is_approximate = getattr(counter, "name", "") == APPROXIMATE
        self.sizes = [count(counter, message) for message in history.messages]
        self.ids = {message.id for message in history.messages}
        self._in_progress = ids_in_progress(history)
        report = history.report
        self.keys = view_parts_of(
            history.messages,
            {*report.stubbed, *report.placeholders, *report.shortened},
            current=open_turn_of(history),
        )
        self._late = frozenset(history.report.late_results)
        self._replaced = Counter[str]()
        for reason in report.reasons:
            if replacement := _SHARED.get(reason.state):
                self._replaced[replacement] += reason.last - reason.first + 1
        self._by_id: dict[str | None, tuple[BaseMessage, int, str]] = {}
        self._added_after: dict[str | None, list[ShownForm]] = {}
        self._added_before: dict[str | None, list[ShownForm]] = {}
        self._replacing: dict[str, ShownForm] = {}
        self.labels: dict[int, tuple[str, str]] = {}
        self._place()

    def _place(self) -> None:
        """Assign each message that only the view has to a logged neighbour: the one before it, or else after it."""
        pending: list[ShownForm] = []
        last: str | None = None
        for message, size, part in zip(self.history.messages, self.sizes, self.keys, strict=True):
            kind = kind_of(message)
            if kind in ADDED:
                self.labels[id(message)] = self._label(kind, part)
            if kind in ADDED and message.id not in self._late:
                version = self.history.version if kind == "summary" else 0
                label, why = self.labels[id(message)]
                count_ = self._replaced[kind]
                added = ShownForm(kind, label, why, size, message, version, part, count_)
                is_leading = kind in ("summary", "note") or last is None
                (pending if is_leading else self._added_after.setdefault(last, [])).append(added)
                self._replacing.setdefault(kind, added)
                continue
            self._by_id[message.id] = message, size, part
            self._added_before[message.id] = pending
            pending = []
            last = message.id
        self._added_after.setdefault(last, []).extend(pending)

    def _label(self, kind: str, part: str) -> tuple[str, str]:
        """Return the label and explanation of a message that only views have."""
        status = self.end.status if self.end and part == "now" else ""
        if kind == "missing_result" and status in MISSING_RESULT:
            return MISSING_RESULT[status]
        return ADDED[kind]

    def rows(self, stored: Sequence[StoredMessage]) -> list[AlignedRow]:
        """Return the rows of a page of the log, aligned with the view."""
        rows: list[AlignedRow] = []
        for message in stored:
            shown = {_SHARED.get(row.given.state) for row in rows}
            added_before = self._added_before.get(message.message.id, ())
            rows += [AlignedRow((), added) for added in added_before if added.state not in shown]
            given = self.given(message)
            if rows and given.state in _SHARED and rows[-1].given == given:
                rows[-1] = AlignedRow((*rows[-1].stored, message), given)
            else:
                rows.append(AlignedRow((message,), given))
            rows += [
                AlignedRow((), added) for added in self._added_after.get(message.message.id, ())
            ]
        return rows

    def given(self, stored: StoredMessage) -> ShownForm:
        """Return the form in which the model gets a stored message."""
        reason = reason_at(self.history.report.reasons, stored.ordinal)
        if reason is None:
            state = "answer" if stored.ordinal == self._answer else "later"
            return ShownForm(state, *LEGEND[state], part=state)
        return self._given(reason, stored.message.id)

    def older(self, ordinal: int) -> list[tuple[ViewReason, ShownForm]]:
        """Return the ranges before an ordinal that are left out or summarised, with the message that replaces each."""
        ranges = [reason for reason in self.history.report.reasons if reason.last < ordinal]
        return [(reason, self._given(reason, None)) for reason in ranges if reason.state in _SHARED]

    def _given(self, reason: ViewReason, message_id: str | None) -> ShownForm:
        label = label_of(reason)
        why = STATES[reason.state][1]
        outside = "rewound" if reason.state == "rewound" else "later"
        if reason.state == "stub":
            why = why_stub(has_ended=message_id not in self._in_progress)
        if limit := limit_of(reason, self.policy):
            why = f"Left out {limit}. It stays in the log."
        message, size, part = self._by_id.get(message_id, (None, 0, outside))
        if message is None and (added := self._replacing.get(_SHARED.get(reason.state, ""))):
            message = added.message
            size = added.tokens
            part = added.part
        replaces = self._replaced[_SHARED.get(reason.state, "")]
        return ShownForm(reason.state, label, why, size, message, reason.summary, part, replaces)

    def ordinals(self) -> dict[str | None, int]:
        """Return the ordinals of the view's messages by id; {} if results were moved to their calls.

        Messages and reasons are both in the order of the log, so they are paired from their ends.
        """
        shown = [reason for reason in self.history.report.reasons if reason.state in SHOWN]
        places = [ordinal for reason in shown for ordinal in range(reason.first, reason.last + 1)]
        pairs = zip(reversed(self._by_id), reversed(places), strict=False)
        return {} if self.history.report.moved else dict(pairs)

    @property
    def is_shortened(self) -> bool:
        """True if it changes the form of a message of the log, or leaves one out."""
        return any(
            reason.state not in ("whole", "rewound") for reason in self.history.report.reasons
        )

    def parts(self) -> dict[str, int]:
        """Return the tokens of each part of the view."""
        return ViewParts.of(self.keys, self.sizes)._asdict()


def reason_at(reasons: Sequence[ViewReason], ordinal: int) -> ViewReason | None:
    """Return the reason of the range that contains an ordinal; the ranges are in order."""
    index = bisect_right(reasons, ordinal, key=lambda reason: reason.first) - 1
    return reasons[index] if index >= 0 and ordinal <= reasons[index].last else None

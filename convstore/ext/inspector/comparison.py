"""Align the log with the view: for each stored message what the model gets of it, and why.

Floor 7, pure. Messages that the store adds to a view, such as a summary or a note, have no stored message beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.provenance import kind_of
from convstore.messages.tokens import TokenCounter, count
from convstore.values.models import History, StoredMessage, Summary
from convstore.values.policy import HistoryPolicy

__all__ = ["ADDED", "STATES", "Given", "Part", "Row", "View", "parts_of_view"]

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
    "rewound": ("rewound", "Rewound, as after an edited question. The model does not get it; it stays in the log."),
}
"""Label and explanation of each state of a stored message."""

ADDED: Mapping[str, tuple[str, str]] = {
    "summary": ("summary", "Replaces the older messages that it covers."),
    "note": ("note", "Says how much is left out, and how the model gets it back."),
    "missing_result": ("added", "The call has no result in the log. Models reject a call without one."),
    "late_result": ("as text", "A result whose call is not in the view."),
    "joined": ("joined", "Messages that the provider wants as one."),
    "beginning": ("added", "The provider wants a human message before the first answer."),
}
"""Label and explanation of each kind of message that only a view contains."""

_SHARED = {"summarised": "summary", "left_out": "note", "rewound": ""}
"""States of messages that share a row, and the kind of the message in the view that replaces them."""

_PARTS = (
    ("system", "System messages"),
    ("summary", "Summary"),
    ("note", "Note"),
    ("stubs", "Stubs"),
    ("turns", "Finished turns"),
    ("current", "Turn in progress"),
)


@dataclass(frozen=True, slots=True)
class Given:
    """The part of a view that one row shows.

    Attributes:
        state: Key of `STATES` or `ADDED`.
        label: One or two words.
        why: The reason in a sentence.
        tokens: Size in the view.
        message: The message in the view; None if the view does not contain it.
        version: Version of the summary that covers the message, else 0.
    """

    state: str
    label: str
    why: str
    tokens: int = 0
    message: BaseMessage | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Stored messages beside the part of the view that shows them.

    Several messages that one summary covers, or that are left out or rewound together, share a row. A message that only
    the view has is in a row without stored messages.
    """

    stored: tuple[StoredMessage, ...]
    given: Given


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the bar that shows what fills a view.

    Attributes:
        key: Its name in the style sheet.
        title: Its name for readers.
        messages: Number of its messages.
        tokens: Their size.
        start: Where it begins, in thousandths of the bar.
        width: Its width in thousandths of the bar.
    """

    key: str
    title: str
    messages: int
    tokens: int
    start: float
    width: float


class View:
    """A view of a conversation, prepared for comparison with pages of its log.

    Args:
        history: The view.
        policy: Its policy.
        counter: Counts the tokens of its messages.
        summary: The summary that it shows, None for none.
    """

    def __init__(self, history: History, policy: HistoryPolicy, counter: TokenCounter, summary: Summary | None) -> None:
        self.history, self.policy, self.summary = history, policy, summary
        self.sizes = [count(counter, message) for message in history.messages]
        report = history.report
        changed = {"stub": report.stubbed, "placeholder": report.placeholders, "shortened": report.shortened}
        self._states = {id_: state for state, ids in changed.items() for id_ in ids}
        self._states |= dict.fromkeys(report.orphans, "orphan") | dict.fromkeys(report.late_results, "late")
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
            if kind in ADDED and message.id not in self._states:
                version = self.summary.version if self.summary and kind == "summary" else 0
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
        """Return a page of the log beside the view."""
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
        if stored.is_rewound:
            return Given("rewound", *STATES["rewound"])
        message, size = self._by_id.get(stored.message.id, (None, 0))
        if message is not None:
            state = self._states.get(str(message.id), "whole")
            return Given(state, *STATES[state], size, message)
        if self.summary and self.summary.first <= stored.ordinal <= self.summary.last:
            return self._replaced("summarised", f"in summary {self.summary.version}", self.summary.version)
        state = self._states.get(str(stored.message.id), "left_out")
        is_tool = stored.message.type == "tool" or _calls(stored.message)
        if state == "left_out" and self.policy.view == "conversation" and is_tool:
            state = "hidden"
        return self._replaced(state, STATES[state][0])

    def _replaced(self, state: str, label: str, version: int = 0) -> Given:
        """Return a state with the message in the view that replaces the stored ones, if there is one."""
        added = self._replacing.get(_SHARED.get(state, ""))
        return Given(
            state, label, STATES[state][1], added.tokens if added else 0, added.message if added else None, version
        )


def parts_of_view(view: View) -> list[Part]:
    """Return the parts that fill a view, in order; empty ones are left out."""
    messages, sizes = view.history.messages, view.sizes
    last_human = max((index for index, one in enumerate(messages) if _is_question(one)), default=0)
    is_finished = not messages or (messages[-1].type == "ai" and not _calls(messages[-1]))
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


def _calls(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and bool(message.tool_calls or message.invalid_tool_calls)

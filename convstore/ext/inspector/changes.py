"""Compare the views of two calls: what a prompt cache can reuse of the later one, what broke it, and a diff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise, takewhile
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from convstore.ext.inspector.comparison import View, reason_at
from convstore.ext.inspector.text import sent_text
from convstore.types import PastView
from convstore.values.explanations import STATES, limit_of

_MAX_LINES, _NEAR, _ALIKE = 60, 80, 40
_CAUSES = {
    "whole": "whole again",
    "stub": "shown by a stub",
    "summarised": "in summary {}",
}
"""What happened to messages that a view shows in another way than the view before; by default their label."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a diff: messages that are the same, were removed or were added; `kind` is "same", "was" or "add".

    `text` is cut out of the message: `before` and `after` are what it has in common with its other form.
    """

    kind: str
    first: BaseMessage
    last: BaseMessage
    count: int
    tokens: int
    before: str = ""
    text: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between a view and the one of the call before.

    Attributes:
        same_tokens: Size of the equal messages with which both begin, which a prompt cache can reuse.
        is_kept: True if the view begins with the whole view before.
        cause: The first change that is no addition, in words.
        lines: The diff, at most its first lines.
        left: Number of lines that are not in it.
    """

    same_tokens: int
    is_kept: bool
    cause: str
    lines: Sequence[DiffLine]
    left: int


def changes_between(before: View, after: View) -> Changes:
    """Return what changed from the view of one call to the view of the next."""
    same = _alike(*(map(_key, view.history.messages) for view in (before, after)))
    lines = list(_diff(before, after, same))
    return Changes(
        same_tokens=sum(after.sizes[:same]),
        is_kept=same == len(before.history.messages),
        cause=next(_causes(before.history, after.history), "another summary or note stands before them"),
        lines=lines[:_MAX_LINES],
        left=len(lines[_MAX_LINES:]),
    )


def _key(message: BaseMessage) -> tuple[str, str | None, str]:
    """Return what is equal for messages that two views show alike; comparing whole messages costs twenty times more."""
    calls = message.tool_calls if isinstance(message, AIMessage) else ""
    return message.type, message.id, f"{message.content}{calls}"


def _diff(before: View, after: View, same: int) -> Iterator[DiffLine]:
    """Yield the lines of the diff; what is the same and what was removed in a row share one."""
    old, new = before.history.messages, after.history.messages
    if same:
        yield _line("same", after, range(same))
    matcher = SequenceMatcher(
        None, [_key(message) for message in old[same:]], [_key(message) for message in new[same:]], autojunk=False
    )
    for kind, first, last, start, stop in matcher.get_opcodes():
        removed, added = range(same + first, same + last), range(same + start, same + stop)
        if kind == "equal":
            yield _line("same", after, added)
            continue
        forms = {old[index].id: index for index in removed} if kind == "replace" else {}
        kept = {new[index].id for index in added}
        gone = [index for index in removed if old[index].id not in kept]
        if gone:
            yield _line("was", before, gone)
        for index in added:
            yield from _changed(before, after, forms.get(new[index].id), index)


def _changed(before: View, after: View, earlier: int | None, index: int) -> Iterator[DiffLine]:
    """Yield the lines of a message that is new, or has another form than in the view before."""
    if earlier is None:
        yield _line("add", after, [index])
        return
    texts = [sent_text(before.history.messages[earlier]), sent_text(after.history.messages[index])]
    head = _alike(*texts)
    tail = _alike(*(text[head:][::-1] for text in texts))
    head, tail = (head, tail) if head + tail >= _ALIKE else (0, 0)
    for kind, view, at, text in zip(("was", "add"), (before, after), (earlier, index), texts, strict=True):
        middle = text[head : len(text) - tail]
        yield _line(kind, view, [at], (text[:head][-_NEAR:], middle, text[len(text) - tail :][:_NEAR]))


def _alike(items: Iterable[Any], others: Iterable[Any]) -> int:
    """Return the number of keys or characters with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(items, others, strict=False)))


def _line(kind: str, view: View, indexes: Sequence[int], parts: tuple[str, str, str] | None = None) -> DiffLine:
    messages = view.history.messages
    first, last = messages[indexes[0]], messages[indexes[-1]]
    head, text, tail = parts or ("", sent_text(first), "")
    tokens = sum(view.sizes[index] for index in indexes)
    return DiffLine(kind, first, last, len(indexes), tokens, head, text, tail)


def _causes(before: PastView, after: PastView) -> Iterator[str]:
    """Yield what happened to the ranges of messages that the views show differently, in words."""
    reasons = [*before.report.reasons, *after.report.reasons]
    edges = sorted({reason.first for reason in reasons} | {reason.last + 1 for reason in reasons})
    for first, end in pairwise(edges):
        old, new = (reason_at(view.report.reasons, first) for view in (before, after))
        if old and new and (old.state, old.summary) != (new.state, new.summary):
            change = _CAUSES.get(new.state, STATES[new.state][0]).format(new.summary)
            if limit := limit_of(new, after.policy):
                change += f" {limit}"
            if new.summary and new.summary == after.version and after.summary_reason:
                change += f", made because {after.summary_reason}"
            last = new.last if new.state in ("summarised", "left_out") else end - 1
            yield f"messages {first} to {last} are now {change}" if last > first else f"message {first} is now {change}"

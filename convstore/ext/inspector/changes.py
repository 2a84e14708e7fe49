"""Compare the views of two calls: the part that a prompt cache can reuse, the cause that broke it, and a diff."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from langchain_core.messages import BaseMessage

from convstore.ext.inspector.comparison import AlignedView, reason_at
from convstore.ext.inspector.text import sent_text
from convstore.ext.model_calls import cached_prefix, form_of, same_beginning
from convstore.messages.provenance import kind_of
from convstore.types import PastView, ViewReason
from convstore.values.explanations import STATES, cause_of_stub, limit_of
from convstore.values.plain import equal_at_start
from convstore.values.stamps import (
    ANOTHER_MODEL,
    ANOTHER_POLICY,
    PROMPT_CHANGED,
    RESULTS_BECAME_STUBS,
    STEPS_LEFT_OUT,
    SUMMARY_MADE,
    TEXTS_SHORTENED,
    TURN_ENDED,
    TURNS_LEFT_OUT,
    WHOLE_CACHE_LOST,
)

_MAX_LINES = 60
_NEAR = 80
_ALIKE = 40
_CAUSES = {
    "whole": "whole again",
    "stub": "shown by a stub",
    "summarised": "in summary {}",
}
"""Descriptions of the new form of messages, by state; the default is the state's label."""

_STATES_BY_CAUSE = {
    SUMMARY_MADE: ("summarised",),
    TURNS_LEFT_OUT: ("left_out",),
    STEPS_LEFT_OUT: ("left_out",),
    TEXTS_SHORTENED: ("shortened",),
    RESULTS_BECAME_STUBS: ("stub",),
    TURN_ENDED: ("stub", "placeholder"),
}
"""States that messages have after each cause of `break_between`."""

_UNSEEN_CAUSES = {
    ANOTHER_MODEL: "another model answered, which has a cache of its own",
    PROMPT_CHANGED: "the system prompt or the tools are others than those of the call before",
}
"""Descriptions of the causes that do not change a message."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a diff, for one message or several in a row.

    Attributes:
        kind: "same" for equal messages before the first change, "again" for those after it, "was" for removed ones,
            "form" for another form of a message or a new summary or note, "add" for new messages.
        first: The first message.
        last: The last message.
        count: Number of messages.
        tokens: Their size in the view.
        before: End of the text that the first message and its other form have in common, before `text`.
        text: The text of the first message, without the common parts.
        after: Beginning of the common text after `text`.
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
class ViewChanges:
    """The differences between a view and the one of the call before.

    Attributes:
        same_tokens: Size of the equal messages with which both begin, which a prompt cache can reuse.
        new_tokens: Size of the messages that the log did not have at the call before; the rest is sent again.
        is_whole: True if the view begins with the whole view before.
        is_kept: True if the cache did not break: everything after the equal messages is new.
        cause: The cause that broke the cache, in words: the first change of the kind that `break_between` names.
        lines: The first lines of the diff.
        left: Number of further lines.
    """

    same_tokens: int
    new_tokens: int
    is_whole: bool
    is_kept: bool
    cause: str
    lines: Sequence[DiffLine]
    left: int


def changes_between(
    before: AlignedView, after: AlignedView, has_ended: Callable[[int], bool], cut_by: str
) -> ViewChanges:
    """Compare the view of a call with that of the call before.

    `has_ended` returns True if the turn of an ordinal had ended; `cut_by` is the cause that `break_between` names.
    """
    kept = cached_prefix(before.history, after.history, cut_by)
    causes = list(_causes(before.history, after.history, has_ended))
    states = _STATES_BY_CAUSE.get(cut_by, ())
    named = [text for state, text in causes if state in states]
    others = [text for _, text in causes]
    lines = list(_diff(before, after, same_beginning(before.history, after.history)))
    cause = [*named, *others, "another summary or note stands before them"][0]
    if cut_by in WHOLE_CACHE_LOST:
        cause = _UNSEEN_CAUSES[cut_by]
    if cut_by == ANOTHER_POLICY:
        cause = f"the policy was {before.policy} and is {after.policy}: {cause}"
    return ViewChanges(
        same_tokens=sum(after.sizes[: kept.messages]),
        new_tokens=sum(line.tokens for line in lines if line.kind == "add"),
        is_whole=kept.messages == len(before.history.messages),
        is_kept=not kept.cause,
        cause=cause,
        lines=lines[:_MAX_LINES],
        left=len(lines[_MAX_LINES:]),
    )


def _is_new(message: BaseMessage, before: AlignedView) -> bool:
    """Return True for a message that the view before does not have in any form, except a summary or a note."""
    return message.id not in before.ids and kind_of(message) not in ("summary", "note")


def _diff(before: AlignedView, after: AlignedView, same: int) -> Iterator[DiffLine]:
    """Yield the lines of the diff; consecutive equal messages share a line, and so do consecutive removed ones."""
    old = [form_of(message) for message in before.history.messages[same:]]
    new = [form_of(message) for message in after.history.messages[same:]]
    if same:
        yield _line("same", after, range(same))
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, first, last, start, stop in matcher.get_opcodes():
        removed = range(same + first, same + last)
        added = range(same + start, same + stop)
        if kind == "equal":
            yield _line("again", after, added)
        else:
            yield from _replacement(before, after, removed, added)


def _replacement(
    before: AlignedView, after: AlignedView, removed: Sequence[int], added: Sequence[int]
) -> Iterator[DiffLine]:
    """Yield the lines of messages that replace others; one that changed its form is compared with its earlier form."""
    old = before.history.messages
    new = after.history.messages
    forms = {old[index].id: index for index in removed}
    kept = {new[index].id for index in added}
    removed_only = [index for index in removed if old[index].id not in kept]
    if removed_only:
        yield _line("was", before, removed_only)
    for index in added:
        yield from _changed(before, after, forms.get(new[index].id), index)


def _changed(
    before: AlignedView, after: AlignedView, earlier: int | None, index: int
) -> Iterator[DiffLine]:
    """Yield the lines of a message that is new or changed its form; `earlier` is its index in the view before."""
    if earlier is None:
        yield _line(
            "add" if _is_new(after.history.messages[index], before) else "form", after, [index]
        )
        return
    texts = [sent_text(before.history.messages[earlier]), sent_text(after.history.messages[index])]
    head = equal_at_start(*texts)
    tail = equal_at_start(*(text[head:][::-1] for text in texts))
    head, tail = (head, tail) if head + tail >= _ALIKE else (0, 0)
    for kind, view, at, text in zip(
        ("was", "form"), (before, after), (earlier, index), texts, strict=True
    ):
        middle = text[head : len(text) - tail]
        yield _line(
            kind, view, [at], (text[:head][-_NEAR:], middle, text[len(text) - tail :][:_NEAR])
        )


def _line(
    kind: str, view: AlignedView, indexes: Sequence[int], parts: tuple[str, str, str] | None = None
) -> DiffLine:
    messages = view.history.messages
    first = messages[indexes[0]]
    last = messages[indexes[-1]]
    head, text, tail = parts or ("", sent_text(first), "")
    tokens = sum(view.sizes[index] for index in indexes)
    return DiffLine(kind, first, last, len(indexes), tokens, head, text, tail)


def _causes(
    before: PastView, after: PastView, has_ended: Callable[[int], bool]
) -> Iterator[tuple[str, str]]:
    """Yield the new state of each range of messages that the views show differently, and the change in words."""
    reasons = [*before.report.reasons, *after.report.reasons]
    end = max((reason.last for reason in before.report.reasons), default=0)
    edges = sorted({reason.first for reason in reasons} | {reason.last + 1 for reason in reasons})
    for first, following in pairwise(edges):
        old = reason_at(before.report.reasons, first)
        new = reason_at(after.report.reasons, first)
        if not (old and new) or (old.state, old.summary) == (new.state, new.summary):
            continue
        change = _change(new, after)
        if new.state == "stub":
            change += f", {cause_of_stub(has_ended(first))}"
        last = following - 1
        if new.state in ("summarised", "left_out"):
            last = new.last
        yield new.state, f"{_subject(first, last, end)} now {change}"


def _subject(first: int, last: int, end: int) -> str:
    """Return the subject of a sentence about messages; `end` is the last message of the view before."""
    late = ""
    if last > end >= first:
        late = f" ({_range(end + 1, last)} came after the call before)"
    if last > first:
        return f"messages {_range(first, last)}{late} are"
    return f"message {_range(first, last)}{late} is"


def _change(new: ViewReason, after: PastView) -> str:
    """Return the words for the new state of messages in a view."""
    change = _CAUSES.get(new.state, STATES[new.state][0]).format(new.summary)
    if limit := limit_of(new, after.policy):
        change += f" {limit}"
    if new.summary and new.summary == after.version and after.summary_reason:
        change += f", made because {after.summary_reason}"
    return change


def _range(first: int, last: int) -> str:
    return f"{first} to {last}" if last > first else f"{first}"

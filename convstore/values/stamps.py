"""The stamp of a view: the few values from which the view can be rebuilt, and a digest of its messages.

A view is a function of the log up to an entry, the current summary, the policy, the token counter and the format of
views. A stamp stores these inputs, so the view itself need not be stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, ValidationError

from convstore.exceptions import InvalidInputError
from convstore.values.json_form import Value, first_problem
from convstore.values.policy import HistoryPolicy
from convstore.values.turns import OverBy

VIEW_FORMAT = 1
"""Version of the rules by which views are built. Any change that gives other messages for the same log increases it."""

_DEFAULT_BUDGET = HistoryPolicy().max_tokens
_NOT_IN_VIEWS = frozenset({"compact"})
_MAX_CHARACTERS = 4_000

PROMPT_CHANGED = "prompt or tools changed"
"""Cause of a lost prompt cache outside the view: the system prompt or the tools changed."""
ANOTHER_MODEL = "another model"
"""Cause of a lost prompt cache outside the view: each model has a cache of its own."""
WHOLE_CACHE_LOST = frozenset({PROMPT_CHANGED, ANOTHER_MODEL})
"""Causes that invalidate the prompt cache before the first message of the view."""
ANOTHER_POLICY = "another policy"
"""Cause of a lost prompt cache: the options of the view changed."""
MESSAGES_CHANGED = "earlier messages changed"
"""Cause of a lost prompt cache that stamps do not show: messages of the previous view have another form now."""
SUMMARY_MADE = "summary made"
"""Cause of a lost prompt cache: the view shows a new summary."""
SUMMARY_SET_ASIDE = "summary set aside"
"""Cause of a lost prompt cache: the view no longer shows the summary."""
TURNS_LEFT_OUT = "turns left out"
"""Cause of a lost prompt cache: the view begins later than the previous one."""
STEPS_LEFT_OUT = "older steps left out"
"""Cause of a lost prompt cache: steps of the turn in progress left the view."""
TEXTS_SHORTENED = "texts shortened"
"""Cause of a lost prompt cache: the view shortens more texts to their beginning and end."""
RESULTS_BECAME_STUBS = "results became stubs"
"""Cause of a lost prompt cache: results of earlier turns became stubs."""
TURN_ENDED = "turn ended"
"""Cause of a lost prompt cache: the results of a turn became stubs as it ended."""


class ViewMarks(NamedTuple):
    """Positions in the log from which a view is rendered, in addition to log and policy.

    Attributes:
        start: Ordinal of the first message after leading system messages, summary and note.
        short_through: Finished turns up to this ordinal are shortened.
        stubs_through: In the turn that contains this ordinal, steps up to it are condensed.
        gap: Maximum size of the condensed steps of the turn in progress, in tokens.
    """

    start: int = 0
    short_through: int = 0
    stubs_through: int = 0
    gap: int = 0


class ViewParts(NamedTuple):
    """Sizes of the parts of a view, in tokens.

    Attributes:
        system: System messages.
        summary: The summary and the note.
        stub: Messages that are not shown whole: stubs, shortened texts, placeholders.
        turn: Other messages of finished turns.
        now: Other messages of the turn in progress.
    """

    system: int = 0
    summary: int = 0
    stub: int = 0
    turn: int = 0
    now: int = 0

    @classmethod
    def of(cls, parts: Iterable[str], sizes: Iterable[int]) -> ViewParts:
        """Sum the sizes of messages by the name of each message's part."""
        sums = dict.fromkeys(cls._fields, 0)
        for part, size in zip(parts, sizes, strict=False):
            sums[part] += size
        return cls(**sums)


class RequestParts(NamedTuple):
    """Digest and sizes of the parts of a request besides messages, which reveal when these parts change.

    The parts themselves are not stored.

    Attributes:
        digest: Digest of the system prompt and the tools; "" if they are not known.
        prompt: Size of the system prompt, in tokens.
        tools: Size of the tools' definitions, in tokens.
    """

    digest: str = ""
    prompt: int = 0
    tools: int = 0


NOT_MEASURED = RequestParts()


class ViewStamp(BaseModel):
    """The identity of a view, in a few hundred bytes; `Conversation.view_at` builds the view again.

    Attributes:
        conversation_id: The random id of the conversation.
        entry: Number of the last entry of the log at the time of the view.
        ordinal: Last ordinal of the log at the time of the view; 0 if it is unknown.
        summary: Token of the summary that the view shows, "" without one.
        marks: Positions from which messages are shown and shortened: `start`, `short_through`, `stubs_through`
            (ordinals) and `gap` (tokens).
        policy: The options of the policy that differ from the defaults.
        counter: Name of the token counter.
        format: Version of the rules by which views are built.
        tokens: Size of the messages that the model got.
        parts: Sizes by kind of message; their sum is `tokens` unless the application changed the messages itself.
        digest: Digest of the view's messages.
        messages: Number of the view's messages.
        left_out_steps: Number of steps after `start` that are left out.
        shortened: Number of messages that are shortened to their beginning and end.
        thinking_through: Claude's thinking up to this ordinal is left out, because messages before it changed.
        adapted: True if the messages were changed further before the model got them.
        beside: Digest and sizes of the system prompt and the tools that `ConversationMiddleware` saw in the request.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True)

    conversation_id: str
    entry: int = 0
    ordinal: int = 0
    summary: str = ""
    marks: ViewMarks = ViewMarks()
    policy: dict[str, Any] = {}
    counter: str = ""
    format: int = VIEW_FORMAT
    tokens: int = 0
    parts: ViewParts = ViewParts()
    digest: str = ""
    messages: int = 0
    left_out_steps: int = 0
    shortened: int = 0
    thinking_through: int = 0
    adapted: bool = False
    beside: RequestParts = NOT_MEASURED

    @property
    def history_policy(self) -> HistoryPolicy:
        """The policy of the view.

        Raises:
            InvalidInputError: The policy has an option that is unknown to this version.
        """
        try:
            return HistoryPolicy(**self.policy)
        except (InvalidInputError, TypeError) as error:
            raise InvalidInputError(
                f"the stamp has a policy that this version does not know: {error}"
            ) from error


Stamper = Callable[[Sequence[BaseMessage], Sequence[int] | None, str], ViewStamp]
"""Function that makes the stamp of a view.

Its arguments are the messages that a model got; the sizes of the last ones, which the view does not have, or None if
they were not counted; and the id of the question of the turn in progress, "" if the newest turn is over.
"""


def break_between(before: ViewStamp | None, after: ViewStamp | None) -> str:
    """Return the cause for which a view could not reuse the prompt cache of an earlier one; "" without a cause.

    Of several causes, it is the one that changes the earliest part of the view. A summary and a note precede the turns.
    """
    if before is None or after is None:
        return ""
    old = before.marks
    new = after.marks
    has_moved = old.short_through != new.short_through  # perhaps over turns without a long text
    prompts = {before.beside.digest, after.beside.digest}
    has_new_stubs = _has_new_stubs(before, after)
    causes = {
        PROMPT_CHANGED: len(prompts) == 2 and "" not in prompts,
        SUMMARY_MADE: before.summary != after.summary != "",
        SUMMARY_SET_ASIDE: before.summary != after.summary,
        ANOTHER_POLICY: before.policy != after.policy,
        TURNS_LEFT_OUT: _has_left_turns_out(before, after),
        "earlier turns shown again": 0 < new.start < old.start,
        STEPS_LEFT_OUT: after.left_out_steps > before.left_out_steps,
        TEXTS_SHORTENED: has_moved and after.shortened > before.shortened,
        TURN_ENDED: has_new_stubs and after.parts.turn > before.parts.turn,
        RESULTS_BECAME_STUBS: has_new_stubs,
    }
    return next((cause for cause, is_true in causes.items() if is_true), "")


def has_new_summary(before: ViewStamp | None, after: ViewStamp | None) -> bool:
    """Return True if a view shows another summary than the previous view; False if either view is unknown."""
    return bool(before and after and after.summary and after.summary != before.summary)


def _has_new_stubs(before: ViewStamp, after: ViewStamp) -> bool:
    """Return True if results became stubs. A mark that moved back, as after a rewind, is not enough."""
    old = before.marks.stubs_through
    new = after.marks.stubs_through
    if new < old and after.parts.turn > before.parts.turn:
        return True
    return new > old or after.parts.stub > before.parts.stub


def _has_left_turns_out(before: ViewStamp, after: ViewStamp) -> bool:
    """Return True if a view begins later than the previous one, which may have been loaded from an empty log."""
    if before.marks.start == 0:
        return after.marks.start > before.messages
    return before.marks.start < after.marks.start


class ViewReason(BaseModel):
    """The reason why a view shows a range of the log as it does.

    Attributes:
        first: First ordinal of the range.
        last: Last ordinal of the range.
        state: "whole"; "stub"; "shortened"; "placeholder"; "summarised"; "left_out": before the beginning of the view;
            "hidden": left out under ``view="conversation"``; "orphan": a result that no call matches; "late": a result
            shown as text; "rewound".
        summary: Version of the summary that covers the range, else 0.
        limit: The limit that leaves the range out, "max_tokens" or "max_turns", else "".
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    first: int
    last: int
    state: Literal[
        "whole",
        "stub",
        "shortened",
        "placeholder",
        "summarised",
        "left_out",
        "hidden",
        "orphan",
        "late",
        "rewound",
    ]
    summary: int = 0
    limit: str = ""


class TurnOutline(Value):
    """A turn without its messages.

    Attributes:
        turn_id: Id of its first message.
        number: Its position among the turns that are not rewound; 0 for messages before the first question.
        first: Ordinal of its first message.
        last: Ordinal of its last message.
        created_at: When its first message was appended (UTC).
        text: The beginning of its first message, in one line.
        tokens: Size of its messages in full.
        tokens_before: Size of the whole log before `answer`, in full; without an answer, up to the turn's end.
        is_finished: As in `Turn`.
        over: As in `Turn`.
        answer: Ordinal of the last reply of a model that has a stamp, or else of the last reply; None without a reply.
            An AI message that a tool added to its result is not a reply.
        stamp: The stamp of the view that this reply answers.
    """

    turn_id: str
    number: int
    first: int
    last: int
    created_at: datetime
    text: str = ""
    tokens: int = 0
    tokens_before: int = 0
    is_finished: bool = True
    over: OverBy = "superseded"
    answer: int | None = None
    stamp: ViewStamp | None = None


def changed_options(policy: HistoryPolicy) -> dict[str, Any]:
    """Return the options of a policy that change views and differ from the defaults, as JSON values.

    >>> changed_options(HistoryPolicy(max_tokens=500, never_stub={"b", "a"}, compact="before_load"))
    {'max_tokens': 500, 'never_stub': ['a', 'b']}
    """
    return {name: value for name, value in policy.changed.items() if name not in _NOT_IN_VIEWS}


def size_in(text: str) -> tuple[int, int]:
    """Return the tokens and the budget of a stored stamp, 0 without a limit; zeros if the stamp is damaged.

    >>> size_in('{"tokens": 99, "policy": {"max_tokens": 500}}'), size_in('{"tokens": 7}'), size_in("{")
    ((99, 500), (7, 32000), (0, 0))
    >>> size_in('{"tokens": -1}'), size_in('{"tokens": 1e999}'), size_in(f'{{"tokens": {10**30}}}')
    ((0, 0), (0, 0), (0, 0))
    """
    with suppress(ValueError, TypeError, AttributeError, OverflowError):
        stamp = json.loads(text)
        budget = stamp.get("policy", {}).get("max_tokens", _DEFAULT_BUDGET)
        size = int(stamp.get("tokens", 0)), int(budget or 0)
        if all(0 <= number <= 2**53 for number in size):  # else the log could not be read
            return size
    return 0, 0


def write_stamp(stamp: ViewStamp) -> str:
    """Return the text of a stamp that an entry stores."""
    return stamp.model_dump_json(exclude_defaults=True, exclude={"conversation_id"}, warnings=False)


def read_stamp(text: str, conversation_id: str) -> ViewStamp:
    """Parse a stamp that `write_stamp` wrote.

    >>> stamp = ViewStamp(conversation_id="c", entry=7, tokens=99, digest="d1")
    >>> write_stamp(stamp), read_stamp(write_stamp(stamp), "c") == stamp
    ('{"entry":7,"tokens":99,"digest":"d1"}', True)

    Raises:
        ValueError: The text is damaged or too long.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(
            f"its stamp is damaged: it is longer than {_MAX_CHARACTERS:,} characters (too "
            "many tools?)"
        )
    try:
        stamp = ViewStamp.model_validate_json(
            json.dumps({**json.loads(text), "conversation_id": conversation_id})
        )
    except ValidationError as error:
        raise ValueError(f"its stamp is damaged: {first_problem(error)}") from error
    except TypeError as error:
        raise ValueError(f"its stamp is damaged: {error}") from error
    if min(stamp.ordinal, stamp.messages, stamp.thinking_through) < 0:
        raise ValueError("its stamp is damaged: it has a negative number")
    return stamp


def check_stamp(stamp: object) -> ViewStamp:
    """Return a caller's stamp; raise an InvalidInputError if it is not a stamp, or cannot be stored."""
    if not isinstance(stamp, ViewStamp):
        raise InvalidInputError(
            f"stamp must be the stamp of a view (history.stamp), not {type(stamp).__name__}"
        )
    try:
        return read_stamp(write_stamp(stamp), stamp.conversation_id)
    except ValueError as error:
        # too many tools in never_stub, text that UTF-8 cannot encode, or not validated
        raise InvalidInputError(f"the stamp cannot be stored: {error}") from error


def storable_stamp(stamp: ViewStamp) -> ViewStamp | None:
    """Return a stamp; None if no entry can hold it, because its policy names very many tools."""
    if not stamp.policy:
        return stamp
    try:
        return check_stamp(stamp)
    except InvalidInputError:
        return None


def check_own(stamp: ViewStamp | None, conversation: str) -> None:
    """Raise an InvalidInputError if a stamp names another conversation than this one."""
    if stamp and stamp.conversation_id not in ("", conversation):
        raise InvalidInputError(
            "stamp belongs to a view of another conversation; pass history.stamp of a view of this "
            "one"
        )


def check_known(stamp: ViewStamp | None, entries: int) -> None:
    """Raise an InvalidInputError if a stamp names an entry that the log does not have."""
    if stamp and not 0 <= stamp.entry <= entries:
        raise InvalidInputError(
            "stamp belongs to a view of messages that this conversation does not have yet; pass "
            "history.stamp of the view that the model was shown, or omit stamp"
        )

"""The model calls of a log: the causes of broken prompt caches, the tool calls, and the calls near one message.

A call is represented by the AI message that answers it. The message's stamp says what the model got.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.messages.provenance import kind_of, model_of
from convstore.messages.tool_calls import OpenSlots, calls_of, slots_of
from convstore.types import PastView, StoredMessage
from convstore.values.plain import equal_at_start
from convstore.values.stamps import (
    ANOTHER_MODEL,
    ANOTHER_POLICY,
    MESSAGES_CHANGED,
    SUMMARY_SET_ASIDE,
    TURN_ENDED,
    TURNS_LEFT_OUT,
    WHOLE_CACHE_LOST,
    ViewStamp,
    break_between,
    has_new_summary,
)

AROUND = 120
"""Number of messages around the selected one that are searched for calls; half of them follow it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call: the ordinals of the message with the call and of the result; 0 if the result is not loaded."""

    caller: int
    result: int = 0
    has_failed: bool = False


class AnsweredCall(NamedTuple):
    """A call that a result answers: the ordinal of the message with the call, its id, and the name of its tool."""

    caller: int
    id: str
    tool: str


class ResultPairing:
    """Finds the call that each result of a log answers, one message after the other.

    As in the log, a result answers a call of its own turn: runs at the same time may use equal call ids.
    """

    def __init__(self) -> None:
        self._open = defaultdict[str, OpenSlots](OpenSlots)
        self._callers: dict[str, int] = {}

    def add(self, stored: StoredMessage) -> AnsweredCall | None:
        """Add the next message; return the call that it answers, None for other messages and unknown calls."""
        open_slots = self._open[stored.turn_id]
        if isinstance(stored.message, ToolMessage):
            slot = open_slots.answer(stored.message, stored.ordinal)
            if slot is None:
                return None
            return AnsweredCall(self._callers[slot.own_id], slot.call.id, slot.call.tool)
        slots = slots_of(stored.message)
        open_slots.add(slots)
        self._callers |= {slot.own_id: stored.ordinal for slot in slots}
        return None


UNEXPECTED = frozenset({ANOTHER_POLICY, SUMMARY_SET_ASIDE, *WHOLE_CACHE_LOST})
"""Causes of a broken cache that come from the application, not from the rules of views."""


@dataclass(slots=True)
class ModelCall:
    """A model call, compared with an earlier call.

    Attributes:
        ordinal: The ordinal of its answer; for the next call the one after the messages that were read.
        message_id: The id of its answer.
        tools: The ids of its tool calls.
        stamp: The stamp of the view that the model got; None if no stamp was stored.
        is_rewound: True if its answer was rewound or replaced later.
        model: The model that answered; "" if it is not named.
        cut_by: The cause that broke its prompt cache, in a word or two; "" if the cache did not break.
        has_summary: True if it is the first call with its summary.
        failed: Number of tool results that report a failure.
        before: The call with which it is compared.
    """

    ordinal: int
    message_id: str = ""
    tools: tuple[str, ...] = ()
    stamp: ViewStamp | None = None
    is_rewound: bool = False
    model: str = ""
    cut_by: str = ""
    has_summary: bool = False
    failed: int = 0
    before: ModelCall | None = None

    @classmethod
    def of(cls, stored: StoredMessage) -> ModelCall:
        """Return the call that a message answers."""
        message = stored.message
        tools = tuple(str(tool["id"]) for tool in getattr(message, "tool_calls", ()))
        model = model_of(message) if message.type == "ai" else ""
        return cls(stored.ordinal, str(message.id), tools, stored.stamp, stored.is_rewound, model)

    @property
    def tokens(self) -> int | None:
        """The tokens that the model got; None without a stamp."""
        return self.stamp.tokens if self.stamp else None

    @property
    def is_break(self) -> bool:
        """True if its prompt cache broke, and not because a turn ended."""
        return self.cut_by not in ("", TURN_ENDED)

    def compare(self, earlier: Sequence[ModelCall]) -> None:
        """Compare the stamps of this call and of an earlier one; `compare_views` is more exact after a rewind.

        The earlier call is the last one of the same model, as each model has a prompt cache of its own, else the last
        one of any model. Rewinds and variants that came later do not change the comparison.
        """
        same = (call for call in reversed(earlier) if self.model in ("", call.model))
        before = _last_stamped(same, self.stamp) or _last_stamped(reversed(earlier), self.stamp)
        if before is None:
            return
        self.before = before
        self.has_summary = has_new_summary(before.stamp, self.stamp)
        is_known = before.stamp is not None and self.stamp is not None
        if is_known and len({before.model, self.model} - {""}) > 1:
            self.cut_by = ANOTHER_MODEL
        else:
            self.cut_by = break_between(before.stamp, self.stamp)

    async def compare_views(self, chat: Conversation) -> None:
        """Compare its view with that of the call before, if a rewind or another variant may lie between them.

        Stamps do not show what was rewound. The result of `compare` stays if the views cannot be built.
        """
        before = self.before
        if not (before and before.is_rewound and before.stamp and self.stamp):
            return
        if self.is_rewound and self.stamp.marks.start <= before.stamp.ordinal:
            return
        with suppress(InvalidInputError):  # a policy of another version
            earlier = await chat.view_at(before.stamp)
            later = await chat.view_at(self.stamp)
            self.cut_by = cached_prefix(earlier, later, self.cut_by).cause


def _last_stamped(earlier: Iterable[ModelCall], stamp: ViewStamp | None) -> ModelCall | None:
    """Return the first of some calls. For a call with a stamp, one without a stamp is returned only as a fallback."""
    last: ModelCall | None = None
    for call in earlier:
        if call.stamp or stamp is None:
            return call
        last = last or call
    return last


@dataclass(slots=True)
class CallFold:
    """A fold over the messages of a log, in order, that collects its model calls.

    Attributes:
        calls: The calls.
        last: The ordinal of the last message.
    """

    calls: list[ModelCall] = field(default_factory=list)
    last: int = 0
    _compared: int = 0
    _by_ordinal: dict[int, ModelCall] = field(default_factory=dict)
    _results: ResultPairing = field(default_factory=ResultPairing)

    def add(self, stored: StoredMessage) -> None:
        """Add the next message."""
        self.last = stored.ordinal
        if stored.message.type == "ai":
            call = ModelCall.of(stored)
            call.compare(self.calls)
            self.calls.append(call)
            self._by_ordinal[stored.ordinal] = call
        answered = self._results.add(stored)
        if answered is not None and stored.is_failed:
            self._by_ordinal[answered.caller].failed += 1

    async def compare_views(self, chat: Conversation) -> None:
        """Compare the views of the new calls that follow a rewind."""
        for call in self.calls[self._compared :]:
            await call.compare_views(chat)
        self._compared = len(self.calls)


class Calls:
    """The model calls near a selected message, in order.

    Args:
        near: The messages around it.
        moment: The selected message; None for the end of the log, at which the next call would be made.

    Attributes:
        all: The calls.
        next_stamp: Stamp of the view that the next call would get; None if that view is not loaded.
    """

    def __init__(self, near: Sequence[StoredMessage], moment: StoredMessage | None) -> None:
        self.near = near
        self.moment = moment
        self.next_stamp: ViewStamp | None = None
        self._fold = CallFold()
        for stored in near:
            self._fold.add(stored)
        self.all = self._fold.calls

    async def compare_views(self, chat: Conversation) -> None:
        """Compare the views of the calls that follow a rewind, which stamps do not show."""
        await self._fold.compare_views(chat)

    @property
    def current(self) -> ModelCall:
        """The call that the selected message answers or that would follow it; at the end of the log the next call."""
        moment = self.moment
        if moment is None:
            return self.upcoming
        found = next((call for call in self.all if call.ordinal == moment.ordinal), None)
        return found or self._compared(ModelCall.of(moment))

    @property
    def upcoming(self) -> ModelCall:
        """The next call."""
        return self._compared(ModelCall(self._fold.last + 1, stamp=self.next_stamp))

    def _compared(self, call: ModelCall) -> ModelCall:
        """Compare a call that has no answer among the messages with the calls before it; return it."""
        call.compare([other for other in self.all if other.ordinal < call.ordinal])
        return call

    @property
    def has_beginning(self) -> bool:
        """True if the messages include the beginning of the log."""
        return not self.near or self.near[0].ordinal == 1

    @property
    def has_end(self) -> bool:
        """True if the messages include the end of the log."""
        return self.moment is None or len(self.near) < AROUND

    @property
    def previous(self) -> ModelCall | None:
        """The call before the selected message."""
        moment = self.moment
        earlier = [call for call in self.all if moment is None or call.ordinal < moment.ordinal]
        return earlier[-1] if earlier else None

    @property
    def next(self) -> ModelCall | None:
        """The call after the selected message."""
        return next(
            (call for call in self.all if self.moment and call.ordinal > self.moment.ordinal), None
        )

    @property
    def is_answered(self) -> bool:
        """True if the newest message is an answer, so that the next call begins another turn."""
        newest = self._newest
        return newest is not None and is_answer(newest.message)

    def has_ended(self, ordinal: int) -> bool:
        """Return True if the turn of an ordinal had ended before the selected call, even if it was rewound later."""
        if self.moment is None and self.is_answered:
            return True
        turns = {stored.ordinal: stored.turn_id for stored in self.near}
        return turns.get(ordinal, "") != self._current_turn

    @property
    def _current_turn(self) -> str:
        """The id of the selected call's turn."""
        last = self.moment or self._newest
        return last.turn_id if last else ""

    @property
    def _newest(self) -> StoredMessage | None:
        """The newest message that is not rewound."""
        return next((stored for stored in reversed(self.near) if not stored.is_rewound), None)

    @property
    def last_cut(self) -> tuple[int, str] | None:
        """The ordinal of the last earlier call that broke a prompt cache, and the cause; None without such a call."""
        earlier = [cut for cut in self.cuts() if cut[0] < self.current.ordinal]
        return earlier[-1] if earlier else None

    def cuts(self) -> list[tuple[int, str]]:
        """Return the ordinals of the calls that broke a prompt cache, each with its cause."""
        return [(call.ordinal, call.cut_by) for call in self.all if call.cut_by]

    def tools(self) -> dict[tuple[int, str], ToolCall]:
        """Return the tool calls by the ordinal of either message and the call id; call ids alone may repeat."""
        found: dict[tuple[int, str], ToolCall] = {}
        results = ResultPairing()
        for stored in self.near:
            ordinal = stored.ordinal
            for own in calls_of(stored.message):
                found[ordinal, own.id] = ToolCall(ordinal)
            if answered := results.add(stored):
                call = ToolCall(answered.caller, ordinal, stored.is_failed)
                found[answered.caller, answered.id] = found[ordinal, answered.id] = call
        return found


class CachedPrefix(NamedTuple):
    """The beginning of a view that a prompt cache can reuse from the call before.

    Attributes:
        messages: Number of equal messages with which both views begin.
        cause: The cause that broke the cache, in a few words; "" if it did not break.
    """

    messages: int
    cause: str


def cached_prefix(before: PastView, after: PastView, cut_by: str) -> CachedPrefix:
    """Return the beginning of a view that the cache has from the call before, and the cause that broke the cache.

    `cut_by` is the cause according to the stamps. The views are more exact: they decide if both can be built as they
    were. The cache did not break if everything after the common beginning is new, as after a rewind.
    """
    same = same_beginning(before, after)
    is_known = "differs" not in (before.match, after.match)
    if cut_by in WHOLE_CACHE_LOST:
        return CachedPrefix(0, cut_by)
    if is_known and same == len(before.messages):
        return CachedPrefix(same, "")
    was_rewound = cut_by == TURNS_LEFT_OUT and not after.report.left_out_turns
    if not is_known or (cut_by and not was_rewound):
        return CachedPrefix(same, cut_by)
    return CachedPrefix(same, "" if _is_new_from(same, before, after) else MESSAGES_CHANGED)


def _is_new_from(index: int, before: PastView, after: PastView) -> bool:
    """Return True if all messages from an index on are new, compared with the view before."""
    known = {message.id for message in before.messages}
    rest = after.messages[index:]
    return all(message.id not in known and not kind_of(message) for message in rest)


def same_beginning(before: PastView, after: PastView) -> int:
    """Return the number of equal messages at the beginning of both views, which a prompt cache can reuse."""
    return equal_at_start(map(form_of, before.messages), map(form_of, after.messages))


def form_of(message: BaseMessage) -> tuple[str, str | None, str]:
    """Return a key that is equal if type, id, content and calls are; comparing whole messages costs 20 times more."""
    calls = message.tool_calls if isinstance(message, AIMessage) else ""
    return message.type, message.id, f"{message.content}{calls}"


def is_answer(message: BaseMessage) -> bool:
    """Return True for a model's message without calls."""
    return message.type == "ai" and not calls_of(message)

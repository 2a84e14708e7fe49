"""The model calls of a log: what broke their prompt caches, their calls of tools, and those around a moment.

A call is an AI message, which answers it. Its stamp says what the model got.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.messages.provenance import kind_of, model_of
from convstore.messages.tool_calls import calls_of, fill_slots
from convstore.types import PastView, StoredMessage
from convstore.values.plain import equal_at_start
from convstore.values.stamps import (
    ANOTHER_MODEL,
    ANOTHER_POLICY,
    MESSAGES_CHANGED,
    NOTHING_HELD,
    SUMMARY_SET_ASIDE,
    TURN_ENDED,
    TURNS_LEFT_OUT,
    ViewStamp,
    break_between,
    has_new_summary,
)

AROUND = 120
"""Messages among which calls are looked for, half of them after the moment."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: the ordinals of the message that makes it and of its result, 0 if the result is not near."""

    caller: int
    result: int = 0
    has_failed: bool = False


UNEXPECTED = frozenset({ANOTHER_POLICY, SUMMARY_SET_ASIDE, *NOTHING_HELD})
"""Causes of a lost cache that no rule of views brings about, but the application."""


@dataclass(slots=True)
class ModelCall:
    """A call of the model, and what happened to it.

    Attributes:
        ordinal: The ordinal of its answer; for the next call the one after the messages that were read.
        message_id: The id of its answer.
        tools: The ids of its calls of tools.
        stamp: The stamp of what the model got; None if it was not stored.
        is_rewound: True if its answer was rewound or replaced since.
        model: The model that answered; "" if it is not named.
        cut_by: What broke its prompt cache, in a word or two; "" if nothing did.
        has_summary: True if it is the first with its summary.
        failed: Number of results that report a failure.
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
        """Compare it with one of the calls before it, which are in order, by their stamps; the views know more.

        It is the last one in time of the same model, as each model has a prompt cache of its own, or the last one of
        any. Later rewinds and other answers do not change it, as they did not exist yet.
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
        """Compare its view with that of the call before, if a rewind or another answer may lie between them.

        The stamps know less of it. They decide if the views cannot be built.
        """
        before = self.before
        if not (before and before.is_rewound and before.stamp and self.stamp):
            return
        if self.is_rewound and self.stamp.marks.start <= before.stamp.ordinal:
            return
        with suppress(InvalidInputError):  # a policy of another version
            earlier = await chat.view_at(before.stamp)
            later = await chat.view_at(self.stamp)
            self.cut_by = kept_between(earlier, later, self.cut_by).cause


def _last_stamped(earlier: Iterable[ModelCall], stamp: ViewStamp | None) -> ModelCall | None:
    """Return the first of some calls; before a call with a stamp, those without one count if there is no other."""
    last: ModelCall | None = None
    for call in earlier:
        if call.stamp or stamp is None:
            return call
        last = last or call
    return last


@dataclass(slots=True)
class CallFold:
    """A fold over the messages of a log, in order, that notes its calls.

    Attributes:
        calls: The calls.
        last: The ordinal of the last message.
    """

    calls: list[ModelCall] = field(default_factory=list)
    last: int = 0
    _compared: int = 0
    _callers: dict[str, ModelCall] = field(default_factory=dict)

    def add(self, stored: StoredMessage) -> None:
        """Add the next message."""
        self.last = stored.ordinal
        if stored.message.type == "ai":
            call = ModelCall.of(stored)
            call.compare(self.calls)
            self.calls.append(call)
            self._callers |= dict.fromkeys(call.tools, call)
        elif stored.is_failed:
            caller = self._callers.get(getattr(stored.message, "tool_call_id", ""))
            if caller:
                caller.failed += 1

    async def compare_views(self, chat: Conversation) -> None:
        """Compare the views of new calls with a rewind before them."""
        for call in self.calls[self._compared :]:
            await call.compare_views(chat)
        self._compared = len(self.calls)


class Calls:
    """The calls around a moment, in order.

    Args:
        near: The messages around it.
        moment: The message that the page is about, None for now.

    Attributes:
        all: The calls.
        next_stamp: Stamp of the view that the next call would get; None if that is not loaded.
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
        """Compare the views of calls with a rewind before them, of which stamps know less."""
        await self._fold.compare_views(chat)

    @property
    def current(self) -> ModelCall:
        """The call of the moment: the one that its message answers, one after any other message, or the next."""
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
        """Return a call that has no answer among the messages, compared with those before it."""
        call.compare([other for other in self.all if other.ordinal < call.ordinal])
        return call

    @property
    def has_beginning(self) -> bool:
        """True if the beginning of the log is near."""
        return not self.near or self.near[0].ordinal == 1

    @property
    def has_end(self) -> bool:
        """True if the end of the log is near."""
        return self.moment is None or len(self.near) < AROUND

    @property
    def previous(self) -> ModelCall | None:
        """The call before the moment."""
        moment = self.moment
        earlier = [call for call in self.all if moment is None or call.ordinal < moment.ordinal]
        return earlier[-1] if earlier else None

    @property
    def next(self) -> ModelCall | None:
        """The call after the moment."""
        return next(
            (call for call in self.all if self.moment and call.ordinal > self.moment.ordinal), None
        )

    @property
    def is_answered(self) -> bool:
        """True if the newest message is an answer, after which the next call begins another turn."""
        newest = self._newest
        return newest is not None and is_answer(newest.message)

    def has_ended(self, ordinal: int) -> bool:
        """Return True if the turn of an ordinal had ended before the call of the page, rewound since or not."""
        if self.moment is None and self.is_answered:
            return True
        turns = {stored.ordinal: stored.turn_id for stored in self.near}
        return turns.get(ordinal, "") != self._current_turn

    @property
    def _current_turn(self) -> str:
        """The turn of the call of the page."""
        last = self.moment or self._newest
        return last.turn_id if last else ""

    @property
    def _newest(self) -> StoredMessage | None:
        """The newest message that is not rewound."""
        return next((stored for stored in reversed(self.near) if not stored.is_rewound), None)

    @property
    def last_cut(self) -> tuple[int, str] | None:
        """The last call before the moment that broke a prompt cache, and what did it; None if none did."""
        earlier = [cut for cut in self.cuts() if cut[0] < self.current.ordinal]
        return earlier[-1] if earlier else None

    def cuts(self) -> list[tuple[int, str]]:
        """Return the calls near the moment that broke a prompt cache, by their ordinals, and what did it."""
        return [(call.ordinal, call.cut_by) for call in self.all if call.cut_by]

    def tools(self) -> dict[tuple[int, str], ToolCall]:
        """Return the calls of tools, by the ordinal of either message and the id of the call; ids may be used again."""
        found = dict[tuple[int, str], ToolCall]()
        slots, _ = fill_slots([stored.message for stored in self.near])
        for at, own in slots.items():
            caller = self.near[at].ordinal
            for slot in own:
                found[caller, slot.call.id] = ToolCall(caller)
                if slot.result is not None:
                    result = self.near[slot.result]
                    call = ToolCall(caller, result.ordinal, result.is_failed)
                    found[caller, slot.call.id] = found[result.ordinal, slot.call.id] = call
        return found


class Kept(NamedTuple):
    """How much of a view a prompt cache can have from the call before.

    Attributes:
        messages: Number of equal messages with which both views begin.
        cause: What broke the cache, in a few words; "" if it held.
    """

    messages: int
    cause: str


def kept_between(before: PastView, after: PastView, cut_by: str) -> Kept:
    """Return how much of the view of a call the cache has from the one before, and what broke it.

    `cut_by` is what the stamps name, which know less than the views: the views decide if they can be built as they
    were. The cache held if all that follows the common beginning is new, as after a rewind.
    """
    same = same_beginning(before, after)
    is_known = "differs" not in (before.match, after.match)
    if cut_by in NOTHING_HELD:
        return Kept(0, cut_by)
    if is_known and same == len(before.messages):
        return Kept(same, "")
    was_rewound = cut_by == TURNS_LEFT_OUT and not after.report.left_out_turns
    if not is_known or (cut_by and not was_rewound):
        return Kept(same, cut_by)
    return Kept(same, "" if _is_new_from(same, before, after) else MESSAGES_CHANGED)


def _is_new_from(index: int, before: PastView, after: PastView) -> bool:
    """Return True if the messages of a view from an index on are none of the view before."""
    known = {message.id for message in before.messages}
    rest = after.messages[index:]
    return all(message.id not in known and not kind_of(message) for message in rest)


def same_beginning(before: PastView, after: PastView) -> int:
    """Return the number of equal messages with which both views begin, which a prompt cache can reuse."""
    return equal_at_start(map(form_of, before.messages), map(form_of, after.messages))


def form_of(message: BaseMessage) -> tuple[str, str | None, str]:
    """Return what is equal for messages that two views show alike; comparing whole messages costs twenty times more."""
    calls = message.tool_calls if isinstance(message, AIMessage) else ""
    return message.type, message.id, f"{message.content}{calls}"


def is_answer(message: BaseMessage) -> bool:
    """Return True for a model's message without calls."""
    return message.type == "ai" and not calls_of(message)

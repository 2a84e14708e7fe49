"""The model calls around a moment: those before and after it, what broke their prompt caches, and their calls of tools.

A call is an AI message, which answers it. Its stamp says what the model got.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.tool_calls import calls_of
from convstore.types import PastView, StoredMessage
from convstore.values.stamps import PROMPT_CHANGED, ViewStamp, break_between

AROUND = 120
"""Messages among which calls are looked for, half of them after the moment."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: the ordinals of the message that makes it and of its result, 0 if the result is not near."""

    caller: int
    result: int = 0
    has_failed: bool = False


UNEXPECTED = frozenset({"another policy", "summary set aside", PROMPT_CHANGED})
"""Causes of a lost cache that no rule of views brings about, but the application."""


class Calls:
    """The calls around a moment, in order.

    Args:
        near: The messages around it.
        moment: The message that the page is about, None for now.

    Attributes:
        next_stamp: Stamp of the view that the next call would get; None if that is not loaded.
    """

    def __init__(self, near: Sequence[StoredMessage], moment: StoredMessage | None) -> None:
        self.near = near
        self.moment = moment
        self.all = [call for call in near if call.message.type == "ai"]
        self.next_stamp: ViewStamp | None = None

    def stamp_of(self, call: StoredMessage | None) -> ViewStamp | None:
        """Return the stamp of a call; None stands for the next one."""
        return call.stamp if call else self.next_stamp

    @property
    def has_end(self) -> bool:
        """True if the end of the log is near."""
        return self.moment is None or len(self.near) < AROUND

    @property
    def previous(self) -> StoredMessage | None:
        """The call before the moment."""
        moment = self.moment
        return next(
            (
                call
                for call in reversed(self.all)
                if moment is None or call.ordinal < moment.ordinal
            ),
            None,
        )

    @property
    def next(self) -> StoredMessage | None:
        """The call after the moment."""
        return next(
            (call for call in self.all if self.moment and call.ordinal > self.moment.ordinal), None
        )

    @property
    def end(self) -> int:
        """The ordinal after the messages near the moment."""
        return self.near[-1].ordinal + 1 if self.near else 0

    def before(self, call: StoredMessage | None) -> StoredMessage | None:
        """Return the call before one, of which a prompt cache may have the beginning; None stands for the next.

        Of the last call and the last one that is not rewound, it is the one with which the prompt begins whole. Calls
        without a stamp count only if there is none with one.
        """
        before = self._all_before(call)
        stamped = list[StoredMessage]()
        if call is None or call.stamp:
            stamped = [message for message in before if message.stamp]
        stamp = self.stamp_of(call)
        if stamp and stamped and not break_between(stamped[0].stamp, stamp):
            return stamped[0]
        return _first_active(stamped or before)

    def _all_before(self, call: StoredMessage | None) -> list[StoredMessage]:
        """Return the calls before one, newest first."""
        end = self.end if call is None else call.ordinal
        return [message for message in reversed(self.all) if message.ordinal < end]

    def cut_by(self, call: StoredMessage | None) -> str:
        """Return what broke the prompt cache of a call, in a word or two; "" if nothing did.

        None stands for the next call.
        """
        before = self.before(call)
        if not before:
            return ""
        return break_between(before.stamp, self.stamp_of(call))

    @property
    def is_answered(self) -> bool:
        """True if the newest message is an answer, after which the next call begins another turn."""
        newest = next((stored for stored in reversed(self.near) if not stored.is_rewound), None)
        if newest is None or newest.message.type != "ai":
            return False
        return not calls_of(newest.message)

    def has_ended(self, ordinal: int) -> bool:
        """Return True if the turn of an ordinal had ended before the call of the page."""
        if self.moment is None and self.is_answered:
            return True
        end = self.moment.ordinal if self.moment else self.end
        between = (
            stored
            for stored in self.near
            if ordinal < stored.ordinal < end and not stored.is_rewound
        )
        return any(stored.turn_id == stored.message.id for stored in between)

    def cuts(self) -> list[tuple[int, str]]:
        """Return the calls near the moment that broke a prompt cache, by their ordinals, and what did it."""
        return [(call.ordinal, cause) for call in self.all if (cause := self.cut_by(call))]

    def tools(self) -> dict[tuple[int, str], ToolCall]:
        """Return the calls of tools, by the ordinal of either message and the id of the call; ids may be used again."""
        found = dict[tuple[int, str], ToolCall]()
        waiting = dict[str, int]()
        for stored in self.near:
            message = stored.message
            ordinal = stored.ordinal
            if isinstance(message, AIMessage):
                waiting |= {str(call["id"]): ordinal for call in message.tool_calls}
                found |= {
                    (ordinal, str(call["id"])): ToolCall(ordinal) for call in message.tool_calls
                }
            id_ = getattr(message, "tool_call_id", None)
            if caller := waiting.get(id_ or ""):
                found[caller, str(id_)] = found[ordinal, str(id_)] = ToolCall(
                    caller, ordinal, stored.is_failed
                )
        return found


def same_beginning(before: PastView, after: PastView) -> int:
    """Return the number of equal messages with which both views begin, which a prompt cache can reuse."""
    return alike(map(form_of, before.messages), map(form_of, after.messages))


def alike(items: Iterable[object], others: Iterable[object]) -> int:
    """Return the number of equal items with which both begin."""
    pairs = zip(items, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def form_of(message: BaseMessage) -> tuple[str, str | None, str]:
    """Return what is equal for messages that two views show alike; comparing whole messages costs twenty times more."""
    calls = message.tool_calls if isinstance(message, AIMessage) else ""
    return message.type, message.id, f"{message.content}{calls}"


def is_answer(message: BaseMessage) -> bool:
    """Return True for a model's message without calls."""
    return message.type == "ai" and not calls_of(message)


def _first_active(messages: Iterable[StoredMessage]) -> StoredMessage | None:
    """Return the first message that is not rewound."""
    return next((message for message in messages if not message.is_rewound), None)

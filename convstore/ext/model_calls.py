"""The model calls around a moment: those before and after it, what broke their prompt caches, and their calls of tools.

A call is an AI message, which answers it. Its stamp says what the model got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeVar

from langchain_core.messages import AIMessage, BaseMessage

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.messages.provenance import kind_of, model_of
from convstore.messages.tool_calls import calls_of
from convstore.types import PastView, StoredMessage
from convstore.values.stamps import (
    ANOTHER_MODEL,
    ANOTHER_POLICY,
    MESSAGES_CHANGED,
    NOTHING_HELD,
    TURNS_LEFT_OUT,
    ViewStamp,
    break_between,
)

AROUND = 120
"""Messages among which calls are looked for, half of them after the moment."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: the ordinals of the message that makes it and of its result, 0 if the result is not near."""

    caller: int
    result: int = 0
    has_failed: bool = False


UNEXPECTED = frozenset({ANOTHER_POLICY, "summary set aside", *NOTHING_HELD})
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
        self._causes: dict[int, str] = {}

    def stamp_of(self, call: StoredMessage | None) -> ViewStamp | None:
        """Return the stamp of a call; None stands for the next one."""
        return call.stamp if call else self.next_stamp

    @property
    def has_beginning(self) -> bool:
        """True if the beginning of the log is near."""
        return not self.near or self.near[0].ordinal == 1

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
        """Return the call whose prompt cache one can use, see `call_before`; None stands for the next call."""
        end = self.end if call is None else call.ordinal
        earlier = [message for message in self.all if message.ordinal < end]
        model = model_of(call.message) if call else ""
        return call_before(
            earlier,
            self.stamp_of(call),
            is_same_model=lambda other: model in ("", model_of(other.message)),
        )

    def cut_by(self, call: StoredMessage | None) -> str:
        """Return what broke the prompt cache of a call by the stamps, in a word or two; "" if nothing did.

        None stands for the next call. `kept_between` compares the views, too.
        """
        if call and call.ordinal in self._causes:
            return self._causes[call.ordinal]
        before = self.before(call)
        if not before:
            return ""
        models = [model_of(each.message) for each in (before, call) if each]
        return cause_by_stamps(before.stamp, self.stamp_of(call), models)

    async def compare_views(self, chat: Conversation) -> None:
        """Compare the views of calls with a rewind before them, of which stamps know less."""
        for call in self.all:
            before = self.before(call)
            if before and may_follow_rewind(before, call):
                cut_by = self.cut_by(call)
                self._causes[call.ordinal] = await cause_by_views(chat, before, call, cut_by)

    @property
    def is_answered(self) -> bool:
        """True if the newest message is an answer, after which the next call begins another turn."""
        newest = next((stored for stored in reversed(self.near) if not stored.is_rewound), None)
        if newest is None or newest.message.type != "ai":
            return False
        return not calls_of(newest.message)

    def has_ended(self, ordinal: int) -> bool:
        """Return True if the turn of an ordinal had ended before the call of the page, rewound since or not."""
        if self.moment is None and self.is_answered:
            return True
        turns = {stored.ordinal: stored.turn_id for stored in self.near}
        return turns.get(ordinal, "") != self._current_turn

    @property
    def _current_turn(self) -> str:
        """The turn of the call of the page."""
        if self.moment:
            return self.moment.turn_id
        active = (stored for stored in reversed(self.near) if not stored.is_rewound)
        newest = next(active, None)
        return newest.turn_id if newest else ""

    @property
    def last_cut(self) -> tuple[int, str] | None:
        """The last call before the moment that broke a prompt cache, and what did it; None if none did."""
        end = self.moment.ordinal if self.moment else self.end
        earlier = [cut for cut in self.cuts() if cut[0] < end]
        return earlier[-1] if earlier else None

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


class Kept(NamedTuple):
    """How much of a view a prompt cache can have from the call before.

    Attributes:
        messages: Number of equal messages with which both views begin.
        cause: What broke the cache, in a few words; "" if it held.
    """

    messages: int
    cause: str


class HasStamp(Protocol):
    """A call with or without a stamp."""

    @property
    def stamp(self) -> ViewStamp | None:
        """What the model got."""
        ...

    @property
    def is_rewound(self) -> bool:
        """True if its answer was rewound or replaced since."""
        ...


CallT = TypeVar("CallT", bound=HasStamp)


def may_follow_rewind(before: HasStamp, call: HasStamp) -> bool:
    """Return True if a rewind, or another answer, may lie between two calls, as only the views tell."""
    if not (before.is_rewound and before.stamp and call.stamp):
        return False
    return not call.is_rewound or call.stamp.marks.start > before.stamp.ordinal


def cause_by_stamps(
    before: ViewStamp | None, after: ViewStamp | None, models: Iterable[str]
) -> str:
    """Return what broke the prompt cache from one call to a later one by their stamps and models; "" if nothing did."""
    is_known = before is not None and after is not None
    if is_known and len(set(models) - {""}) > 1:
        return ANOTHER_MODEL
    return break_between(before, after)


async def cause_by_views(chat: Conversation, before: HasStamp, call: HasStamp, cut_by: str) -> str:
    """Return what broke the prompt cache between two calls by their views.

    It is `cut_by`, what the stamps say, if the views cannot be built.
    """
    if before.stamp is None or call.stamp is None:
        return cut_by
    try:
        earlier = await chat.view_at(before.stamp)
        later = await chat.view_at(call.stamp)
    except InvalidInputError:  # a policy of another version
        return cut_by
    return kept_between(earlier, later, cut_by).cause


def call_before(
    earlier: Sequence[CallT], stamp: ViewStamp | None, *, is_same_model: Callable[[CallT], bool]
) -> CallT | None:
    """Return the call with which one is compared, from those before it, in order; None for the first call.

    It is the last one in time of the same model, as each model has a prompt cache of its own, or the last one of any.
    Later rewinds and other answers do not change it, as they did not exist yet.
    """
    same = (call for call in reversed(earlier) if is_same_model(call))
    return _last_stamped(same, stamp) or _last_stamped(reversed(earlier), stamp)


def _last_stamped(earlier: Iterable[CallT], stamp: ViewStamp | None) -> CallT | None:
    """Return the first of some calls; before a call with a stamp, those without one count if there is no other."""
    last: CallT | None = None
    for call in earlier:
        if call.stamp or stamp is None:
            return call
        last = last or call
    return last


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

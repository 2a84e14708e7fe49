"""Choose the ids of messages that are appended to a turn: a retry keeps its stored ids, a new message gets its own.

Caching proxies, LangChain's cache and servers with short ids give one id to several replies. An id alone therefore does
not show that a reply was appended before. A reply is a retry if it equals the last AI message of the turn, and no
result follows that message except those of the same append. Any other message under an id that the log has is a new
message. Its new id derives from the turn, its own id and its ordinal, so that a repeated append finds it. The new id of
a result whose call had results that were rewound names the call, because calls of one turn may have equal ids.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeVar
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.append.condition import IdsTaken
from convstore.exceptions import ContentConflictError
from convstore.log.entry import OpenCall
from convstore.log.totals import OpenCalls
from convstore.log.turn_record import TurnRecord
from convstore.messages.tool_calls import answered_by, calls_of, later_result_id

_Result = TypeVar("_Result")
Write = Callable[[list[BaseMessage], frozenset[str]], Awaitable[_Result]]
"""Appends messages. The second argument has the ids that the log may have already; others raise `IdsTaken`."""


class MessagesToAppend(NamedTuple):
    """Messages under their final ids, and those of the ids that the log may have already."""

    messages: list[BaseMessage]
    known: frozenset[str]


def derived_id(key: str, given: str, ordinal: int) -> str:
    """Return a new id for a message whose own id the log has for another message.

    >>> derived_id("turn-1", "reply", 2) == derived_id("turn-1", "reply", 2) != derived_id("turn-1", "reply", 3)
    True
    """
    return str(uuid5(NAMESPACE_OID, json.dumps(["convstore reply", key, given, ordinal])))


@dataclass(frozen=True, slots=True)
class Naming:
    """Chooses the ids of messages that are appended directly after a turn record.

    Attributes:
        record: The turn, up to the end of the log.
        key: The key from which new ids derive: the id of the turn, or the key of the variant.
        first: The ordinal of the first new message.
        generated_ids: Ids that were generated for messages without one.
        maybe_written: Ids of messages that a failed append may have written.
        by_id: A message under an id of the turn is a retry, whatever follows the stored one.
        from_state: The messages come from a framework's state, which has each id once: other content under an id is a
            conflict.
        taken: Ids that the log has for other messages.
    """

    record: TurnRecord
    key: str
    first: int
    generated_ids: Collection[str] = ()
    maybe_written: Collection[str] = ()
    by_id: bool = False
    from_state: bool = False
    taken: set[str] = field(default_factory=set)

    async def append(self, messages: Sequence[BaseMessage], write: Write[_Result]) -> _Result:
        """Append messages of the turn, each under an id that no other message has.

        Usually one append; it is repeated if the log has one of the ids for another message.
        """
        while True:
            named, known = self.named(messages)
            try:
                return await write(named, known)
            except IdsTaken as error:
                self.taken.update(error.args[0])
            except ContentConflictError as error:
                replies = {message.id for message in named if isinstance(message, AIMessage)}
                if self.from_state or error.message_id not in known & replies:
                    raise
                self.taken.add(error.message_id)  # another reply with the id of the last one

    def named(self, messages: Sequence[BaseMessage]) -> MessagesToAppend:
        """Return the messages under their final ids. A message without an id gets one on the caller's object, too."""
        retried = self._retried(messages)
        opened = self._open_calls() if self._has_unnamed_result(messages) else None
        named: list[BaseMessage] = []
        known: set[str] = set()
        ordinal = self.first
        begins = [
            index for index, message in enumerate(messages) if message.id == self.record.turn_id
        ]
        end = begins[0] if begins else -1
        for index, message in enumerate(messages):
            given = str(message.id)
            if index <= end:  # of earlier turns, or the question
                named.append(message)
                known.add(given)
                continue
            if given in retried:
                id_ = retried[given]
            elif isinstance(message, AIMessage):
                id_ = self._reply_id(given, ordinal)
            elif isinstance(message, ToolMessage):
                id_ = self._result_id(message, opened.answer(message) if opened else None, ordinal)
            else:
                id_ = given
            is_known = id_ in self.record.ordinals or not isinstance(
                message, AIMessage | ToolMessage
            )
            if is_known:
                known.add(id_)
            else:
                ordinal += 1
            named.append(self._with_id(message, id_))
            if opened:
                opened.open(named[-1], calls_of(named[-1]), 0)
        return MessagesToAppend(named, frozenset(known))

    def _has_unnamed_result(self, messages: Sequence[BaseMessage]) -> bool:
        results = (str(message.id) for message in messages if isinstance(message, ToolMessage))
        return any(id_ in self.generated_ids or id_ in self.taken for id_ in results)

    def _open_calls(self) -> OpenCalls:
        """Return the calls without a result. Of those with one id, the newest message's first one is answered first."""
        calls = zip(self.record.fold.without_result, self.record.without_result, strict=True)
        oldest_first = sorted(calls, key=lambda pair: (pair[0].message.ordinal, -pair[0].position))
        return OpenCalls(
            [OpenCall(call.id, call.name, "", call.result_id) for _, call in oldest_first]
        )

    def _with_id(self, message: BaseMessage, id_: str) -> BaseMessage:
        if message.id == id_:
            return message
        if message.id in self.generated_ids:
            message.id = id_
            return message
        return message.model_copy(update={"id": id_})

    def _retried(self, messages: Sequence[BaseMessage]) -> dict[str, str]:
        """Return the stored ids of messages that are retries, by the ids under which they came."""
        replies = [message for message in messages if isinstance(message, AIMessage | ToolMessage)]
        if not any(isinstance(message, AIMessage) for message in replies):
            return {}
        if self.by_id:
            return dict(self._found_anywhere(replies))
        last = self._last(len(replies))
        for number in range(len(last), 0, -1):
            pairs = list(zip(replies[:number], last[-number:], strict=True))
            if all(self._is_same(message, stored) for message, stored in pairs):
                return {str(message.id): str(stored.id) for message, stored in pairs}
        return {}

    def _last(self, number: int) -> list[BaseMessage]:
        """Return the last replies and results of the turn, in order."""
        found: list[BaseMessage] = []
        for message in reversed(self.record.messages):
            if len(found) == number:
                break
            if isinstance(message, AIMessage | ToolMessage):
                found.append(message)
        return found[::-1]

    def _found_anywhere(self, replies: Sequence[BaseMessage]) -> Iterator[tuple[str, str]]:
        for message in replies:
            for stored in self.record.messages:
                if isinstance(message, AIMessage) and self._is_same(message, stored):
                    yield str(message.id), str(stored.id)

    def _is_same(self, message: BaseMessage, stored: BaseMessage) -> bool:
        """Return True if a stored message has an id that this one may have got; the writer compares the contents."""
        given = str(message.id)
        id_ = str(stored.id)
        if type(message) is not type(stored) or id_ in self.taken:
            return False
        if given not in self.generated_ids:
            derived = derived_id(self.key, given, self.record.ordinals[id_])
            return id_ in (given, derived) or self._is_later(id_, given)
        if isinstance(message, ToolMessage) and isinstance(stored, ToolMessage):
            return message.tool_call_id == stored.tool_call_id
        return id_ in self.maybe_written

    def _is_later(self, id_: str, given: str) -> bool:
        """Return True if an id was made for a later result of the call that `given` answers."""
        made_for = answered_by(given)
        return answered_by(id_) == made_for and self.record.call_of_result(made_for) is not None

    def _reply_id(self, given: str, ordinal: int) -> str:
        is_free = given not in self.record.ordinals and given not in self.taken
        return given if is_free else self._free_id(given, ordinal)

    def _free_id(self, given: str, ordinal: int) -> str:
        id_ = derived_id(self.key, given, ordinal)
        while id_ in self.taken:
            id_ = derived_id(self.key, id_, ordinal)
        return id_

    def _result_id(self, message: ToolMessage, answered: OpenCall | None, ordinal: int) -> str:
        """Return the id of a result: its own; without one, that of its call; or a new one if that is taken.

        `answered` is the open call that it answers, if any.
        """
        given = str(message.id)
        is_generated = given in self.generated_ids
        if not is_generated and given not in self.taken:
            return given
        made_for = answered.result if answered else self._call_named_by(message)
        if not made_for:
            return given if is_generated else self._free_id(given, ordinal)
        stored = self.record.result(made_for)
        if stored is not None and (is_generated or given == made_for):
            return str(stored.id)
        return self._free_result_id(made_for) if made_for in self.taken else made_for

    def _free_result_id(self, made_for: str) -> str:
        """Return an id for a further result of a call, which names the call."""
        later = (later_result_id(made_for, number) for number in count(2))
        return next(id_ for id_ in later if id_ not in self.taken)

    def _call_named_by(self, result: ToolMessage) -> str:
        """Return the `result_id` of the call that a result names; "" if the turn has no such call.

        If several calls have its id, the one with an equal result is chosen.
        """
        record = self.record
        if call := record.find_call(answered_by(str(result.id))):
            return call.result_id
        same = (result.tool_call_id, result.content)
        for id_ in record.fold.results:
            stored = record.result(id_)
            if stored and (stored.tool_call_id, stored.content) == same:
                return id_
        call = record.find_call(result.tool_call_id)
        return call.result_id if call else ""

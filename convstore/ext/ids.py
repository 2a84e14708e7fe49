"""Ids of messages, and of calls: each call of an AI message gets one of its own.

Floor 7, pure. Some servers that speak OpenAI's format leave the ids of calls empty, or give several calls of a message
the same one. Nobody could tell their results apart, and a result for no id is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.messages.call_ids import CallIdTemplate, NewIds, rename_calls

__all__ = ["ids_of", "with_own_call_ids"]

_TEMPLATE = CallIdTemplate("call_{r:24:x}")


class _OwnIds(NewIds):
    """An id stays, unless it is empty or came before."""

    def give(self, call_id: str, *, tool: str, place: str) -> str:
        if not call_id or call_id in self.taken:
            return self.make(call_id, tool=tool, place=place)
        self.taken.add(call_id)
        return call_id


def ids_of(messages: Iterable[BaseMessage]) -> set[str]:
    """The ids of those messages that have one."""
    return {message.id for message in messages if message.id}


def with_own_call_ids(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages, each call in them under an id that no other call of its AI message has.

    What is changed is a copy, the rest the same objects. A new id is made from that of the AI message and the call's
    place, so it is the same every time. Results that stand behind their AI message already get the ids of its calls,
    in order.

    >>> both = AIMessage("", id="ai", tool_calls=[{"name": "look", "args": {}, "id": ""}] * 2)
    >>> ai, one, other = with_own_call_ids([both, *(ToolMessage(text, tool_call_id="") for text in "ab")])
    >>> [call["id"] for call in ai.tool_calls] == [one.tool_call_id, other.tool_call_id]
    True
    >>> one.tool_call_id == other.tool_call_id or "" in (one.tool_call_id, other.tool_call_id)
    False
    """
    own: list[BaseMessage] = []
    answers: list[ToolMessage] = []
    for place, message in enumerate(messages):
        if isinstance(message, AIMessage):
            later = takewhile(lambda one: not isinstance(one, AIMessage), messages[place + 1 :])
            ai, renamed = _renamed(message, [one for one in later if isinstance(one, ToolMessage)])
            own.append(ai)
            answers = list(renamed)
        else:
            own.append(answers.pop(0) if answers and isinstance(message, ToolMessage) else message)
    return own


def _renamed(ai: AIMessage, results: list[ToolMessage]) -> tuple[AIMessage, tuple[ToolMessage, ...]]:
    ids = _OwnIds(_TEMPLATE, set(), defaultdict(int))
    # To `rename_calls` one without an id is no call; LangChain answers it under the empty id.
    invalid = [
        {**call, "id": ids.make("", tool="", place=f"{ai.id}\0invalid {at}")} if call.get("id") == "" else call
        for at, call in enumerate(ai.invalid_tool_calls)
    ]
    if invalid != ai.invalid_tool_calls:
        ai = ai.model_copy(update={"invalid_tool_calls": invalid})
    return rename_calls(ai, results, ids)

"""Give each call of an AI message a unique id.

Some servers that speak OpenAI's format leave the ids of calls empty, or give several calls of a message the same id.
Their results could not be told apart, and providers reject a result without a call id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.messages.call_ids import CallIdTemplate, NewIds, rename_calls

_TEMPLATE = CallIdTemplate("call_{r:24:x}")


def ids_of(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of the messages that have one."""
    return {message.id for message in messages if message.id}


def with_own_call_ids(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages, with calls whose ids are unique in their AI message.

    Changed messages are copies, the others the same objects. A new id is derived from the id of the AI message and the
    call's position, so it is always the same. Results that follow their AI message get the ids of its calls, in order.

    >>> both = AIMessage("", id="ai", tool_calls=[{"name": "look", "args": {}, "id": ""}] * 2)
    >>> ai, one, other = with_own_call_ids([both, *(ToolMessage(text, tool_call_id="") for text in "ab")])
    >>> [call["id"] for call in ai.tool_calls] == [one.tool_call_id, other.tool_call_id]
    True
    >>> one.tool_call_id == other.tool_call_id or "" in (one.tool_call_id, other.tool_call_id)
    False
    """
    own: list[BaseMessage] = []
    answers: list[ToolMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            later = takewhile(lambda item: not isinstance(item, AIMessage), messages[index + 1 :])
            ai, renamed = _renamed(message, [result for result in later if isinstance(result, ToolMessage)])
            own.append(ai)
            answers = list(renamed)
        else:
            own.append(answers.pop(0) if answers and isinstance(message, ToolMessage) else message)
    return own


def _renamed(ai: AIMessage, results: list[ToolMessage]) -> tuple[AIMessage, tuple[ToolMessage, ...]]:
    ids = NewIds(_TEMPLATE, unique=True, any_form=True)
    # `rename_calls` ignores an invalid call without an id, but LangChain answers it under the empty id.
    invalid = [
        {**call, "id": ids.make("", tool="", key=f"{ai.id}\0invalid {at}")} if call.get("id") == "" else call
        for at, call in enumerate(ai.invalid_tool_calls)
    ]
    if invalid != ai.invalid_tool_calls:
        ai = ai.model_copy(update={"invalid_tool_calls": invalid})
    return rename_calls(ai, results, ids)

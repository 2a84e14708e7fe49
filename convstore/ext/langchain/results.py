"""What a tool gave back, with ids on its messages: a message, a command, or a list of both.

Floor 7, pure. LangChain gives results their ids when they come into the state, which is too late to append them
before; and at random, so that a step that is done again would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from langgraph.types import Command

from convstore.ext.langchain.turn import linked
from convstore.messages.tool_calls import result_id

__all__ = ["call_place", "give_result_ids", "messages_in", "with_ids"]


def call_place(messages: Sequence[BaseMessage], call: ToolCall) -> tuple[str, int]:
    """Id of the last AI message with a call, and the place of the call among its calls with the same id."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            same = [one for one in message.tool_calls if one["id"] == call["id"]]
            if same:
                return str(message.id), next((at for at, one in enumerate(same) if one["args"] == call["args"]), 0)
    return "", 0


def with_ids(output: Any, call: ToolCall, *, ai_message_id: str, position: int, turn_id: str | None) -> Any:
    """Return a tool's output with an id on each message; existing ids stay.

    The result of the call has the id that `result_id` makes, whatever it stands in. What comes into the conversation
    beside it says so.
    """
    base = result_id(ai_message_id, str(call["id"]), position)

    def named(message: BaseMessage, other: str, *, is_ours: bool = True) -> BaseMessage:
        if _answers(message, call):
            return _named(message, base)
        return linked(_named(message, other), turn_id if is_ours else None, result=base)

    if isinstance(output, list):
        return [_with_ids(one, f"{base}-{place}", named) for place, one in enumerate(output)]
    return _with_ids(output, base, named)


def _with_ids(output: Any, other: str, named: Callable[..., BaseMessage]) -> Any:
    if isinstance(output, ToolMessage):
        return named(output, other)
    if not isinstance(output, Command) or not isinstance(output.update, Mapping) or "messages" not in output.update:
        return output
    given = output.update["messages"]
    messages = convert_to_messages(given if isinstance(given, list) else [given])
    ours = output.graph is None
    update = [named(message, f"{other}-{place}", is_ours=ours) for place, message in enumerate(messages)]
    return replace(output, update={**output.update, "messages": update})


def messages_in(output: Any, call: ToolCall) -> Iterator[BaseMessage]:
    """The messages that come into the conversation with what a tool gave back.

    What a command sends to the graph around belongs to that graph, the result of the call apart: a call without a
    result would be no conversation.
    """
    if isinstance(output, list):
        for one in output:
            yield from messages_in(one, call)
    elif isinstance(output, ToolMessage):
        yield output
    elif isinstance(output, Command) and isinstance(output.update, Mapping):
        for message in output.update.get("messages", ()):
            if not isinstance(message, RemoveMessage) and (output.graph is None or _answers(message, call)):
                yield message


def give_result_ids(messages: Sequence[BaseMessage]) -> None:
    """Give the results an id that LangChain adds: of structured output, and for arguments that could not be read."""
    asked = AIMessage("")
    for message in messages:
        if isinstance(message, AIMessage):
            asked = message
        elif isinstance(message, ToolMessage) and message.id is None:
            message.id = result_id(str(asked.id), message.tool_call_id)


def _answers(message: BaseMessage, call: ToolCall) -> bool:
    return isinstance(message, ToolMessage) and message.tool_call_id == call["id"]


def _named(message: BaseMessage, message_id: str) -> BaseMessage:
    return message if message.id else message.model_copy(update={"id": message_id})

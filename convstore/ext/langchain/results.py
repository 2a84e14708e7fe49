"""Outputs of tools with ids on their messages, and the structured response in an answer that the log already has.

Floor 7, pure. LangChain gives results their ids when they enter the state, at random. That is too late to append them
before, and a repeated step would get other ids. It makes the structured response where it calls the model; a step
that is taken from the log calls none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain.agents.structured_output import (
    AutoStrategy,
    OutputToolBinding,
    ProviderStrategy,
    ProviderStrategyBinding,
    ToolStrategy,
)
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

__all__ = [
    "call_position",
    "give_result_ids",
    "may_be_structured",
    "messages_in",
    "schema_names",
    "structured_response",
    "with_ids",
]


def call_position(messages: Sequence[BaseMessage], call: ToolCall) -> tuple[str, int]:
    """Return the id of the last AI message with a call, and the position of the call among its calls with that id."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            same = [one for one in message.tool_calls if one["id"] == call["id"]]
            if same:
                return str(message.id), next((at for at, one in enumerate(same) if one["args"] == call["args"]), 0)
    return "", 0


def with_ids(output: Any, call: ToolCall, *, ai_message_id: str, position: int, turn_id: str | None) -> Any:
    """Return a tool's output with an id on each message; existing ids stay.

    The result of the call gets the id that `result_id` makes. Other messages in the output are linked to it.
    """
    base = result_id(ai_message_id, str(call["id"]), position)

    def named(message: BaseMessage, other: str, *, is_ours: bool = True) -> BaseMessage:
        if _answers(message, call):
            return _named(message, base)
        return linked(_named(message, other), turn_id if is_ours else None, result=base)

    if isinstance(output, list):
        return [_with_ids(one, f"{base}-{index}", named) for index, one in enumerate(output)]
    return _with_ids(output, base, named)


def _with_ids(output: Any, other: str, named: Callable[..., BaseMessage]) -> Any:
    if isinstance(output, ToolMessage):
        return named(output, other)
    if not isinstance(output, Command) or not isinstance(output.update, Mapping) or "messages" not in output.update:
        return output
    given = output.update["messages"]
    messages = convert_to_messages(given if isinstance(given, list) else [given])
    ours = output.graph is None
    update = [named(message, f"{other}-{index}", is_ours=ours) for index, message in enumerate(messages)]
    return replace(output, update={**output.update, "messages": update})


def messages_in(output: Any, call: ToolCall) -> Iterator[BaseMessage]:
    """Yield the messages of a tool's output that enter the conversation.

    Messages that a command sends to an outer graph belong to that graph, except for the result of the call.
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
    """Set the ids of results that LangChain itself adds: of structured output, and for unreadable arguments."""
    caller = AIMessage("")
    for message in messages:
        if isinstance(message, AIMessage):
            caller = message
        elif isinstance(message, ToolMessage) and message.id is None:
            message.id = result_id(str(caller.id), message.tool_call_id)


def may_be_structured(answer: AIMessage) -> bool:
    """Return True if an answer without calls may be the JSON text of a structured response."""
    return answer.text.lstrip()[:1] in ("{", "[")


def schema_names(response_format: Any) -> set[str]:
    """Return the names of the tools that a model calls to give a structured response."""
    return {spec.name for spec in _tool_specs(response_format)}


def structured_response(response_format: Any, answer: AIMessage) -> Any:
    """Return the structured response in an answer; None if it has none."""
    if response_format is None:
        return None
    specs = {spec.name: spec for spec in _tool_specs(response_format)}
    calls = [call for call in answer.tool_calls if call["name"] in specs]
    try:
        if len(calls) == 1:
            return OutputToolBinding.from_schema_spec(specs[calls[0]["name"]]).parse(calls[0]["args"])
        if not answer.tool_calls and not isinstance(response_format, ToolStrategy):
            spec = ProviderStrategy(_schema(response_format)).schema_spec
            return ProviderStrategyBinding.from_schema_spec(spec).parse(answer)
    except ValueError:
        return None  # the model was asked again; the log has its next answer
    return None


def _answers(message: BaseMessage, call: ToolCall) -> bool:
    return isinstance(message, ToolMessage) and message.tool_call_id == call["id"]


def _named(message: BaseMessage, message_id: str) -> BaseMessage:
    return message if message.id else message.model_copy(update={"id": message_id})


def _tool_specs(response_format: Any) -> list[Any]:
    if response_format is None or isinstance(response_format, ProviderStrategy):
        return []
    strategy = response_format if isinstance(response_format, ToolStrategy) else ToolStrategy(_schema(response_format))
    return list(strategy.schema_specs)


def _schema(response_format: Any) -> Any:
    wrapped = isinstance(response_format, AutoStrategy | ProviderStrategy)
    return response_format.schema if wrapped else response_format

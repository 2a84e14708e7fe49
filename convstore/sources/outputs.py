"""Find the results in the output of a tool, and replace them.

A tool returns a message, a list, or a command of LangGraph, which is not imported here. If a tool returns a list of
sources as its content, a wrapper makes the list the artifact, until the content is written with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage


class ReturnedSources(list[Any]):
    """A list of sources that a tool returned as its content; it is the artifact of a result with an empty content."""


def returned_list(message: ToolMessage) -> ToolMessage | None:
    """Return a result with `ReturnedSources` with a plain list as artifact; None for any other result."""
    if not isinstance(message.artifact, ReturnedSources):
        return None
    return message.model_copy(update={"artifact": list(message.artifact)})


def messages_in(output: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the messages in a tool's output, each with True if a command sends it to an outer graph."""
    if isinstance(output, ToolMessage):
        yield output, False
    elif isinstance(output, list):
        for part in output:
            yield from messages_in(part)
    else:
        for message in _messages_of(output):
            yield message, _is_outer(output)


def with_messages(output: Any, change: Callable[[Any, bool], BaseMessage]) -> Any:
    """Return a tool's output with each message changed; `change` gets the two values that `messages_in` yields."""
    if isinstance(output, ToolMessage):
        return change(output, False)
    if isinstance(output, list):
        return [with_messages(part, change) for part in output]
    messages = [change(message, _is_outer(output)) for message in _messages_of(output)]
    return replace(output, update={**output.update, "messages": messages}) if messages else output


def results_in(output: Any) -> list[ToolMessage]:
    """Return the results in a tool's output: a message, a list of outputs, or a command of LangGraph."""
    return [message for message, _ in messages_in(output) if isinstance(message, ToolMessage)]


def with_results(output: Any, changed: Mapping[int, BaseMessage]) -> Any:
    """Return a tool's output with replaced results; `changed` has them by the id of the replaced object."""
    if not changed:
        return output
    return with_messages(output, lambda message, _: changed.get(id(message), message))


def _messages_of(output: Any) -> list[Any]:
    """Return the messages with which a command updates a state."""
    update = getattr(output, "update", None)
    if not isinstance(update, Mapping):
        return []
    messages = update.get("messages") or []
    return messages if isinstance(messages, list) else [messages]


def _is_outer(output: Any) -> bool:
    """Return True for a command that updates the state of an outer graph."""
    return getattr(output, "graph", None) is not None

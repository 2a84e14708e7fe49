"""Read the calls of messages as workers run them, pair them with their results, and make results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.messages.cut_calls import cut_errors
from convstore.messages.media import block_type, is_media
from convstore.messages.tool_calls import Call, block_of, calls_of, result_ids
from convstore.messages.values import is_text
from convstore.values.json_form import DEEP_ARGUMENTS, has_few_levels
from convstore.values.turns import TurnCall

_UNREADABLE = "the arguments are no valid JSON object; call the tool again with valid arguments"

_BLOCKS = frozenset(
    {"text", "json", "search_result", "tool_reference", "custom_tool_call_output", "non_standard"}
)
"""Blocks other than media that a tool's result may have; any other dict is a value of the tool's own."""


def turn_calls(message: AIMessage, result_ids: Iterable[str]) -> list[TurnCall]:
    """Return the calls of a message, given the ids of their results."""
    errors = cut_errors(message)
    found = list[TurnCall]()
    for call, result_id in zip(calls_of(message), result_ids, strict=True):
        args, unreadable = _arguments(message, call)
        error = errors.get(call.position, unreadable)
        made = TurnCall(
            id=call.id,
            name=call.tool,
            namespace=str(block_of(message, call.id).get("namespace") or ""),
            args={} if error else args,
            error=error,
            message_id=str(message.id),
            result_id=result_id,
        )
        found.append(made)
    return found


def _arguments(message: AIMessage, call: Call) -> tuple[dict[str, Any], str]:
    """Return the arguments of a call, and why it cannot be run, "" if it can."""
    if call.position >= len(message.tool_calls):
        invalid = message.invalid_tool_calls[call.position - len(message.tool_calls) :][:1]
        return {}, str((invalid and invalid[0].get("error")) or _UNREADABLE)
    given = message.tool_calls[call.position]["args"]
    return (dict(given), "") if has_few_levels(given) else ({}, DEEP_ARGUMENTS)


def pairs_of(messages: Sequence[BaseMessage]) -> list[tuple[TurnCall, ToolMessage | None]]:
    """Return the calls of some messages in order, each with its result among them; None for one without.

    A result answers the call whose `result_id` it has, else the last open one with its call id, as views pair them.
    """
    calls = list[TurnCall]()
    open_ = list[TurnCall]()
    results = dict[str, ToolMessage]()
    for message in messages:
        new = _calls(message)
        calls += new
        open_ += new
        if isinstance(message, ToolMessage):
            matching = [call for call in open_ if call.id == message.tool_call_id]
            own = [call for call in matching if call.result_id == message.id]
            for matched in (own or matching[-1:])[:1]:
                open_.remove(matched)
                results[matched.result_id] = message
    return [(call, results.get(call.result_id)) for call in calls]


def calls_without_result(messages: Sequence[BaseMessage]) -> list[TurnCall]:
    """Return the calls of some messages that have no result among them, in order."""
    return [call for call, result in pairs_of(messages) if result is None]


def _calls(message: BaseMessage) -> list[TurnCall]:
    """Return all calls of a message, in order."""
    if not isinstance(message, AIMessage):
        return []
    return turn_calls(message, result_ids(message))


def result_of(call: TurnCall, content: Any, *, is_error: bool = False) -> ToolMessage:
    """Return the result of a call, with the id by which it is found.

    Raises:
        InvalidInputError: The content is neither a text nor a list of content blocks, and JSON cannot express it.
    """
    status: Literal["error", "success"] = "error" if is_error else "success"
    return ToolMessage(
        _shown(content), tool_call_id=call.id, name=call.name, id=call.result_id, status=status
    )


def _shown(content: Any) -> Any:
    """Return a text or content blocks as they are, and any other value as JSON."""
    if is_text(content) or (type(content) is list and content and all(map(_is_block, content))):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            "content must be a text, a list of content blocks or a value that JSON can express, "
            f"not {error}"
        ) from error


def _is_block(value: Any) -> bool:
    return block_type(value) in _BLOCKS or is_media(value)

"""Read the calls of messages as workers run them, pair them with their results, and make results.

A call that the output limit or a filter cut off is not run, with half of its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.messages.media import block_type, is_media
from convstore.messages.stop_reasons import cut_reason
from convstore.messages.tool_calls import (
    CALL_BLOCKS,
    Call,
    block_of,
    calls_in_content,
    calls_of,
    inner_block,
    result_ids,
)
from convstore.messages.values import is_text
from convstore.values.json_form import DEEP_ARGUMENTS, has_few_levels
from convstore.values.turns import TurnCall

_NO_CALL: Final = (-1, "")
_CUT: Final = (
    "the reply was cut off ({reason}) before this call was complete, so the tool was not run; "
    "call it again, with less in one call"
)


def cut_errors(message: BaseMessage) -> dict[int, str]:
    """Return the error of the call that was cut off, by its position among the calls of its message; {} without one.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> cut_errors(AIMessage("", tool_calls=[call])), cut_errors(AIMessage("I"))
    ({}, {})
    """
    position, reason = _cut_call(message)
    return {} if position < 0 else {position: _CUT.format(reason=reason)}


def cut_error(message: BaseMessage, call_id: str | None) -> str:
    """Return the error of a call that was cut off, "" for any other.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> reason = {"finish_reason": "length"}
    >>> cut_error(AIMessage("", tool_calls=[call], response_metadata=reason), "c1")[:33]
    'the reply was cut off (length) be'
    """
    errors = cut_errors(message)
    for call in calls_of(message):
        if call.position in errors and call.id == (call_id or ""):
            return errors[call.position]
    return ""


def _cut_call(message: BaseMessage) -> tuple[int, str]:
    """Return the position of the call that the end of a reply cut off, and the stop reason; (-1, "") without one.

    It is the last call, unless other content follows it. Its arguments may look whole: SDKs complete them.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> _cut_call(AIMessage("", tool_calls=[call], response_metadata={"stop_reason": "max_tokens"}))
    (0, 'max_tokens')
    """
    calls = calls_of(message)
    if not calls:
        return _NO_CALL
    for call in calls:
        if block_of(message, call.id).get("status") == "incomplete":
            return call.position, "incomplete"
    reason = cut_reason(message.response_metadata)
    if not reason:
        return _NO_CALL
    last = _last_call(message, calls)
    return (last, reason) if last >= 0 else _NO_CALL


def _last_call(message: BaseMessage, calls: Sequence[Call]) -> int:
    """Return the position of the call that ends a message, -1 if its content goes on after the calls."""
    content = message.content if isinstance(message.content, list) else []
    in_content = dict(calls_in_content(content))
    apart = [call for call in calls if call.id not in in_content]
    if not apart:
        block = inner_block(content[-1])
        key = CALL_BLOCKS.get(str(block.get("type")))
        return _last_with_id(calls, block.get(key) if key else None)
    # Where valid and invalid calls are mixed, the calls as the API wrote them have the order.
    written = message.additional_kwargs.get("tool_calls")
    if isinstance(written, list) and written and isinstance(written[-1], dict):
        return _last_with_id(calls, written[-1].get("id") or "")
    return apart[-1].position


def _last_with_id(calls: Sequence[Call], call_id: Any) -> int:
    return next((call.position for call in reversed(calls) if call.id == call_id), -1)


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

"""Read the calls that a worker has to run from messages, pair them with their results, and make results.

A call that was cut off by a limit or a filter gets an error, so that it is not run with incomplete arguments.
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
    called_in,
    calls_in_content,
    calls_of,
    fill_slots,
    result_ids,
)
from convstore.messages.values import is_text
from convstore.values.json_form import DEEP_ARGUMENTS, has_few_levels
from convstore.values.turns import TurnCall

_CUT: Final = (
    "the reply was cut off ({reason}) before this call was complete, so the tool was not run; "
    "call it again, with less in one call"
)


def cut_error(message: BaseMessage, call_id: str | None) -> str:
    """Return the error of a call that was cut off, "" for any other call.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> reason = {"finish_reason": "length"}
    >>> cut_error(AIMessage("", tool_calls=[call], response_metadata=reason), "c1")[:33]
    'the reply was cut off (length) be'
    """
    cut = _cut_call(message)
    return cut[1] if cut and cut[0].id == (call_id or "") else ""


def _cut_call(message: BaseMessage) -> tuple[Call, str] | None:
    """Return the call that was cut off at the end of a reply, and its error; None without one.

    It is the last call, unless other content follows it. Its arguments may be valid JSON, because SDKs complete them.

    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> _cut_call(AIMessage("", tool_calls=[call], response_metadata={"stop_reason": "max_tokens"}))[0].id
    'c1'
    """
    calls = calls_of(message)
    for call in calls:
        if block_of(message, call.id).get("status") == "incomplete":
            return call, _CUT.format(reason="incomplete")
    reason = cut_reason(message.response_metadata)
    last = _last_call(message, calls) if reason and calls else None
    return (last, _CUT.format(reason=reason)) if last else None


def _last_call(message: BaseMessage, calls: Sequence[Call]) -> Call | None:
    """Return the call at the end of a message, None if other content follows the calls."""
    content = message.content if isinstance(message.content, list) else []
    in_content = dict(calls_in_content(content))
    apart = [call for call in calls if call.id not in in_content]
    if not apart:
        return _last_with_id(calls, called_in(content[-1], CALL_BLOCKS))
    # With both valid and invalid calls, only the API's own list has the order of all calls.
    written = message.additional_kwargs.get("tool_calls")
    if isinstance(written, list) and written and isinstance(written[-1], dict):
        return _last_with_id(calls, written[-1].get("id") or "")
    return apart[-1]


def _last_with_id(calls: Sequence[Call], call_id: Any) -> Call | None:
    return next((call for call in reversed(calls) if call.id == call_id), None)


_UNREADABLE = "the arguments are not a valid JSON object; call the tool again with valid arguments"

_BLOCKS = frozenset(
    {"text", "json", "search_result", "tool_reference", "custom_tool_call_output", "non_standard"}
)
"""Types of blocks other than media in a tool's result; any other dict is a value that the tool returned."""


def turn_calls(message: AIMessage, result_ids: Iterable[str]) -> list[TurnCall]:
    """Return the calls of a message, given the ids of their results."""
    cut, cut_off = _cut_call(message) or (None, "")
    found: list[TurnCall] = []
    for call, result_id in zip(calls_of(message), result_ids, strict=True):
        args, unreadable = _arguments(message, call)
        error = cut_off if call == cut else unreadable
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
    """Return the arguments of a call, and the reason why it cannot be run, "" if it can."""
    if call.position >= len(message.tool_calls):
        invalid = message.invalid_tool_calls[call.position - len(message.tool_calls) :][:1]
        return {}, str((invalid and invalid[0].get("error")) or _UNREADABLE)
    given = message.tool_calls[call.position]["args"]
    return (dict(given), "") if has_few_levels(given) else ({}, DEEP_ARGUMENTS)


def pairs_of(messages: Sequence[BaseMessage]) -> list[tuple[TurnCall, ToolMessage | None]]:
    """Return the calls of messages in order, each with its result among the messages, or None.

    They are paired by the rule of views; see `tool_calls.pair`.
    """
    slots, _ = fill_slots(messages)
    pairs: list[tuple[TurnCall, ToolMessage | None]] = []
    for index, of_message in slots.items():
        message: Any = messages[index]
        for call, slot in zip(turn_calls(message, result_ids(message)), of_message, strict=True):
            result: Any = None if slot.result is None else messages[slot.result]
            pairs.append((call, result))
    return pairs


def calls_without_result(messages: Sequence[BaseMessage]) -> list[TurnCall]:
    """Return the calls of messages without a result among the messages, in order."""
    return [call for call, result in pairs_of(messages) if result is None]


def make_result(call: TurnCall, content: Any, *, is_error: bool = False) -> ToolMessage:
    """Return the result message of a call, with the id that `result_id` makes for it.

    Raises:
        InvalidInputError: The content is neither a text nor a list of content blocks, and JSON cannot express it.
    """
    status: Literal["error", "success"] = "error" if is_error else "success"
    return ToolMessage(
        _content_of_value(content),
        tool_call_id=call.id,
        name=call.name,
        id=call.result_id,
        status=status,
    )


def _content_of_value(content: Any) -> Any:
    """Return a text or content blocks unchanged, and any other value as JSON."""
    if is_text(content):
        return content
    has_blocks = type(content) is list and bool(content)
    if has_blocks and all(block_type(block) in _BLOCKS or is_media(block) for block in content):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            "content must be a text, a list of content blocks or a value that JSON can express: "
            f"{error}; convert it, or pass what a search found as sources="
        ) from error

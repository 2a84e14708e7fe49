"""Arguments of calls that are JSON, whatever the model wrote.

Layer 1, pure. Models put raw line breaks into JSON strings, stop in the middle of an object, or write none at all;
gateways refuse the whole request over it, each time the history is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage

__all__ = ["sanitize_arguments", "with_json_arguments"]

_EMPTY: Final = "{}"
_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TEXT_KEYS: Final = ("arguments", "partial_json")
_DICT_KEYS: Final = ("args", "input", "arguments")
_CALL_BLOCKS: Final = frozenset({"custom_tool_call", "function_call", "tool_call", "tool_use"})


def sanitize_arguments(text: str) -> str:
    r"""The text itself if it is JSON, with control characters in its strings escaped if that makes it JSON, else {}.

    >>> print(sanitize_arguments('{"text": "two\nlines"}'), sanitize_arguments('{"text": "cut o'))
    {"text": "two\nlines"} {}
    """
    if _is_json(text):
        return text
    escaped = _escape_controls(text)
    return escaped if _is_json(escaped) else _EMPTY


def with_json_arguments(message: AIMessage) -> AIMessage:
    """The message with arguments that are JSON in every place where it has any; the same object if all were.

    Looked at are `tool_calls`, `invalid_tool_calls`, call blocks of the content, and what OpenAI sent in
    `additional_kwargs`. An invalid call stays one, in its place.
    """
    update: dict[str, Any] = {
        "tool_calls": [_with_dict(call, "args") for call in message.tool_calls],
        "invalid_tool_calls": [{**call, "args": _sanitized(call.get("args"))} for call in message.invalid_tool_calls],
        "additional_kwargs": _with_raw_calls(message.additional_kwargs),
    }
    if isinstance(message.content, list):
        update["content"] = [_with_block(block) for block in message.content]
    changed = {name: value for name, value in update.items() if value != getattr(message, name)}
    return message.model_copy(update=changed) if changed else message


def _is_json(text: str) -> bool:
    try:
        # A number of any length is JSON, NaN is not; the numbers themselves are not wanted.
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _escape_controls(text: str) -> str:
    pieces: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string and char < " ":
            # Behind a lone backslash the escape begins anew: its own backslash is there already.
            made = _SHORT.get(char, f"\\u{ord(char):04x}")
            pieces.append(made[1:] if escaped else made)
            escaped = False
            continue
        pieces.append(char)
        if char == '"' and not escaped:
            in_string = not in_string
        escaped = in_string and char == "\\" and not escaped
    return "".join(pieces)


def _sanitized(arguments: Any) -> str:
    return sanitize_arguments(arguments) if isinstance(arguments, str) else _EMPTY


def _with_dict(call: Any, key: str) -> Any:
    """A call or block whose arguments are no text: what cannot be written as JSON is replaced."""
    try:
        json.dumps(call[key], allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {**call, key: {}}
    return call


def _with_block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if block.get("type") == "non_standard":
        return {**block, "value": _with_block(block.get("value"))}
    if block.get("type") not in _CALL_BLOCKS:
        return block
    for key in (*_TEXT_KEYS, *_DICT_KEYS):
        # The input of a custom tool is free text and no JSON.
        if key not in block or (key == "input" and isinstance(block[key], str)):
            continue
        block = {**block, key: _sanitized(block[key])} if isinstance(block[key], str) else _with_dict(block, key)
    return block


def _with_raw_calls(kwargs: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's own form: the arguments are text two levels down."""
    calls = kwargs.get("tool_calls")
    update: dict[str, Any] = {"tool_calls": _with_functions(calls)} if isinstance(calls, list) else {}
    if isinstance(function := kwargs.get("function_call"), dict) and "arguments" in function:
        update["function_call"] = {**function, "arguments": _sanitized(function["arguments"])}
    return {**kwargs, **update}


def _with_functions(calls: Sequence[Any]) -> list[Any]:
    return [
        {**call, "function": {**call["function"], "arguments": _sanitized(call["function"].get("arguments"))}}
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
        else call
        for call in calls
    ]

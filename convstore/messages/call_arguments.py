"""Read the arguments of tool calls, and repair them so that they are always valid JSON.

Models put raw line breaks into JSON strings, stop in the middle of an object, or write no arguments at all. Gateways
then reject every request whose history contains such a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call

from convstore.messages.media import block_type
from convstore.messages.tool_calls import (
    CALL_BLOCKS,
    changed_block,
    changed_functions,
    with_changes,
)
from convstore.values.json_form import DEEP_ARGUMENTS, deep_json, has_few_levels, valid_text

_EMPTY: Final = "{}"
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SIGN: Final = re.compile(r"\\?[\x00-\x1f]|\\.")
"""Matches a control character, with a backslash before it if there is one, or an escape."""
_TEXT_KEYS: Final = ("arguments", "partial_json")
_DICT_KEYS: Final = ("args", "input", "arguments")


def read_call(name: str, given: Any, call_id: str | None) -> dict[str, Any]:
    """Return a call in LangChain's form: valid, or invalid with the raw text of its arguments.

    >>> read_call("look", '{"place": "sea"}', "c1")["args"], read_call("look", '{"place": ', "c2")["type"]
    ({'place': 'sea'}, 'invalid_tool_call')
    """
    args = parsed_arguments(given) if isinstance(given, str) else given or {}
    if isinstance(args, dict) and has_few_levels(args):
        return {**tool_call(name=name, args=args, id=call_id)}
    raw = given if isinstance(given, str) else deep_json(given)
    return {**invalid_tool_call(name=name, args=raw, id=call_id, error=DEEP_ARGUMENTS)}


def as_call_fields(calls: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return calls as the fields `tool_calls` and `invalid_tool_calls` of an AI message."""
    lists: dict[str, list[Any]] = {"tool_calls": [], "invalid_tool_calls": []}
    for call in calls:
        lists["tool_calls" if call["type"] == "tool_call" else "invalid_tool_calls"].append(call)
    return lists


def parsed_arguments(text: str) -> dict[str, Any] | None:
    """Parse arguments; return {} for an empty text or ``null``, and None unless it is an object of few levels."""
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        # not JSON, or an integer beyond Python's limit of digits; too many levels
        return None
    if value is None:
        return {}
    return value if isinstance(value, dict) and has_few_levels(value) else None


def sanitize_arguments(text: str) -> str:
    r"""Return the text if it is valid JSON, else repair it, else return an empty object.

    The repair escapes control characters inside strings.

    >>> print(sanitize_arguments('{"text": "two\nlines"}'), sanitize_arguments('{"text": "cut o'))
    {"text": "two\nlines"} {}
    """
    if _is_json(text):
        return text
    escaped = _STRING.sub(lambda string: _SIGN.sub(_escaped, string[0]), text)
    return escaped if _is_json(escaped) else _EMPTY


def arguments_text(given: Any) -> tuple[str, bool]:
    """Return arguments as the JSON text of an object, and True if no argument was lost.

    >>> arguments_text({"city": "Oslo"}), arguments_text('{"city": "Os')
    (('{"city": "Oslo"}', True), ('{}', False))
    """
    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
        return "{}", True
    try:
        text = sanitize_arguments(given) if isinstance(given, str) else ""
        value = json.loads(text) if text else given
        if isinstance(value, dict) and has_few_levels(value):
            is_whole = text != "{}" or given.strip() == "{}"
            return valid_text(_JSON.encode(value)), is_whole
    except (TypeError, ValueError, RecursionError):
        pass
    return "{}", False


def _escaped(sign: re.Match[str]) -> str:
    return json.dumps(sign[0][-1])[1:-1] if sign[0][-1] < " " else sign[0]


def with_json_arguments(message: AIMessage) -> AIMessage:
    """Return the message with valid JSON wherever it has call arguments; the same object if unchanged.

    Checks `tool_calls`, `invalid_tool_calls`, call blocks of the content, and OpenAI's calls in `additional_kwargs`. An
    invalid call stays invalid and keeps its position.
    """
    update: dict[str, Any] = {
        "tool_calls": [_with_dict(call, "args") for call in message.tool_calls],
        "invalid_tool_calls": [
            {**call, "args": _sanitized(call.get("args"))} for call in message.invalid_tool_calls
        ],
        "additional_kwargs": _with_raw_calls(message.additional_kwargs),
    }
    if isinstance(message.content, list):
        update["content"] = [changed_block(block, _with_block) for block in message.content]
    return with_changes(message, update)


def _is_json(text: str) -> bool:
    try:
        # Numbers of any length are valid JSON, NaN is not. `len` skips the conversion, because the value is not used.
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _sanitized(arguments: Any) -> str:
    return sanitize_arguments(arguments) if isinstance(arguments, str) else _EMPTY


def _with_dict(call: Any, key: str) -> Any:
    """Replace a call's or block's structured arguments with {} if JSON cannot represent them."""
    try:
        json.dumps(call[key], allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {**call, key: {}}
    return call


def _with_block(block: dict[Any, Any]) -> dict[Any, Any]:
    if block_type(block) not in CALL_BLOCKS:
        return block
    for key in (*_TEXT_KEYS, *_DICT_KEYS):
        # The input of a custom tool is free text, not JSON.
        if key not in block or (key == "input" and isinstance(block[key], str)):
            continue
        if isinstance(block[key], str):
            block = {**block, key: _sanitized(block[key])}
        else:
            block = _with_dict(block, key)
    return block


def _with_raw_calls(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Repair OpenAI's raw calls, whose arguments are a string two levels down."""
    changed = changed_functions(kwargs, _with_json_text)
    function = kwargs.get("function_call")
    if isinstance(function, dict) and "arguments" in function:
        changed["function_call"] = _with_json_text(function)
    return changed


def _with_json_text(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": _sanitized(function.get("arguments"))}

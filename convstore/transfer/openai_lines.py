"""Converts messages of the log to OpenAI's format, the inverse of what `append` does with such dicts.

Floor 7. Fields without a LangChain equivalent, which `append` keeps in ``additional_kwargs``, get their own names back.
Fields that the format cannot hold are named, so that an export reports them.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, ToolMessage

__all__ = ["BARE_KEYS", "openai_line", "openai_message"]

BARE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
"""The only keys that a message for OpenAI's fine-tuning may have."""

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function"}
_ROLE_KEY = "__openai_role__"


def openai_message(message: BaseMessage, *, bare: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return a message in OpenAI's format, and the names of the fields left out; `bare` keeps those in `BARE_KEYS`.

    Raises:
        ValueError: The arguments of a call contain a value that JSON cannot hold.

    >>> openai_message(AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}]))[0]["tool_calls"]
    [{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': '{"a": 1}'}}]
    """
    extra = dict(message.additional_kwargs)
    role = message.role if isinstance(message, ChatMessage) else _ROLES[message.type]
    made: dict[str, Any] = {"role": extra.pop(_ROLE_KEY, role), "content": message.content}
    if message.name is not None:
        made["name"] = message.name
    calls = extra.pop("tool_calls", None)
    if isinstance(message, AIMessage):
        if not isinstance(calls, list):
            made_calls = (*message.tool_calls, *message.invalid_tool_calls)
            calls = [_call(call.get("id"), call.get("name"), call.get("args")) for call in made_calls]
        if calls:
            made["tool_calls"] = calls
            made["content"] = None if message.content == "" else message.content
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    left_out = [name for name in ("response_metadata",) if getattr(message, name)]
    if isinstance(message, AIMessage) and message.usage_metadata and "usage" not in extra:
        left_out.append("usage_metadata")
    artifact = message.artifact if isinstance(message, ToolMessage) else None
    if artifact is not None and (bare or not _is_json(artifact)):
        left_out.append("artifact")
    if bare:
        return made, [*left_out, *sorted(extra), *(["status"] if _is_error(message) else [])]
    if artifact is not None and "artifact" not in left_out:
        made["artifact"] = artifact
    left_out += [key for key, value in extra.items() if not _is_json(value)]
    if _is_error(message):
        made["status"] = "error"
    if message.id is not None:
        made["id"] = message.id
    return made | {key: value for key, value in extra.items() if key not in made and key not in left_out}, left_out


def openai_line(value: Any) -> bytes:
    """Return a value as a line of JSON; raise a ValueError if JSON cannot hold it."""
    try:
        return _dumped(value).encode() + b"\n"
    except UnicodeEncodeError:
        return _dumped(value, ascii_only=True).encode() + b"\n"


def _dumped(value: Any, *, ascii_only: bool = False) -> str:
    try:
        return json.dumps(value, ensure_ascii=ascii_only)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"JSON cannot hold it: {error}; use the format convstore") from error


def _is_error(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) and message.status == "error"


def _is_json(value: Any) -> bool:
    """Return True if a value is equal after a round trip through JSON, with the same types."""
    todo = [value]
    while todo:
        one = todo.pop()
        if type(one) is dict and all(type(key) is str for key in one):
            todo.extend(one.values())
        elif type(one) is list:
            todo.extend(one)
        elif one is not None and type(one) not in (str, int, bool, float):
            return False
    return True


def _call(id_: str | None, name: str | None, args: Any) -> dict[str, Any]:
    # Arguments that are not JSON keep their text.
    text = args if isinstance(args, str) else _dumped(args or {})
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}

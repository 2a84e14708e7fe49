"""Convert messages of the log to OpenAI's format, and check turns against the rules of its fine-tuning.

Fields without a LangChain equivalent, which `append` keeps in ``additional_kwargs``, get their own names back. Fields
that the format cannot store are returned by name, so that an export reports them. OpenAI rejects a whole file for
fine-tuning if one message breaks a rule: https://platform.openai.com/docs/guides/supervised-fine-tuning
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, ToolMessage

from convstore.values.json_form import deep_json, has_few_levels

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
}
_ROLE_KEY = "__openai_role__"

_TRAINED_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_TRAINED = frozenset(
    {"thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call", "function_call"}
)
"""Types of an answer's blocks that are left out of training messages; calls have a field of their own."""
_SHOWN_CHARACTERS = 60
_EMPTY = "the content of {} is empty"
_Message = dict[str, Any]


def openai_message(message: BaseMessage, *, bare: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return a message in OpenAI's format, and the names of the fields left out; `bare` for fine-tuning.

    Raises:
        ValueError: The arguments of a call contain a value that JSON cannot represent.

    >>> openai_message(AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}]))[0]["tool_calls"]
    [{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': '{"a": 1}'}}]
    """
    made = _bare_message(message)
    extra = dict(message.additional_kwargs)
    extra.pop(_ROLE_KEY, None)
    extra.pop("tool_calls", None)
    left_out = _metadata_of(message)
    if "usage" in extra and "usage_metadata" in left_out:
        left_out.remove("usage_metadata")
    if not bare:
        return made, left_out + _add_fields(made, message, extra)
    if isinstance(message, ToolMessage) and message.artifact is not None:
        left_out.append("artifact")
    left_out += sorted(map(str, extra))
    if _is_error(message):
        left_out.append("status")
    return made, left_out


def _bare_message(message: BaseMessage) -> _Message:
    """Return a message with only the fields that OpenAI's fine-tuning accepts."""
    role = message.role if isinstance(message, ChatMessage) else _ROLES[message.type]
    given = message.additional_kwargs
    made: _Message = {"role": given.get(_ROLE_KEY, role), "content": message.content}
    if message.name is not None:
        made["name"] = message.name
    if isinstance(message, AIMessage) and (calls := _calls(message)):
        made["tool_calls"] = calls
        if message.content == "":
            made["content"] = None
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
    return made


def _calls(message: AIMessage) -> list[Any]:
    """Return the calls of an answer; those that were appended in OpenAI's format are unchanged."""
    given = message.additional_kwargs.get("tool_calls")
    if isinstance(given, list):
        return given
    made = (*message.tool_calls, *message.invalid_tool_calls)
    return [_call(call.get("id"), call.get("name"), call.get("args")) for call in made]


def _metadata_of(message: BaseMessage) -> list[str]:
    """Return the names of a message's metadata fields, which OpenAI's format cannot store."""
    names: list[str] = []
    if message.response_metadata:
        names.append("response_metadata")
    if isinstance(message, AIMessage) and message.usage_metadata:
        names.append("usage_metadata")
    return names


def _add_fields(made: _Message, message: BaseMessage, extra: Mapping[Any, Any]) -> list[str]:
    """Add the fields that `append` reads back; return the names of those that JSON cannot represent."""
    left_out: list[str] = []
    if isinstance(message, ToolMessage) and message.artifact is not None:
        if _is_json(message.artifact):
            made["artifact"] = message.artifact
        else:
            left_out.append("artifact")
    if _is_error(message):
        made["status"] = "error"
    if message.id is not None:
        made["id"] = message.id
    for key, value in extra.items():
        if type(key) is not str or not _is_json(value):
            left_out.append(str(key))
        elif key not in made:
            made[key] = value
    return left_out


def openai_line(value: Any) -> bytes:
    """Return a value as a line of JSON; raise a ValueError if JSON cannot represent it."""
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
        item = todo.pop()
        if type(item) is dict and all(type(key) is str for key in item):
            todo.extend(item.values())
        elif type(item) is list:
            todo.extend(item)
        elif item is not None and type(item) not in (str, int, bool, float):
            return False
    return True


def _call(id_: str | None, name: str | None, args: Any) -> dict[str, Any]:
    # Arguments that are not JSON keep their text.
    given = args or {}
    if isinstance(args, str):
        text = args
    elif has_few_levels(given):
        text = _dumped(given)
    else:
        text = deep_json(given)
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}


def as_training(message: _Message) -> _Message:
    """Join the text blocks of an answer or result into one text; return other messages unchanged.

    >>> as_training({"role": "assistant", "content": [{"type": "thinking"}, {"type": "text", "text": "Yes."}]})
    {'role': 'assistant', 'content': 'Yes.'}
    """
    content = message["content"]
    if message["role"] == "user" or not isinstance(content, list):
        return message
    texts: list[str] = []
    for block in content:
        if isinstance(block, dict) and block.get("type") in _NOT_TRAINED:
            continue
        text = _text(block)
        if text is None:
            return message
        if text:
            texts.append(text)
    if not texts and message.get("tool_calls"):
        return {**message, "content": None}
    return {**message, "content": "\n".join(texts)}


def training_problem(messages: Sequence[_Message], *, needs_answer: bool = True) -> str:
    """Return the reason why OpenAI would reject a turn; "" if it would accept it.

    >>> training_problem([{"role": "user", "content": "Hi"}])
    'it has no answer'
    >>> training_problem([{"role": "user", "content": ""}, {"role": "assistant", "content": "Hello"}])
    'the content of its message 1 is empty'
    """
    for number, message in enumerate(messages, 1):
        if (
            problem := _role_problem(message)
            or _content_problem(message)
            or _calls_problem(message)
        ):
            return problem.format(f"its message {number}")
    if needs_answer and (
        not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls")
    ):
        return "it has no answer"
    return _pairs_problem(messages)


def _role_problem(message: _Message) -> str:
    role = message["role"]
    return "" if role in _TRAINED_ROLES else f"{{}} has the role {_named(role)}"


def _content_problem(message: _Message) -> str:
    content = message["content"]
    role = message["role"]
    if content is None and role == "assistant" and message.get("tool_calls"):
        return ""
    if isinstance(content, list) and role == "user":
        return _blocks_problem(content)
    if not isinstance(content, str):
        return "the content of {} is not a text"
    return "" if content.strip() else _EMPTY


def _blocks_problem(blocks: Sequence[Any]) -> str:
    has_image = False
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in ("text", "image_url"):
            return f"{{}} has a block of type {_named(kind)}"
        has_image = has_image or kind == "image_url"
    if has_image or any((_text(block) or "").strip() for block in blocks):
        return ""
    return _EMPTY


def _calls_problem(message: _Message) -> str:
    for call in message.get("tool_calls", ()):
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        if not _NAME.fullmatch(str(function.get("name"))):
            return "the name of a tool that {} calls is not 1 to 64 letters, digits, _ and -"
        if not isinstance(call.get("id"), str) or not _is_object(function.get("arguments")):
            return "a call of {} has no id, or its arguments are not a JSON object"
    return ""


def _pairs_problem(messages: Sequence[_Message]) -> str:
    open_calls: set[str] = set()
    for number, message in enumerate(messages, 1):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return f"its message {number} is a result without a call"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return "one of its calls has no result"
        open_calls |= {call["id"] for call in message.get("tool_calls", ())}
    return "one of its calls has no result" if open_calls else ""


def _named(value: Any) -> str:
    """Quote a role or type for a text that is passed to `str.format`."""
    return repr(str(value)[:_SHOWN_CHARACTERS]).replace("{", "{{").replace("}", "}}")


def _text(block: Any) -> str | None:
    if isinstance(block, dict):
        block = block.get("text")
    return block if isinstance(block, str) else None


def _is_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError, RecursionError):
        return False

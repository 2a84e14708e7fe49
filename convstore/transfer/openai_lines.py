"""Convert messages of the log to OpenAI's format, and check turns against the rules of its fine-tuning.

Fields without a LangChain equivalent, which `append` keeps in ``additional_kwargs``, get their own names back. Fields
that the format cannot hold are named, so that an export reports them. OpenAI rejects a whole file for fine-tuning if
one message breaks a rule: https://platform.openai.com/docs/guides/supervised-fine-tuning
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, ToolMessage

from convstore.values.json_form import deep_json, has_few_levels

BARE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
"""The only keys that a message for OpenAI's fine-tuning may have."""

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
"""Types of answer blocks left out of training messages: calls have a field of their own."""
_SHOWN_CHARACTERS = 60
_EMPTY = "the content of {} is empty"
_Message = dict[str, Any]


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
            calls = [
                _call(call.get("id"), call.get("name"), call.get("args")) for call in made_calls
            ]
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
        return made, [
            *left_out,
            *sorted(map(str, extra)),
            *(["status"] if _is_error(message) else []),
        ]
    if artifact is not None and "artifact" not in left_out:
        made["artifact"] = artifact
    kept = {key: value for key, value in extra.items() if type(key) is str and _is_json(value)}
    left_out += [str(key) for key in extra if key not in kept]
    if _is_error(message):
        made["status"] = "error"
    if message.id is not None:
        made["id"] = message.id
    return made | {key: value for key, value in kept.items() if key not in made}, left_out


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
    kept = [
        block
        for block in content
        if not (isinstance(block, dict) and block.get("type") in _NOT_TRAINED)
    ]
    texts = [block if isinstance(block, str) else _text(block) for block in kept]
    if any(text is None for text in texts):
        return message
    return {
        **message,
        "content": "\n".join(filter(None, texts)) or (None if message.get("tool_calls") else ""),
    }


def training_problem(messages: Sequence[_Message], *, needs_answer: bool = True) -> str:
    """Return the reason OpenAI would reject a turn, "" if it would not.

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
        kinds = [block.get("type") if isinstance(block, dict) else None for block in content]
        unsupported = next((str(kind) for kind in kinds if kind not in ("text", "image_url")), "")
        blank = all(kind == "text" for kind in kinds) and not any(
            (_text(block) or "").strip() for block in content
        )
        return (
            f"{{}} has a block of type {_named(unsupported)}"
            if unsupported
            else _EMPTY
            if blank
            else ""
        )
    if not isinstance(content, str):
        return "the content of {} is no text"
    return "" if content.strip() else _EMPTY


def _calls_problem(message: _Message) -> str:
    for call in message.get("tool_calls", ()):
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        if not _NAME.fullmatch(str(function.get("name"))):
            return "the name of a tool that {} calls is not 1 to 64 letters, digits, _ and -"
        if not isinstance(call.get("id"), str) or not _is_object(function.get("arguments")):
            return "a call of {} has no id, or its arguments are no JSON object"
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
    """Quote a role or type for a message that goes through `str.format`."""
    return repr(str(value)[:_SHOWN_CHARACTERS]).replace("{", "{{").replace("}", "}}")


def _text(block: Any) -> str | None:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else None


def _is_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError, RecursionError):
        return False

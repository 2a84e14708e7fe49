"""Checks turns against the rules of OpenAI's fine-tuning before a line is written.

Floor 7. OpenAI rejects the whole file if one message breaks a rule, so the turn of that message is left out and
reported. Rules: https://platform.openai.com/docs/guides/supervised-fine-tuning
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["as_training", "training_problem"]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_TRAINED = frozenset({"thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call", "function_call"})
"""Types of answer blocks left out of training messages: calls have a field of their own."""
_SHOWN_CHARACTERS = 60
_EMPTY = "the content of {} is empty"

_Message = dict[str, Any]


def as_training(message: _Message) -> _Message:
    """Join the text blocks of an answer or result into one text; return other messages unchanged.

    >>> as_training({"role": "assistant", "content": [{"type": "thinking"}, {"type": "text", "text": "Yes."}]})
    {'role': 'assistant', 'content': 'Yes.'}
    """
    content = message["content"]
    if message["role"] == "user" or not isinstance(content, list):
        return message
    kept = [block for block in content if not (isinstance(block, dict) and block.get("type") in _NOT_TRAINED)]
    texts = [block if isinstance(block, str) else _text(block) for block in kept]
    if any(text is None for text in texts):
        return message
    return {**message, "content": "\n".join(filter(None, texts)) or (None if message.get("tool_calls") else "")}


def training_problem(messages: Sequence[_Message], *, needs_answer: bool = True) -> str:
    """Return the reason OpenAI would reject a turn, "" if it would not.

    >>> training_problem([{"role": "user", "content": "Hi"}])
    'it has no answer'
    >>> training_problem([{"role": "user", "content": ""}, {"role": "assistant", "content": "Hello"}])
    'the content of its message 1 is empty'
    """
    for number, message in enumerate(messages, 1):
        if problem := _role_problem(message) or _content_problem(message) or _calls_problem(message):
            return problem.format(f"its message {number}")
    if needs_answer and (not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls")):
        return "it has no answer"
    return _pairs_problem(messages)


def _role_problem(message: _Message) -> str:
    role = message["role"]
    return "" if role in _ROLES else f"{{}} has the role {_named(role)}"


def _content_problem(message: _Message) -> str:
    content, role = message["content"], message["role"]
    if content is None and role == "assistant" and message.get("tool_calls"):
        return ""
    if isinstance(content, list) and role == "user":
        kinds = [block.get("type") if isinstance(block, dict) else None for block in content]
        unsupported = next((str(kind) for kind in kinds if kind not in ("text", "image_url")), "")
        blank = all(kind == "text" for kind in kinds) and not any((_text(block) or "").strip() for block in content)
        return f"{{}} has a block of type {_named(unsupported)}" if unsupported else _EMPTY if blank else ""
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
    """Return a problem unless each call is followed by its result before any other message."""
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

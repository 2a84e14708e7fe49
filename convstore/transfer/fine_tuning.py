"""The rules of OpenAI's fine-tuning for chat examples, checked turn by turn before a line is written.

Layer 6. One message that breaks a rule makes OpenAI refuse the whole file; so its turn is left out, and the report says
why. Rules: https://platform.openai.com/docs/guides/supervised-fine-tuning
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["as_training", "training_problem"]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNSAID = frozenset({"thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call", "function_call"})
"""Blocks of an answer that no training message holds: its calls stand beside the content."""
_SHOWN_CHARACTERS = 60
_EMPTY = "the content of {} is empty"

_Message = dict[str, Any]


def as_training(message: _Message) -> _Message:
    """A message with the texts of its blocks as one text, as answers and results must have; others stay as they are.

    >>> as_training({"role": "assistant", "content": [{"type": "thinking"}, {"type": "text", "text": "Yes."}]})
    {'role': 'assistant', 'content': 'Yes.'}
    """
    content = message["content"]
    if message["role"] == "user" or not isinstance(content, list):
        return message
    said = [block for block in content if not (isinstance(block, dict) and block.get("type") in _UNSAID)]
    texts = [block if isinstance(block, str) else _text(block) for block in said]
    if any(text is None for text in texts):
        return message
    return {**message, "content": "\n".join(filter(None, texts)) or (None if message.get("tool_calls") else "")}


def training_problem(messages: Sequence[_Message], *, needs_answer: bool = True) -> str:
    """What makes OpenAI refuse the messages of a turn, "" for nothing.

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
        odd = next((str(kind) for kind in kinds if kind not in ("text", "image_url")), "")
        blank = all(kind == "text" for kind in kinds) and not any((_text(block) or "").strip() for block in content)
        return f"{{}} has a block of type {_named(odd)}" if odd else _EMPTY if blank else ""
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
    """Each call has one result, behind it and before anything else is said."""
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
    """A role or a type in a line of ours, which `str.format` gives back as it is."""
    return repr(str(value)[:_SHOWN_CHARACTERS]).replace("{", "{{").replace("}", "}}")


def _text(block: Any) -> str | None:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else None


def _is_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError, RecursionError):
        return False

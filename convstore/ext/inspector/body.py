"""Break a message into the parts that a page shows: texts, calls, and other content as JSON.

Floor 7, pure. A page shows the beginning of each message; the page of one message shows everything, slice by slice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage
from markupsafe import Markup

from convstore.ext.inspector.text import clip, pretty, rendered
from convstore.messages.text import text_of

__all__ = ["Body", "Piece", "as_json", "body_of", "whole_parts"]

_MARKDOWN = frozenset({"human", "ai", "system"})


class Piece(NamedTuple):
    """A part of a message: its heading, and its text as markup or as it is."""

    heading: str
    text: str | Markup
    is_code: bool = False


class Body(NamedTuple):
    """The beginning of a message, and the number of characters left out."""

    pieces: list[Piece]
    left: int


def body_of(message: BaseMessage, limit: int, *, is_plain: bool = False) -> Body:
    """Return the beginning of a message, of about `limit` bytes; with `is_plain` no text is Markdown."""
    pieces, left = [], 0
    for heading, text, is_markdown in _texts(message):
        is_code = is_plain or not is_markdown
        beginning = clip(text, max(limit, 0))
        left += beginning.left
        limit -= len(beginning)
        if beginning or not text:
            shown = str(beginning) if is_code else rendered(beginning)
            pieces.append(Piece(heading, shown, is_code))
    return Body([piece for piece in pieces if piece.text or piece.heading], left)


def whole_parts(message: BaseMessage, artifact: Any = None) -> dict[str, str]:
    """Return every part of a message as text, by name, without empty ones."""
    content = message.content
    parts = {
        "content": content if isinstance(content, str) else as_json(content),
        "tool calls": as_json(message.tool_calls) if isinstance(message, AIMessage) and message.tool_calls else "",
        "invalid tool calls": _invalid(message),
        "artifact": "" if artifact is None else as_json(artifact),
        "usage": as_json(message.usage_metadata) if isinstance(message, AIMessage) and message.usage_metadata else "",
        "response metadata": as_json(message.response_metadata) if message.response_metadata else "",
        "additional fields": as_json(message.additional_kwargs) if message.additional_kwargs else "",
    }
    return {name: text for name, text in parts.items() if text} or {"content": ""}


def as_json(value: Any) -> str:
    """Return a value as indented JSON; values that JSON does not have are shown as Python writes them."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return text_of(value)


def _texts(message: BaseMessage) -> Iterator[tuple[str, str, bool]]:
    """Yield heading and text of each part of a message; True for a text that may be Markdown."""
    content = message.content
    is_markdown = message.type in _MARKDOWN
    for block in [content] if isinstance(content, str) else content:
        text = block if isinstance(block, str) else _text_in(block)
        if text is not None:
            yield "", text if is_markdown else pretty(text), is_markdown
        else:
            yield _name_of(block), as_json(block), False
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            yield f"calls {call['name']}", as_json(call["args"]), False
        for invalid in message.invalid_tool_calls:
            yield f"calls {invalid.get('name')} with invalid arguments", str(invalid.get("args") or ""), False


def _text_in(block: Any) -> str | None:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _name_of(block: Any) -> str:
    name = block.get("type") if isinstance(block, dict) else None
    return name if isinstance(name, str) else "content"


def _invalid(message: BaseMessage) -> str:
    return as_json(message.invalid_tool_calls) if isinstance(message, AIMessage) and message.invalid_tool_calls else ""

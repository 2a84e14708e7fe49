"""Measure messages in UTF-8 bytes, the unit of a chain's limits, and divide items into groups by size.

These parts of a message count:

- texts;
- a call: its id, the word ``function``, its name and its arguments as JSON text; once, even if it is both in
  `tool_calls` and in a content block;
- a result: its call id, its name and its content;
- media: their length.

Reasoning does not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.messages.media import KINDS, block_type, is_media, read_media
from convstore.messages.reasoning import without_reasoning
from convstore.messages.tool_calls import arguments_of, called_in, calls_of

_T = TypeVar("_T")


class WrittenCall(NamedTuple):
    """A call with its arguments as JSON text, or as the invalid text that the model wrote."""

    id: str
    tool: str
    arguments: str


def bytes_of(text: str) -> int:
    """Return the size of a text in bytes; a lone surrogate has three.

    >>> bytes_of("naïve"), bytes_of(chr(0xD800))
    (6, 3)
    """
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_text(value: Any) -> str:
    """Return a value as JSON text. Values that JSON cannot express are written with ``str``."""
    return json.dumps(value, ensure_ascii=False, default=str)


def written_calls(message: BaseMessage) -> list[WrittenCall]:
    """Return the calls that `tool_calls.calls_of` finds, in its order, with their arguments.

    >>> written_calls(AIMessage("", tool_calls=[{"name": "search", "args": {"q": "orca"}, "id": "call_1"}]))
    [WrittenCall(id='call_1', tool='search', arguments='{"q": "orca"}')]
    """
    if not isinstance(message, AIMessage):
        return []
    written: list[WrittenCall] = []
    for call, given in zip(calls_of(message), arguments_of(message), strict=True):
        text = given if isinstance(given, str) else json_text(given)
        written.append(WrittenCall(call.id, call.tool, text))
    return written


def size_of(message: BaseMessage) -> int:
    """Return the size of a message in bytes, as a chain counts it.

    >>> size_of(ToolMessage("found", name="search", tool_call_id="call_1"))
    17
    >>> size_of(AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call_1"}]))
    22
    """
    calls = written_calls(message)
    size = sum(
        bytes_of(call.id) + len("function") + bytes_of(call.tool + call.arguments) for call in calls
    )
    if isinstance(message, ToolMessage):
        size += bytes_of(message.tool_call_id + (message.name or ""))
    if isinstance(message.content, str):
        return size + bytes_of(message.content)
    counted = {call.id for call in calls}
    return size + sum(_block_size(block, counted) for block in without_reasoning(message).content)


def block_text(block: Any) -> str | None:
    """Return the text of a content block, or of a document of plain text with its title; None for any other block.

    >>> block_text({"type": "text", "text": "Four."}), block_text("Four."), block_text({"type": "image"})
    ('Four.', 'Four.', None)
    """
    if isinstance(block, str):
        return block
    if (
        isinstance(block, Mapping)
        and block_type(block) not in KINDS
        and isinstance(block.get("text"), str)
    ):
        return str(block["text"])
    return _document_text(block)


def _document_text(block: Mapping[str, Any]) -> str | None:
    source = block.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "text":
        return None
    texts = (block.get("title"), block.get("context"), source.get("data"))
    return "\n".join(text for text in texts if isinstance(text, str) and text) or None


def media_bytes(block: Any) -> int:
    """Return the length of the data of a media block, or else of its URL or id; 0 without these, and for other blocks.

    >>> media_bytes({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}})
    4
    """
    if not is_media(block):
        return 0
    found = read_media(block)
    held = found.data or found.url or found.file_id
    return len(held) if isinstance(held, bytes) else bytes_of(held)


def _block_size(block: Any, counted: set[str]) -> int:
    text = block_text(block)
    if text is not None:
        return bytes_of(text)
    if called_in(block) in counted:
        return 0
    return media_bytes(block) or bytes_of(json_text(block))


def packed(items: Iterable[_T], *, limit: int, size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield the items in order, in groups as large as the limit allows; an item above it is a group of its own.

    >>> list(packed(["a", "b", "ccc", "d"], limit=2, size=len))
    [['a', 'b'], ['ccc'], ['d']]
    """
    group: list[_T] = []
    total = 0
    for item in items:
        needed = size(item)
        if group and total + needed > limit:
            yield group
            group = []
            total = 0
        group.append(item)
        total += needed
    if group:
        yield group

"""Convert content blocks that are sources into items, by block type.

The formats are those that Anthropic, OpenAI, LangChain and MCP document. An item has every field of its block except
binary and encrypted data, which only the message contains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from convstore.messages.media import block_type
from convstore.messages.values import is_text
from convstore.sources.source import first_text, plain_item, text_in

_Block = dict[Any, Any]

_BYTES = ("base64", "blob", "data", "encrypted_content")

TEXTS = frozenset({"text", "text-plain", "input_text", "output_text"})
"""Text blocks. One is a source only with a title or an address, but it may cite sources or contain them as JSON."""

_MEDIA = frozenset({"audio", "image", "image_url", "reasoning", "thinking", "video"})

HOLDERS = {
    "file_search_call": "results",
    "mcp_tool_result": "content",
    "message": "content",
    "non_standard": "value",
    "server_tool_result": "output",
    "tool_result": "content",
    "web_fetch_tool_result": "content",
    "web_search_call": "action",
    "web_search_tool_result": "content",
}
"""Container blocks, and the key of their contents, which may have any format."""


def is_block(value: Any) -> bool:
    """Return True if a dict in a list is a content block, not an item that happens to have a type.

    Text and media blocks have no title, and blocks that are sources have no text key of their own; items do.

    >>> is_block({"type": "video", "url": "https://a"}), is_block({"type": "video", "url": "https://a", "title": "A"})
    (True, False)
    """
    if type(value) is not dict or "type" not in value:
        return False
    kind = block_type(value)
    if kind in TEXTS or kind in _MEDIA:
        return not first_text(value, ("title",))
    return kind in HOLDERS or (
        kind in BLOCKS and not first_text(value, ("content", "text", "snippet", "body"))
    )


def item_of_block(block: Any) -> _Block | None:
    """Convert a content block to an item; None for other types, and for a block without text, title and address.

    >>> item_of_block({"type": "search_result", "source": "https://a", "content": [{"type": "text", "text": "…"}]})
    {'content': '…', 'url': 'https://a', 'type': 'search_result'}
    >>> item_of_block({"type": "text", "text": "…"}) is None
    True
    """
    convert = BLOCKS.get(block_type(block))
    item = convert(block) if convert else None
    return item if item and (item["content"] or first_text(item, ("title", "url"))) else None


def _document(block: _Block) -> _Block:
    """Convert a document of Anthropic: ``source`` has a text, a list of text blocks, an address or base64 data."""
    source = block.get("source")
    if type(source) is not dict:
        key = first_text(block, ("text", "content", "page_content"))
        return plain_item(block, text_in(block.get(key)), without=(key,))
    text = text_in(source.get("data" if source.get("type") == "text" else "content"))
    rest = {key: value for key, value in source.items() if key not in ("content", "url", *_BYTES)}
    address = {"url": source["url"]} if first_text(source, ("url",)) else {}
    return plain_item({**block, "source": rest, **address}, text, without=("content",))


def _web_search_result(block: _Block) -> _Block:
    """Convert a web search result of Anthropic: title and address. Its text is encrypted; only citations show it."""
    key = first_text(block, ("content", "text", "snippet"))
    return plain_item(block, text_in(block.get(key)), without=(key, *_BYTES))


def _web_fetch_result(block: _Block) -> _Block:
    """Convert a fetched page of Anthropic: a document with the address it was fetched from."""
    inner = block.get("content")
    item = _document(inner) if type(inner) is dict else {"content": ""}
    return {**item, **{key: value for key, value in block.items() if key != "content"}}


def _titled_text(block: _Block) -> _Block | None:
    """Convert a text block of LangChain, which is a source only if it has a title or an address."""
    if not first_text(block, ("title", "url")):
        return None
    text = block.get("text")
    return plain_item(block, text if is_text(text) else "", without=("text", *_BYTES))


def _file(block: _Block) -> _Block | None:
    """Convert a file block, which LangChain's MCP adapters create for a resource link; a data URL is not a link."""
    url = block.get("url")
    is_link = is_text(url) and not url.startswith("data:")
    return plain_item(block, "", title=["filename"], without=_BYTES) if is_link else None


def _resource(block: _Block) -> _Block | None:
    """Convert a resource of MCP with its text or its bytes."""
    inner = block.get("resource")
    if type(inner) is not dict:
        return None
    fields = {**{key: value for key, value in block.items() if key != "resource"}, **inner}
    text = inner.get("text")
    return plain_item(fields, text if is_text(text) else "", url=["uri"], without=("text", *_BYTES))


BLOCKS: dict[str, Callable[[_Block], _Block | None]] = {
    "document": _document,
    "file": _file,
    "resource": _resource,
    "resource_link": partial(plain_item, text="", title=["name"], url=["uri"]),
    # Of Anthropic or LangChain: ``source`` is an address or another name of the source.
    "search_result": lambda item: plain_item(
        item, text_in(item.get("content")), url=["source"], without=("content",)
    ),
    "web_fetch_result": _web_fetch_result,
    "web_search_result": _web_search_result,
    **dict.fromkeys(sorted(TEXTS), _titled_text),
}
"""Converters to items by block type."""

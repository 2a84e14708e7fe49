"""Recognise images, audio and files among content blocks, in the formats of LangChain and of the providers.

A description holds the type, the name and the size of a block, without its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from langchain_core.messages import BaseMessage

KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "image_generation_call": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "document_url": "file",
    "media": "file",
}
"""Types of content blocks that hold or name media, with the word for each."""
_IN_RESULTS = frozenset({"image", "image_url", "document", "file"})
_HOLDERS = ("source", "image_url", "video_url", "input_audio", "file", "extras", "metadata")
_BYTES = (
    *("base64", "data", "file_data", "result"),
    *("url", "image_url", "video_url", "file_url", "document_url"),
)
_NAMES = ("filename", "file_name", "name", "title")
_MIME_TYPES = ("mime_type", "media_type")
_USUAL_BASE64 = str.maketrans("-_", "+/")
_NAME_CHARACTERS = 100
_MIME_CHARACTERS = 60


def block_type(block: Any) -> str:
    """Return the type of a content block; "" for a text or a block without one."""
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else ""


def is_media(block: Any) -> bool:
    """Return True for a content block with an image, audio, a video or a file; a file of plain text is text.

    >>> is_media({"type": "image", "url": "https://example.org/cat.png"}), is_media({"type": "text", "text": "cat"})
    (True, False)
    """
    if block_type(block) not in KINDS:
        return False
    source = block.get("source")
    inner = source.get("type") if type(source) is dict else block.get("source_type")
    return inner not in ("text", "content")


def has_media(message: BaseMessage) -> bool:
    """Return True if an image, audio, a video or a file is in the content of a message."""
    content: Any = message.content
    return type(content) is list and any(map(is_media, content))


def media_description(block: dict[str, Any]) -> str:
    """Return type, name and size of a media block in one line; equal blocks give equal lines.

    >>> media_description({"type": "file", "base64": "QUJD", "mime_type": "application/pdf", "filename": "terms.pdf"})
    'file "terms.pdf", application/pdf, 3 bytes'
    """
    values = list(_values(block))
    data = media_data(block)
    address = _address_in(data)
    name = _first_text(values, _NAMES) or address
    mime = _first_text(values, _MIME_TYPES)
    about = KINDS[block["type"]]
    if name:
        about += f" {_quoted(name)}"
    if mime.isprintable() and 0 < len(mime) <= _MIME_CHARACTERS:
        about += f", {mime}"
    if data is None or address:
        return about
    return f"{about}, {_size(data):,} bytes"


def _address_in(data: Any) -> str:
    """Return the address that a media block names; "" if it holds its data."""
    is_address = isinstance(data, str) and "://" in data[:20] and not data.startswith("data:")
    return data if is_address else ""


def _first_text(values: Iterable[tuple[str, Any]], keys: Collection[str]) -> str:
    """Return the first text under one of some keys, "" without one."""
    for key, value in values:
        if key in keys and isinstance(value, str) and value:
            return value
    return ""


def media_data(block: dict[str, Any]) -> str | bytes | None:
    """Return what a media block holds or names: bytes, Base64, a data URL, or the address of a file elsewhere.

    >>> media_data({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}})
    'data:image/png;base64,QUJD'
    """
    return next((value for key, value in _values(block) if key in _BYTES), None)


def media_block(mime_type: str, *, kind: str = "", name: str = "", **held: str) -> dict[str, str]:
    """Return LangChain's content block of an image, audio, a video or a file, by default as its MIME type says.

    It holds the data as `base64`, or names a `url` or a `file_id`. Base64 in the alphabet for addresses, which pydantic
    writes, becomes the usual one.

    >>> media_block("image/png", base64="_-8=")
    {'type': 'image', 'mime_type': 'image/png', 'base64': '/+8='}
    """
    kind = kind or mime_type.partition("/")[0]
    about = {"mime_type": mime_type, "filename": name}
    if "base64" in held:
        held["base64"] = held["base64"].translate(_USUAL_BASE64)
    known = {key: value for key, value in about.items() if value}
    return {"type": kind if kind in ("image", "audio", "video") else "file", **known, **held}


def shown_block(block: Any) -> dict[str, Any] | None:
    """Return a media block in a form that LangChain accepts in a tool result; None if there is none.

    >>> shown_block({"type": "input_image", "image_url": "https://a/b.png"})
    {'type': 'image_url', 'image_url': {'url': 'https://a/b.png'}}
    """
    if not is_media(block):
        return None
    if block["type"] == "input_image" and isinstance(address := block.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": address}}
    return block if block["type"] in _IN_RESULTS else None


def _values(block: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the strings and bytes of a block and of the dicts in it that describe it."""
    for holder in (block, *(block[key] for key in _HOLDERS if type(block.get(key)) is dict)):
        for key, value in holder.items():
            if isinstance(value, str | bytes) and type(key) is str:
                yield key, value


def _size(data: str | bytes) -> int:
    """Return the size of the data in bytes; strings are taken for Base64."""
    if isinstance(data, bytes):
        return len(data)
    start = data.find(",") + 1 if data.startswith("data:") else 0
    return (len(data) - start) * 3 // 4 - data[-2:].count("=")


def _quoted(name: str) -> str:
    shown = name[:_NAME_CHARACTERS]
    return json.dumps(shown, ensure_ascii=not shown.isprintable())

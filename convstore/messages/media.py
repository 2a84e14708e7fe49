"""Recognise images, audio, video and files among content blocks, in the formats of LangChain and of the providers.

A description has the type, the name and the size of a block, but not its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
"""Types of content blocks with media, and the kind of each."""
_IN_RESULTS = frozenset({"image", "image_url", "document", "file"})
_HOLDERS = (
    *("source", "image_url", "video_url", "input_audio", "file"),
    *("image", "audio", "video", "document", "extras", "metadata"),
)
_DATA = ("base64", "data", "file_data", "bytes", "result")
_URLS = ("url", "image_url", "video_url", "file_url", "document_url")
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


class MediaFields(NamedTuple):
    """The fields of a media block in the format of any API; "" for a missing field.

    Attributes:
        data: Its bytes, or their Base64 without the head of a data URL.
        url: The address of the file.
        file_id: The id of an upload.
        name: Name of the file.
        label: The MIME type in the block, in lower case.
        mime_type: The label, or else the type of the data URL, or of the format of an image or a recording.
    """

    data: str | bytes = ""
    url: str = ""
    file_id: str = ""
    name: str = ""
    label: str = ""
    mime_type: str = ""


def read_media(block: Mapping[str, Any]) -> MediaFields:
    """Return the fields of a media block of any format.

    >>> read_media({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}})[0::5]
    ('QUJD', 'image/png')
    """
    holders = [block, *media_holders(block)]
    data: Any = _first(holders, _DATA, (str, bytes))
    url = _first(holders, _URLS)
    label = _first(holders, _MIME_TYPES).lower()
    head = ""
    written = data if isinstance(data, str) and data.startswith("data:") else url
    if written.startswith("data:") and "," in written:
        head, _, data = written.partition(",")
        url = ""
    elif isinstance(data, str) and "://" in data[:20]:
        url = data
        data = ""
    is_id = "id" in (_first(holders, ("source_type",)), _first(holders[1:], ("type",)))
    return MediaFields(
        data,
        url,
        _first(holders, ("file_id", "id") if is_id else ("file_id",)),
        _first(holders, _NAMES),
        label,
        label or head[5:].partition(";")[0].lower() or _type_by_format(holders),
    )


def _type_by_format(holders: Sequence[Mapping[str, Any]]) -> str:
    """Return the type of an image or a recording from its `format`, such as "mp3"; "" for any other block."""
    kind = KINDS.get(block_type(holders[0]), "file")
    form = "" if kind == "file" else _first(holders, ("format",))
    return f"{kind}/{form}" if form else ""


def media_holders(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the inner dicts of a media block that describe it; Amazon Bedrock nests the data two levels deep."""
    holders = [block[key] for key in _HOLDERS if type(block.get(key)) is dict]
    inner = (holder.get("source") for holder in holders)
    return [*holders, *(source for source in inner if type(source) is dict)]


def _first(holders: Sequence[Mapping[str, Any]], keys: Sequence[str], kinds: Any = str) -> Any:
    """Return the first value of some types under one of the keys that is not empty; "" without one."""
    for holder in holders:
        for key in keys:
            if isinstance(value := holder.get(key), kinds) and value:
                return value
    return ""


def media_description(block: dict[str, Any]) -> str:
    """Return type, name and size of a media block on one line; equal blocks give equal lines.

    >>> media_description({"type": "file", "base64": "QUJD", "mime_type": "application/pdf", "filename": "terms.pdf"})
    'file "terms.pdf", application/pdf, 3 bytes'
    """
    found = read_media(block)
    about = KINDS[block["type"]]
    if name := found.name or ("" if found.data else found.url):
        about += f" {_quoted(name)}"
    if found.label.isprintable() and 0 < len(found.label) <= _MIME_CHARACTERS:
        about += f", {found.label}"
    return f"{about}, {data_bytes(found.data):,} bytes" if found.data else about


def data_bytes(data: str | bytes) -> int:
    """Return the length of data in bytes; a text is Base64."""
    return len(data) if isinstance(data, bytes) else len(data) * 3 // 4 - data[-2:].count("=")


def media_block(mime_type: str, *, kind: str = "", name: str = "", **held: str) -> dict[str, str]:
    """Return LangChain's content block of an image, audio, a video or a file; the default kind follows the MIME type.

    It has the data as `base64`, or a `url` or a `file_id`. Base64 in the URL-safe alphabet, which pydantic writes, is
    converted to the standard one.

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
    """Return a media block in a form that LangChain accepts in a tool result; None if that is not possible.

    >>> shown_block({"type": "input_image", "image_url": "https://a/b.png"})
    {'type': 'image_url', 'image_url': {'url': 'https://a/b.png'}}
    """
    if not is_media(block):
        return None
    if block["type"] == "input_image" and isinstance(address := block.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": address}}
    return block if block["type"] in _IN_RESULTS else None


def _quoted(name: str) -> str:
    shown = name[:_NAME_CHARACTERS]
    return json.dumps(shown, ensure_ascii=not shown.isprintable())

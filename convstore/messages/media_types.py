"""Detect the type of an image or a PDF from its bytes, and correct wrong labels.

Providers accept only registered types, and reject a request with another label: "image/jpg",
"application/octet-stream", or "image/png" on a JPEG. All files of a format begin with the same bytes, so the first
Base64 characters identify it.
"""

from __future__ import annotations

from base64 import b64encode
from operator import is_
from typing import Any, Final, TypeVar

from langchain_core.messages import BaseMessage

from convstore.messages.media import KINDS, is_media, read_media

_Message = TypeVar("_Message", bound=BaseMessage)

_STARTS: Final = {
    "/9j/": "image/jpeg",
    "iVBORw0KGgo": "image/png",
    "R0lGOD": "image/gif",
    "JVBERi": "application/pdf",
}
"""The types by the first Base64 characters of each format."""
_HEAD_BYTES: Final = 12
_LABELS: Final = ("mime_type", "media_type")
_DATA: Final = ("base64", "data")
_HOLDERS: Final = ("source", "image_url", "file")
_URLS: Final = ("url", "image_url", "file_data", "document_url", "data", "base64")
_FILE_NAME: Final = "file.pdf"
_OTHER_NAMES: Final = {"document": "image", "file": "image", "image": "file"}
"""Types of blocks whose format is the same for images and files, with the other type of each."""


def true_type(data: str | bytes) -> str:
    """Return the type of an image or a PDF from the beginning of its bytes or their Base64, "" for other data.

    >>> true_type("/9j/4AAQSkZJRg=="), true_type("JVBERi0xLjQ="), true_type("QUJD")
    ('image/jpeg', 'application/pdf', '')
    """
    if isinstance(data, bytes):
        data = b64encode(data[:_HEAD_BYTES]).decode()
    if data.startswith("UklGR") and data[11:16] == "XRUJQ":
        return "image/webp"
    return next((kind for start, kind in _STARTS.items() if data.startswith(start)), "")


def true_kind(kind: str, mime_type: str) -> str:
    """Return "image" or "file" for data of a detected type, else the given kind.

    >>> true_kind("file", "image/png"), true_kind("image", "application/pdf"), true_kind("audio", "")
    ('image', 'file', 'audio')
    """
    if mime_type.startswith("image/"):
        return "image"
    return "file" if mime_type == "application/pdf" else kind


def with_true_types(message: _Message) -> _Message:
    """Return a message whose images and PDFs have correct labels; the same object if unchanged.

    >>> from langchain_core.messages import HumanMessage
    >>> image = {"type": "image", "base64": "/9j/4AAQ", "mime_type": "image/png"}
    >>> with_true_types(HumanMessage([image])).content[0]["mime_type"]
    'image/jpeg'
    """
    content: Any = message.content
    if type(content) is not list or not any(map(is_media, content)):
        return message
    blocks = [_with_true_type(block) if is_media(block) else block for block in content]
    if all(map(is_, blocks, content)):
        return message
    return message.model_copy(update={"content": blocks})


def _with_true_type(block: dict[str, Any]) -> dict[str, Any]:
    """Return a media block labelled with the type of its bytes; the same object if unchanged."""
    data = read_media(block).data
    mime_type = "" if isinstance(data, bytes) else true_type(data)
    if not mime_type:
        return block
    made = _with_label(block, mime_type)
    for key in _HOLDERS:
        if isinstance(block.get(key), dict):
            made[key] = _with_label(block[key], mime_type)
    kind = KINDS[block["type"]]
    if true_kind(kind, mime_type) != kind:
        made = _of_other_kind(made, f"data:{mime_type};base64,{data!s}")
    return block if made == block else made


def _of_other_kind(block: dict[str, Any], url: str) -> dict[str, Any]:
    """Convert an image to a file block of the same format, or a file to an image; unchanged if that does not exist."""
    name = block["type"]
    if name == "image_url":
        return {"type": "file", "file": {"file_data": url, "filename": _FILE_NAME}}
    if name == "input_image":
        return {"type": "input_file", "file_data": url, "filename": _FILE_NAME}
    if name == "input_file":
        return {"type": "input_image", "image_url": url}
    if name == "document_url" or isinstance(block.get("file"), dict):
        return {"type": "image_url", "image_url": {"url": url}}
    if name == "image" and "source" in block:
        return {**block, "type": "document"}
    return {**block, "type": _OTHER_NAMES.get(name, name)}


def _with_label(holder: dict[str, Any], mime_type: str) -> dict[str, Any]:
    """Return a block, or a dict in it, with another type as its label and in its data URLs."""
    made = dict(holder)
    for key in _URLS:
        value = made.get(key)
        if isinstance(value, str) and value.startswith("data:"):
            made[key] = f"data:{mime_type};base64,{value.partition(',')[2]}"
    label = next((key for key in _LABELS if key in made), "")
    is_plain = any(isinstance(made.get(key), str) for key in _DATA)
    if label or is_plain:
        made[label or "mime_type"] = mime_type
    return made

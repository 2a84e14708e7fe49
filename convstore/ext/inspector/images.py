"""Find the images that messages hold, of four types that cannot run anything.

The first bytes decide the type of an image; what its block says of itself is not trusted. An SVG is never sent, because
it may hold a script. Images that a block only names by an address are not loaded.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.messages.media import KINDS, block_type, media_data

_MAX_CHARACTERS = 7_000_000
"""Maximum length of an image in Base64, about 5 MB."""

_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
_PLACEHOLDER = re.compile(r"\[image\b.{0,400}, [\d,]+ bytes; left out to save context, call ")


def is_image(block: dict[str, Any]) -> bool:
    """Return True for a content block that holds an image; one that names an address elsewhere holds none."""
    data = media_data(block) if KINDS.get(block_type(block)) == "image" else None
    return data is not None and (isinstance(data, bytes) or data.startswith("data:") or "://" not in data[:20])


def stands_for_image(text: str) -> bool:
    """Return True for the placeholder of an image that the log holds.

    >>> stands_for_image("[image, image/png, 3 bytes; left out to save context, call x")
    True
    """
    return bool(_PLACEHOLDER.match(text))


def image_in(message: BaseMessage, number: int) -> tuple[bytes, str]:
    """Return the image in a content block of a message, counted from 1, with its type; an empty type for none."""
    blocks = message.content if isinstance(message.content, list) else []
    block = blocks[number - 1] if 0 < number <= len(blocks) else None
    data = _bytes_in(block) if isinstance(block, dict) and is_image(block) else b""
    return data, next((name for name, beginning in _TYPES.items() if beginning.match(data)), "")


def image_numbers(message: BaseMessage) -> list[int]:
    """Return the numbers of the images in a message, for `image_in`."""
    blocks = message.content if isinstance(message.content, list) else []
    return [number for number, block in enumerate(blocks, 1) if isinstance(block, dict) and is_image(block)]


def _bytes_in(block: dict[str, Any]) -> bytes:
    """Return the bytes of an image; none if it is too large or no Base64."""
    data = media_data(block) or b""
    if len(data) > _MAX_CHARACTERS:
        return b""
    try:
        return data if isinstance(data, bytes) else base64.b64decode(data.rpartition(",")[2], validate=True)
    except ValueError:
        return b""

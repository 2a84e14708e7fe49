"""Find the images in messages, of four types that cannot contain scripts.

The first bytes decide the type of an image; the type in its block is not trusted. An SVG is never sent, because it may
contain a script. Images at an address are not loaded.
"""

from __future__ import annotations

import base64
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.messages.media import KINDS, block_type, read_media
from convstore.messages.media_types import true_type

_MAX_CHARACTERS = 7_000_000
"""Maximum length of an image in Base64, about 5 MB."""


def is_image(block: dict[str, Any]) -> bool:
    """Return True for a content block with the data of an image; False for one that only has an address."""
    return KINDS.get(block_type(block)) == "image" and bool(read_media(block).data)


def image_in(message: BaseMessage, number: int) -> tuple[bytes, str]:
    """Return the image in a content block of a message, counted from 1, with its type; "" if it is not an image."""
    block = images_in(message).get(number)
    data = _bytes_in(block) if block else b""
    mime_type = true_type(data)
    return data, mime_type if mime_type.startswith("image/") else ""


def images_in(message: BaseMessage) -> dict[int, dict[str, Any]]:
    """Return the content blocks with images by their numbers, for `image_in`."""
    blocks = message.content if isinstance(message.content, list) else []
    return {
        number: block
        for number, block in enumerate(blocks, 1)
        if isinstance(block, dict) and is_image(block)
    }


def _bytes_in(block: dict[str, Any]) -> bytes:
    """Return the bytes of an image; empty if it is too large or not valid Base64."""
    data = read_media(block).data
    if len(data) > _MAX_CHARACTERS:
        return b""
    try:
        return data if isinstance(data, bytes) else base64.b64decode(data, validate=True)
    except ValueError:
        return b""

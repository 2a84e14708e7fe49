"""Estimate the tokens of images, PDFs, audio and video from their bytes, as providers bill them.

Providers count what a file shows, not its length: patches of an image, pages of a PDF, seconds of a recording. All that
is read from headers, in bounded time: the beginning of an image or a recording, and at most 32 MB of a PDF.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
import zlib
from itertools import islice
from typing import Any, Final

from convstore.messages.media import KINDS, is_media, media_data

IMAGE_TOKENS: Final = 1_000
"""An image whose size is not known: one of common size with OpenAI (765 at 1024 x 1024) and Anthropic."""
PATCH: Final = 28
MOST_OF_IMAGE: Final = 1_600
"""An image costs a token for each patch of 28 x 28 pixels, up to this (Anthropic, "Vision")."""
PAGE_TOKENS: Final = 2_400
"""A page of a PDF, shown as text and image (Anthropic, "PDF support": 1,500 to 3,000)."""
PAGE_BYTES: Final = 50_000
AUDIO_TOKENS: Final = 32
"""A second of audio (Google, "Tokens"; OpenAI has 10 to 20)."""
AUDIO_BYTES: Final = 16_000
VIDEO_TOKENS: Final = 300
"""A second of video with sound (Google, "Tokens": 263 and 32)."""
VIDEO_BYTES: Final = 250_000

_HEAD: Final = 400_000
"""Characters of Base64 in which the size of an image or the form of a recording stands."""
_MOST_OF_PDF: Final = 32 << 20
_MOST_UNPACKED: Final = 8 << 20
_PAGE: Final = re.compile(rb"/Type\s{0,9}/Page(?![a-zA-Z])")
_TREE: Final = re.compile(rb"/Type\s{0,9}/Pages\b")
_COUNT: Final = re.compile(rb"/Count\s{1,9}(\d{1,7})")
_STREAM: Final = re.compile(rb"/ObjStm")
_MOST_OBJECTS: Final = 2_000
_STREAM_BYTES: Final = 256_000
_NEAR: Final = 2_000
_NO_SIZE: Final = frozenset({0x01, 0xFF, *range(0xD0, 0xD9)})
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def media_tokens(block: Any) -> int | None:
    """Return the tokens of a media block; None for any other block, and for a file that only an address names.

    >>> media_tokens({"type": "image", "url": "https://example.org/cat.png"}), media_tokens({"type": "text"})
    (1000, None)
    """
    if not is_media(block):
        return None
    kind = KINDS[block["type"]]
    data = media_data(block)
    if kind == "image":
        return _image_tokens(data)
    size = _length(data)
    if kind == "audio":
        return _by_time(_seconds(_decoded(data), size), AUDIO_TOKENS)
    if kind == "video":
        return _by_time(size / VIDEO_BYTES, VIDEO_TOKENS)
    return _file_tokens(block, data, size)


def _by_time(seconds: float, rate: int) -> int:
    return math.ceil(seconds * rate)


def _file_tokens(block: Any, data: str | bytes | None, size: int) -> int | None:
    """Return the tokens of a file: of a text those of its characters, of any other those of its pages."""
    if not size:
        return None
    if _is_text(block, data):
        return math.ceil(size / 4)
    pages = 0
    if _decoded(data, 8).startswith(b"%PDF"):
        pages = pages_of(_decoded(data, _MOST_OF_PDF * 4 // 3))
    return PAGE_TOKENS * (pages or math.ceil(size / PAGE_BYTES))


def _is_text(block: Any, data: str | bytes | None) -> bool:
    """Return True for a file that is labelled as a text."""
    holders = [block, *(value for value in block.values() if isinstance(value, dict))]
    types = [str(holder.get(key)) for holder in holders for key in ("mime_type", "media_type")]
    is_text = any(kind.startswith("text/") for kind in types)
    return is_text or (isinstance(data, str) and data.startswith("data:text/"))


def _image_tokens(data: str | bytes | None) -> int:
    found = pixels_of(_decoded(data))
    if found is None:
        return IMAGE_TOKENS
    width, height = found
    patches = math.ceil(width / PATCH) * math.ceil(height / PATCH)
    return max(1, min(patches, MOST_OF_IMAGE))


def _length(data: str | bytes | None) -> int:
    """Return the length of the data in bytes; Base64 has four characters for three."""
    if data is None or (isinstance(data, str) and "://" in data[:20]):
        return 0
    return len(data) * 3 // 4 if isinstance(data, str) else len(data)


def _decoded(data: str | bytes | None, most: int = _HEAD) -> bytes:
    """Return the beginning of the data; empty for an address or data that is not Base64."""
    if isinstance(data, bytes):
        return data[:most]
    if data is None or "://" in data[:20]:
        return b""
    start = data.find(",") + 1 if data.startswith("data:") else 0
    head = data[start : start + most]
    try:
        return binascii.a2b_base64(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def pixels_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, WebP or JPEG from its beginning; None for anything else.

    >>> pixels_of(b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little"))
    (640, 480)
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack(">II", data[16:24])
            return width, height
        if data.startswith((b"GIF87a", b"GIF89a")):
            width, height = struct.unpack("<HH", data[6:10])
            return width, height
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
        return _jpeg(data) if data.startswith(b"\xff\xd8") else None
    except struct.error:  # it is cut off
        return None


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return (
            1 + int.from_bytes(data[24:27], "little"),
            1 + int.from_bytes(data[27:30], "little"),
        )
    if kind == b"VP8L" and len(data) >= 25:
        packed = int.from_bytes(data[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame of a JPEG; its segments before are skipped."""
    at = 2
    while at + 9 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker in _NO_SIZE:
            at += 1
            continue
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None


def pages_of(data: bytes) -> int:
    """Return the number of pages of a PDF, 0 if it does not tell.

    >>> pages_of(b"%PDF-1.4 1 0 obj << /Type /Pages /Count 3 >> endobj")
    3
    """
    left = _MOST_UNPACKED
    found = _pages_in(data)
    for stream in islice(_STREAM.finditer(data), _MOST_OBJECTS):
        start = data.find(b"stream", stream.end(), stream.end() + _NEAR)
        if start < 0 or left <= 0:
            break
        start += len(b"stream")
        packed = data[start : start + _STREAM_BYTES].lstrip(b"\r\n")
        try:
            unpacked = zlib.decompressobj().decompress(packed, left)
        except zlib.error:
            continue
        left -= len(unpacked)
        found = max(found, _pages_in(unpacked))
    return found


def _pages_in(data: bytes) -> int:
    """Return the larger of the number of pages and the counts of the page trees in some objects."""
    counts = [sum(1 for _ in _PAGE.finditer(data))]
    for tree in islice(_TREE.finditer(data), _MOST_OBJECTS):
        start = max(0, data.rfind(b"<<", max(0, tree.start() - _NEAR), tree.start()))
        end = data.find(b">>", tree.end(), tree.end() + _NEAR)
        near = data[start : end if end >= 0 else tree.end() + _NEAR]
        counts += map(int, _COUNT.findall(near))
    return max(counts)


def _seconds(head: bytes, size: int) -> float:
    """Return the length of a WAV by its rate, of other audio by a usual one."""
    rate = AUDIO_BYTES
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        at = head.find(b"fmt ", 12, 4_000)
        if at >= 0:
            rate = int.from_bytes(head[at + 16 : at + 20], "little") or AUDIO_BYTES
    return size / rate

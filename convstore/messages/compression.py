"""A payload's text as compressed chunks, and back.

A chunk holds at most `CHUNK_BYTES` of UTF-8 text and is a zstd frame of its own, so that any range of characters
costs only the chunks that it touches. Chunks are cut between characters; what a chunk holds is counted in
characters, because pages are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise

import zstandard

__all__ = ["CHUNK_BYTES", "Chunk", "compress", "cut", "decompress"]

CHUNK_BYTES = 1_000_000
"""At most this many bytes of text in one chunk."""


_LEVEL = 3


_MOST_BYTES_EACH = 4
"""Of a character in UTF-8."""


_local = threading.local()


def cut(text: str, *, size: int = CHUNK_BYTES) -> list[int]:
    """Where each chunk ends, in characters; the last end is the length of the text.

    >>> cut("abcdef", size=4), cut("ééé", size=4), cut("")
    ([4, 6], [2, 3], [0])
    """
    if text.isascii():
        return [*range(size, len(text), size), len(text)]
    ends, start = [], 0
    while start < len(text):
        end = _fit(text, start, size)
        ends.append(end)
        start = end
    return ends


def compress(text: str, ends: list[int]) -> list[bytes]:
    """One frame for each chunk; lone surrogates are kept as they are."""
    compressor = _tools()[0]
    pieces = (text[start:end] for start, end in pairwise([0, *ends]))
    return [compressor.compress(piece.encode("utf-8", "surrogatepass")) for piece in pieces]


def decompress(frame: bytes, *, characters: int | None = None) -> str:
    """The text of one chunk; takes no more memory than a chunk needs, or than the characters that it is known to have.

    Raises:
        ValueError: Not a frame of ours, one that would grow beyond that, or one with another number of characters.
    """
    most = CHUNK_BYTES if characters is None else min(CHUNK_BYTES, _MOST_BYTES_EACH * characters)
    try:
        if zstandard.frame_content_size(frame) not in range(most + 1):
            raise ValueError("a frame that is larger than its chunk can be")
        text = _tools()[1].decompress(frame, max_output_size=most).decode("utf-8", "surrogatepass")
    except zstandard.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
    if characters is not None and len(text) != characters:
        raise ValueError(f"a chunk of {len(text):,} characters in the place of one of {characters:,}")
    return text


def _fit(text: str, start: int, size: int) -> int:
    """The end of the longest run from `start` that is not above `size` bytes."""
    run = text[start : start + size].encode("utf-8", "surrogatepass")
    if len(run) > size:
        while run[size] & 0xC0 == 0x80:
            size -= 1
        run = run[:size]
    return start + len(run.decode("utf-8", "surrogatepass"))


def _tools() -> tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor]:
    # zstandard's objects must not be used by two threads at once, and are worth keeping.
    if not hasattr(_local, "tools"):
        _local.tools = (zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True), zstandard.ZstdDecompressor())
    tools: tuple[zstandard.ZstdCompressor, zstandard.ZstdDecompressor] = _local.tools
    return tools


@dataclass(frozen=True, slots=True)
class Chunk:
    """One compressed piece of a payload; `number` counts the chunks of the whole batch."""

    number: int
    data: bytes

"""Find the chunks of a range of a payload, and join and decompress them; sends nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import PayloadRef
from convstore.messages.compression import decompress


def chunks_of(ref: PayloadRef, start: int, end: int) -> range:
    """Return the numbers of the chunks that contain a range of a payload."""
    first = bisect_right(ref.ends, start)
    last = min(bisect_left(ref.ends, end), len(ref.ends) - 1)
    return range(ref.chunk + min(first, last), ref.chunk + last + 1) if start < end else range(0)


def piece_of(ref: PayloadRef, start: int, end: int, chunks: Mapping[tuple[str, int], str]) -> str:
    """Return a range of a payload, given the texts of its chunks by token and number."""
    numbers = chunks_of(ref, start, end)
    if not numbers:
        return ""
    before = ref.ends[numbers.start - ref.chunk - 1] if numbers.start > ref.chunk else 0
    return "".join(chunks[ref.token, number] for number in numbers)[start - before : end - before]


def decompressed(frames: Sequence[tuple[str, Any, int]]) -> list[str]:
    """Return the texts of some chunks, each given as its key, its frame and its number of characters."""
    texts = []
    for key, frame, characters in frames:
        try:
            texts.append(decompress(frame, characters=characters))
        except (TypeError, ValueError) as error:
            raise CorruptDocumentError(key, str(error)) from error
    return texts

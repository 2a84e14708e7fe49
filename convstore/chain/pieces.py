"""Cut a long text into pieces that fit a limit, for a model that cannot take all of it at once.

Floor 1, pure. Joined, the pieces are the text again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["cut"]

_SEARCHED_SHARE: Final = 4


def cut(text: str, *, limit: int, size: Callable[[str], int], characters: int) -> Iterator[str]:
    """Yield the pieces of a text in order, cut at a space or line end if the last quarter of a piece has one.

    Args:
        text: Any text.
        limit: Maximum size of a piece. A single character may exceed it.
        size: Function that measures a piece.
        characters: Upper bound on the characters that can fit the limit.

    >>> list(cut("Ada likes orcas very much.", limit=12, size=len, characters=12))
    ['Ada likes ', 'orcas very ', 'much.']
    """
    start = 0
    while start < len(text):
        end = _end_of(text, start, limit=limit, size=size, characters=characters)
        yield text[start:end]
        start = end


def _end_of(text: str, start: int, *, limit: int, size: Callable[[str], int], characters: int) -> int:
    length = min(len(text) - start, max(characters, 1))
    while length > 1 and (taken := size(text[start : start + length])) > limit:
        length = max(1, min(length - 1, length * limit // taken))
    end = start + length
    if end == len(text):
        return end
    blank = max(text.rfind(mark, end - length // _SEARCHED_SHARE, end) for mark in (" ", "\n"))
    return blank + 1 if blank > start else end

"""Cuts a long text into pieces that fit a limit, for a model that cannot be shown all of it at once.

Layer 1, pure. Nothing is left out: joined, the pieces are the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["cut"]

_SEARCHED_SHARE: Final = 4


def cut(text: str, *, most: int, size: Callable[[str], int], characters: int) -> Iterator[str]:
    """The pieces of a text, in order, cut between words where the last quarter of a piece has a blank or a line end.

    Args:
        text: Any text.
        most: The limit of a piece; one character is a piece even where it is larger.
        size: What is limited.
        characters: At most this many characters can fit the limit.

    >>> list(cut("Ada likes orcas very much.", most=12, size=len, characters=12))
    ['Ada likes ', 'orcas very ', 'much.']
    """
    start = 0
    while start < len(text):
        end = _end_of(text, start, most=most, size=size, characters=characters)
        yield text[start:end]
        start = end


def _end_of(text: str, start: int, *, most: int, size: Callable[[str], int], characters: int) -> int:
    length = min(len(text) - start, max(characters, 1))
    while length > 1 and (taken := size(text[start : start + length])) > most:
        length = max(1, min(length - 1, length * most // taken))
    end = start + length
    if end == len(text):
        return end
    blank = max(text.rfind(mark, end - length // _SEARCHED_SHARE, end) for mark in (" ", "\n"))
    return blank + 1 if blank > start else end

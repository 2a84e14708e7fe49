"""Ranges of a message's payload, which stand in its body for the parts that are stored outside it.

Layer 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["PayloadRange", "PayloadReader"]


@dataclass(frozen=True, slots=True)
class PayloadRange:
    """Stands in a body for characters ``start`` to ``end`` of the message's payload.

    ``raw`` says that they are the str itself; otherwise they are the JSON text of a value.

    Attributes:
        start: First character.
        end: Behind the last character.
        raw: See above.
        about: Text with which a placeholder names the value.
        link: The id that the request and the result of a tool run by the provider share; "" for other values.
        is_media: The value is an image, audio or a file; `about` is its description.
        head: The beginning of a long text, "" if the body does not keep it.
        tail: The end of that text.
    """

    start: int
    end: int
    raw: bool
    about: str = ""
    link: str = ""
    is_media: bool = False
    head: str = ""
    tail: str = ""

    def plain(self) -> list[Any]:
        """Give its values in order, without those at the end that are empty."""
        plain = [self.start, self.end, self.raw, self.about, self.link, self.is_media, self.head, self.tail]
        while not plain[-1] and len(plain) > len(("start", "end", "raw")):
            plain.pop()
        return plain


class PayloadReader:
    """Reads the parts of one payload, each once: a damaged text could ask for the same ones without end."""

    def __init__(self, fetch: Callable[[int, int], str], limit: int | None) -> None:
        self._fetch, self._limit = fetch, limit
        self._length = self._end = 0

    def reach(self, part: PayloadRange) -> bool:
        """Return True if a part lies in what was read of the payload."""
        return self._limit is None or part.end <= self._limit

    def read(self, part: PayloadRange) -> str:
        """Give the characters of a part.

        Raises:
            ValueError: The parts that were read overlap.
        """
        self._length += part.end - part.start
        self._end = max(self._end, part.end)
        if not 0 <= part.start <= part.end or self._length > self._end:
            raise ValueError("parts of a payload overlap")
        return self._fetch(part.start, part.end)

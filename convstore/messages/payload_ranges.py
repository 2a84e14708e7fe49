"""References from a message's body to the parts of it that are stored in its payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PayloadRange:
    """A reference in a body to characters ``start`` to ``end`` of the message's payload.

    Attributes:
        start: Index of the first character.
        end: Index after the last character.
        raw: True if the characters are the string itself, False if they are the JSON text of a value.
        about: Description of the value for a placeholder.
        link: The id shared by the request and the result of a tool that the provider ran; "" for other values.
        is_media: True if the value is an image, audio or a file; `about` is its description.
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
        """Return the values in order, without empty ones at the end."""
        plain = [getattr(self, field) for field in self.__slots__]
        while not plain[-1] and len(plain) > len(("start", "end", "raw")):
            plain.pop()
        return plain


class PayloadReader:
    """Reads the parts of one payload, each at most once.

    Otherwise a damaged text could refer to the same part repeatedly and expand without limit.
    """

    def __init__(self, fetch: Callable[[int, int], str], limit: int | None) -> None:
        self._fetch = fetch
        self._limit = limit
        self._length = self._end = 0

    def reach(self, part: PayloadRange) -> bool:
        """Return True if a part lies within the loaded beginning of the payload."""
        return self._limit is None or part.end <= self._limit

    def read(self, part: PayloadRange) -> str:
        """Return the characters of a part; raise a ValueError if the parts overlap."""
        self._length += part.end - part.start
        self._end = max(self._end, part.end)
        if not 0 <= part.start <= part.end or self._length > self._end:
            raise ValueError("parts of a payload overlap")
        return self._fetch(part.start, part.end)

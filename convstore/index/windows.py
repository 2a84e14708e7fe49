"""Store the windows of a searchable part column by column, in the form of segments.

A window is a piece of a searchable text, the unit that is ranked and shown.
"""

from __future__ import annotations

import sys
from array import array
from typing import NamedTuple


class Window(NamedTuple):
    """A window of a searchable text.

    Attributes:
        message: Index of its message in the part.
        text: Index of its text among `texts_of` the message.
        source_id: The source that it belongs to, or 0.
        payload_start: First character of its text in the payload; -1 if the text is escaped or in the entry.
        start: Its first character in the text.
        end: The character after its last one.
        length: Its number of terms.
    """

    message: int
    text: int
    source_id: int
    payload_start: int
    start: int
    end: int
    length: int


class Windows:
    """Windows in order, numbered from 0; they are in arrays, which the garbage collector does not traverse.

    Attributes:
        message_of: For each window the index of its message.
        text_of: The index of its text among the texts of its message.
        source_of: The id of its source, or 0.
        lengths: Its number of terms.
    """

    def __init__(self, data: bytes = b"") -> None:
        numbers = unpacked_numbers(data, "q")
        count, rest = divmod(len(numbers), len(Window._fields))
        if rest:
            raise ValueError("the columns of the windows differ in length")
        self._columns = [
            numbers[index * count : (index + 1) * count] for index in range(len(Window._fields))
        ]
        self.message_of, self.text_of, self.source_of, *_, self.lengths = self._columns

    def to_bytes(self) -> bytes:
        """Return all columns as bytes."""
        return b"".join(map(packed_numbers, self._columns))

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, number: int) -> Window:
        return Window._make([column[number] for column in self._columns])

    def append(self, window: Window) -> None:
        """Add a window."""
        for column, value in zip(self._columns, window, strict=True):
            column.append(value)

    def extend(self, others: Windows, *, messages: int) -> None:
        """Add the windows of another part, whose messages are numbered from `messages` on."""
        self.message_of.extend([message + messages for message in others.message_of])
        for column, more in zip(self._columns[1:], others._columns[1:], strict=True):
            column.extend(more)


def packed_numbers(numbers: array[int]) -> bytes:
    """Return numbers as little-endian bytes."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def unpacked_numbers(data: bytes | bytearray, code: str = "I") -> array[int]:
    """Return the numbers in little-endian bytes; raise a ValueError if the last one is cut off."""
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

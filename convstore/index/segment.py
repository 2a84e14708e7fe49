"""Encode a part of a log as an immutable segment, and search it without decoding all of it.

`mongo.segments` stores the sections. A segment holds the position of every window, so that a snippet is one point read,
and the ids of questions and of messages with a payload.
"""

from __future__ import annotations

import json
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

from convstore.index.part import IndexBuilder, IndexedMessage, Posting, Window
from convstore.log.entry import PayloadRef
from convstore.messages.compression import compress_bytes, decompress_bytes
from convstore.messages.encoding import MESSAGE_TYPES
from convstore.sources.places import SourcePlace

SECTIONS = ("terms", "counts", "sizes", "postings", "windows", "types", "messages")
"""Names of the sections of a segment, each compressed by itself."""

_TYPES = sorted(MESSAGE_TYPES)
_COLUMNS = 7
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAXIMUM_BYTES = 64_000_000


def sections_of(part: IndexBuilder) -> dict[str, bytes]:
    """Return the sections of a segment with the contents of a part."""
    terms = sorted(part.by_term)
    postings = [_packed(part.by_term[term]) for term in terms]
    sections = {
        "terms": "\n".join(terms).encode(),
        "counts": _bytes_of(len(part.by_term[term]) for term in terms),
        "sizes": _bytes_of(map(len, postings)),
        "postings": b"".join(postings),
        "windows": _window_columns(part.windows),
        "types": bytes(_TYPES.index(one.type) for one in part.messages),
        "messages": json.dumps(_messages(part), ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        ),
    }
    return {name: compress_bytes(data) for name, data in sections.items()}


def merged(segments: Sequence[Segment], last: IndexBuilder) -> IndexBuilder:
    """Return a part with the contents of successive segments and of the part after them."""
    whole = IndexBuilder(characters=last.characters)
    parts: list[Part] = [*segments, last]
    for part in parts:
        first_window, first_message = len(whole.windows), len(whole.messages)
        whole.messages += map(part.message, range(part.size))
        windows = map(part.window, range(len(part.lengths)))
        whole.windows += [window._replace(message=window.message + first_message) for window in windows]
        whole.lengths += part.lengths
        whole.message_of += [message + first_message for message in part.message_of]
        whole.source_of += part.source_of
        for (message, source_id), place in part.places.items():
            whole.places[message + first_message, source_id] = place
        for term, postings in part.by_term.items():
            whole.by_term.setdefault(term, []).extend((window + first_window, times) for window, times in postings)
    return whole


class Segment:
    """A stored part of a log, whose sections are decoded when needed; access to a damaged one is a ValueError."""

    def __init__(self, sections: Mapping[str, bytes]) -> None:
        self._sections = sections

    def _section(self, name: str) -> bytes:
        return decompress_bytes(self._sections[name], maximum=_MAXIMUM_BYTES)

    @cached_property
    def _terms(self) -> list[str]:
        text = self._section("terms").decode()
        return text.split("\n") if text else []

    @cached_property
    def _counts(self) -> array[int]:
        return _numbers_in(self._section("counts"))

    @cached_property
    def _postings(self) -> tuple[bytes, list[int]]:
        return self._section("postings"), [0, *accumulate(_numbers_in(self._section("sizes")))]

    @cached_property
    def _columns(self) -> list[array[int]]:
        numbers = _numbers_in(self._section("windows"))
        count, rest = divmod(len(numbers), _COLUMNS)
        if rest:
            raise ValueError("the columns of the windows differ in length")
        columns = [numbers[index * count : (index + 1) * count] for index in range(_COLUMNS)]
        columns[0] = array("Q", accumulate(columns[0]))
        return columns

    @cached_property
    def _details(self) -> dict[str, Any]:
        details = json.loads(self._section("messages").decode("utf-8", "surrogatepass"))
        if not isinstance(details, dict):
            raise ValueError("the messages of a segment are not an object")
        return details

    @cached_property
    def _starts(self) -> list[int]:
        """Return the index of the first message of each entry."""
        return list(accumulate(self._details["counts"], initial=0))[:-1]

    @cached_property
    def _labels(self) -> dict[int, str]:
        return dict(self._details["labels"])

    @cached_property
    def places(self) -> dict[tuple[int, int], SourcePlace]:
        """Return the places of escaped sources by message and source."""
        found = self._details["places"]
        return {
            (message, source): SourcePlace(part, start, start, *rest) for message, source, part, start, *rest in found
        }

    @cached_property
    def by_term(self) -> dict[str, Sequence[Posting]]:
        """Return the windows of all terms."""
        data, ends = self._postings
        return {term: _unpacked(data[ends[index] : ends[index + 1]]) for index, term in enumerate(self._terms)}

    @property
    def size(self) -> int:
        """Return its number of messages."""
        return len(self._types)

    @cached_property
    def _types(self) -> bytes:
        return self._section("types")

    @cached_property
    def _humans(self) -> list[int]:
        human = _TYPES.index("human")
        return [index for index, number in enumerate(self._types) if number == human]

    @property
    def humans(self) -> Sequence[int]:
        """Return the indexes of its human messages, in order."""
        return self._humans

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of terms of each window."""
        return self._columns[6]

    @property
    def message_of(self) -> Sequence[int]:
        """Return the index of the message of each window."""
        return self._columns[0]

    @property
    def source_of(self) -> Sequence[int]:
        """Return the source of each window, 0 for none."""
        return self._columns[2]

    def message(self, index: int) -> IndexedMessage:
        """Return a message."""
        details = self._details
        entry = bisect_right(self._starts, index) - 1
        first, named = details["firsts"][entry], details["named"]
        position = bisect_left(named, index)
        values = details["names"][position] if named[position : position + 1] == [index] else None
        return IndexedMessage(first + index - self._starts[entry], _TYPES[self._types[index]], first, *_named(values))

    def window(self, number: int) -> Window:
        """Return a window."""
        message, text, source_id, start_in_payload, start, size, length = (column[number] for column in self._columns)
        label = self._labels.get(number, "")
        return Window(message, text, source_id, start_in_payload - 1, start, start + size, length, label)

    def text_of(self, window: Window) -> str | None:
        """Return None, as a segment has no texts."""
        del window
        return None

    def place_of(self, window: Window) -> SourcePlace | None:
        """Return the place of the item in the payload that holds the text of a window escaped, None if none does."""
        return self.places.get((window.message, window.source_id)) if window.payload_start < 0 else None

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        index = self._index(term)
        return 0 if index is None else self._counts[index]

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        index = self._index(term)
        if index is None:
            return ()
        data, ends = self._postings
        return _unpacked(data[ends[index] : ends[index + 1]])

    def _index(self, term: str) -> int | None:
        index = bisect_left(self._terms, term)
        return index if index < len(self._terms) and self._terms[index] == term else None

    def containing(self, sign: str) -> Iterable[str]:
        """Return the terms of at most two characters that contain a character."""
        return [term for term in self._terms if len(term) <= 2 and sign in term]


Part = IndexBuilder | Segment
"""A searchable part of a log, with its messages and windows numbered from 0."""


def _packed(postings: Sequence[Posting]) -> bytes:
    """Return postings as variable-length numbers: the gaps between windows, 0, then position and count if above 1.

    >>> _packed([(0, 1), (3, 2)]).hex(), _unpacked(_packed([(0, 1), (300, 200)]))
    ('0103000202', [(0, 1), (300, 200)])
    """
    out = bytearray()
    before = -1
    for window, _ in postings:
        _put(out, window - before)
        before = window
    many = [(index, times) for index, (_, times) in enumerate(postings) if times > 1]
    if many:
        out.append(0)
        before = -1
        for index, times in many:
            _put(out, index - before)
            _put(out, times)
            before = index
    return bytes(out)


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _unpacked(data: bytes) -> list[Posting]:
    # No variable-length number above 0 has a byte 0.
    gaps, _, many = data.partition(b"\0")
    windows = list(accumulate(_numbers_of(gaps), initial=-1))[1:]
    counts = [1] * len(windows)
    numbers = list(_numbers_of(many))
    for index, times in zip(accumulate(numbers[::2], initial=-1), [0, *numbers[1::2]], strict=True):
        if times:
            counts[index] = times
    return list(zip(windows, counts, strict=True))


def _numbers_of(data: bytes) -> Iterable[int]:
    """Return variable-length numbers; frequent words have gaps of one byte, which need no decoding."""
    if data.isascii():
        return data
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers


def _window_columns(windows: Sequence[Window]) -> bytes:
    """Return the windows column by column; the first column holds differences."""
    columns: list[list[int]] = [[] for _ in range(_COLUMNS)]
    before = 0
    for one in windows:
        row = (one.message - before, one.text, one.source_id, one.payload_start + 1, one.start, one.end - one.start)
        for column, number in zip(columns, (*row, one.length), strict=True):
            column.append(number)
        before = one.message
    return b"".join(map(_bytes_of, columns))


def _messages(part: IndexBuilder) -> dict[str, Any]:
    """Return all that is not columns of windows, by the index of the message or the window."""
    # The others are read from their entries in any case.
    named = [index for index, one in enumerate(part.messages) if one.type == "human" or one.payload]
    messages = [part.messages[index] for index in named]
    entries = [(first, len(list(group))) for first, group in groupby(one.first for one in part.messages)]
    return {
        "firsts": [first for first, _ in entries],
        "counts": [count for _, count in entries],
        "named": named,
        "names": [[one.id, one.tool, _milliseconds(one.created_at), _location(one)] for one in messages],
        "labels": [[number, window.label] for number, window in enumerate(part.windows) if window.label],
        "places": [[*key, one.part, one.middle, one.end, one.length] for key, one in part.places.items()],
    }


def _location(message: IndexedMessage) -> list[Any] | None:
    ref = message.payload
    return None if ref is None else [ref.token, ref.chunk, *ref.ends]


def _named(values: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return id, tool, date and payload of a message, as `IndexedMessage` has them."""
    if values is None:
        return ()
    id_, tool, at, location = values
    named = id_, tool, _EPOCH + timedelta(milliseconds=at)
    if location is None:
        return named
    token, chunk, *ends = location
    return *named, PayloadRef(token, chunk, tuple(ends), 0, b"", 0)


def _milliseconds(at: datetime | None) -> int:
    return 0 if at is None else (at - _EPOCH) // timedelta(milliseconds=1)


def _bytes_of(numbers: Iterable[int]) -> bytes:
    """Return numbers as little-endian bytes, 8 of each."""
    packed = array("Q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _numbers_in(data: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

"""Encode a part of a log as an immutable segment, and search it without decoding all of it.

`mongo.segments` stores the sections. A segment has the position of every window, so that a snippet is one point read,
and the messages with the locations of their payloads.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import accumulate, chain
from operator import sub
from typing import Any

from convstore.index.part import IndexBuilder, IndexedMessage, Posting, Steps, terms_of
from convstore.index.windows import Windows, packed_numbers, unpacked_numbers
from convstore.log.entry import PayloadRef
from convstore.messages.compression import compress_bytes, decompress_bytes
from convstore.messages.encoding import MESSAGE_TYPES
from convstore.values.plain import slices

SECTIONS = ("terms", "sizes", "postings", "windows", "types", "details")
"""Names of the sections of a segment, each compressed separately."""

_TYPES = sorted(MESSAGE_TYPES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MAXIMUM_BYTES = 64_000_000
_TERMS_AT_ONCE = 100


def sections_of(part: IndexBuilder) -> Steps[dict[str, bytes]]:
    """Return the sections of a segment with the contents of a part, in steps."""
    terms = yield from _sorted(part.by_term)
    code = "H" if len(part.windows) < 1 << 16 else "I"
    gaps = bytearray()
    for part_terms in slices(terms, _TERMS_AT_ONCE):
        gaps += _packed([unpacked_numbers(part.by_term[term]) for term in part_terms], code)
        yield
    sections = {
        "terms": "\n".join(terms).encode(),
        "sizes": packed_numbers(array("I", [len(part.by_term[term]) // 4 for term in terms])),
        "postings": bytes(gaps),
        "windows": part.windows.to_bytes(),
        "types": bytes(_TYPES.index(message.type) for message in part.messages),
        "details": json.dumps(_details(part), separators=(",", ":")).encode(),
    }
    compressed = {}
    for name, data in sections.items():
        yield
        compressed[name] = compress_bytes(data)
    return compressed


def _sorted(terms: Iterable[str]) -> Steps[list[str]]:
    """Sort terms in groups with the same beginning, because sorting all of them would be one long step."""
    groups = defaultdict[str, list[str]](list)
    for number, term in enumerate(terms):
        groups[term[:2]].append(term)
        if number % _TERMS_AT_ONCE == 0:
            yield
    found: list[str] = []
    for group in sorted(groups):
        found += sorted(groups[group])
        yield
    return found


def merged(segments: Sequence[Segment], last: IndexBuilder) -> Steps[IndexBuilder]:
    """Return a part with the contents of successive segments and of the part after them, in steps."""
    whole = IndexBuilder(characters=last.characters)
    parts: list[Part] = [*segments, last]
    for part in parts:
        first_window = len(whole.windows)
        first_message = len(whole.messages)
        whole.messages += map(part.message, range(part.size))
        yield
        whole.windows.extend(part.windows, messages=first_message)
        whole.labels |= {first_window + window: label for window, label in part.labels.items()}
        for number, (term, windows) in enumerate(part.items()):
            whole.by_term[term] += packed_numbers(
                array("I", [window + first_window for window in windows])
            )
            if number % _TERMS_AT_ONCE == 0:
                yield
    return whole


def are_equal(sections: Mapping[str, bytes], others: Mapping[str, bytes]) -> bool:
    """Return True if sections have the same uncompressed contents; a damaged section is never equal."""
    try:
        return all(_contents(sections[name]) == _contents(others[name]) for name in SECTIONS)
    except ValueError:
        return False


class Segment:
    """A stored part of a log; a section is decoded when it is needed, with a ValueError if it is damaged."""

    texts: Mapping[tuple[int, int], str] = {}
    """Always empty: a segment has no texts in memory."""

    def __init__(self, sections: Mapping[str, bytes]) -> None:
        self.sections = sections
        self._found: dict[str, array[int]] = {}
        self._signs: dict[str, Sequence[str]] = {}

    def _section(self, name: str) -> bytes:
        return _contents(self.sections[name])

    @cached_property
    def _terms(self) -> bytes:
        """Return all terms, one in a line, in the order of their bytes."""
        return b"\n%b\n" % self._section("terms")

    @cached_property
    def _sizes(self) -> array[int]:
        return unpacked_numbers(self._section("sizes"))

    @cached_property
    def _gaps(self) -> array[int]:
        data = self._section("postings")
        return unpacked_numbers(data, "H" if len(data) == 2 * sum(self._sizes) else "I")

    @cached_property
    def windows(self) -> Windows:
        """Return its windows."""
        return Windows(self._section("windows"))

    @cached_property
    def _details(self) -> dict[str, Any]:
        details = json.loads(self._section("details"))
        if not isinstance(details, dict):
            raise ValueError("the details of a segment are not an object")
        return details

    @cached_property
    def labels(self) -> dict[int, str]:
        """Return title and address of sources by the first window of their texts."""
        return dict(self._details["labels"])

    def items(self) -> Iterable[tuple[str, Sequence[int]]]:
        """Yield each term with its windows, in the form of `IndexBuilder.items`."""
        terms = self._terms[1:-1].decode().split("\n")
        sizes = self._sizes
        for term, size, end in zip(terms, sizes, accumulate(sizes), strict=bool(sizes)):
            yield term, list(accumulate(self._gaps[end - size : end]))

    @property
    def size(self) -> int:
        """Return its number of messages."""
        return len(self._types)

    @cached_property
    def _types(self) -> bytes:
        return self._section("types")

    @cached_property
    def humans(self) -> Sequence[int]:
        """Return the indexes of its human messages, in order."""
        human = _TYPES.index("human")
        return [index for index, number in enumerate(self._types) if number == human]

    @cached_property
    def questions(self) -> Sequence[int]:
        """Return the indexes of its questions, in order."""
        return [index for index, row in enumerate(self._details["messages"]) if row[0] == row[-1]]

    def message(self, index: int) -> IndexedMessage:
        """Return a message."""
        ordinal, first, id_, tool, at, location, turn = self._details["messages"][index]
        ref = None
        if location:
            ref = PayloadRef(location[0], location[1], tuple(location[2:]), 0, b"", 0)
        moment = _EPOCH + at * _MILLISECOND
        return IndexedMessage(
            ordinal, _TYPES[self._types[index]], first, id_, tool, moment, ref, turn
        )

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        gaps = self._gaps_of(term)
        return len(gaps) - gaps[1:].count(0)

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        return list(Counter(accumulate(self._gaps_of(term))).items())

    def _gaps_of(self, term: str) -> array[int]:
        if term not in self._found:
            at = self._terms.find(b"\n%b\n" % term.encode())
            index = self._terms.count(b"\n", 0, at)
            start = sum(self._sizes[:index])
            self._found[term] = (
                self._gaps[start : start + self._sizes[index]] if at >= 0 else array("H")
            )
        return self._found[term]

    def containing(self, sign: str) -> Iterable[str]:
        """Return the terms of at most two characters that contain a character."""
        if sign not in self._signs:
            pattern = re.compile(rb"(?<=\n)[^\n]{0,4}%b[^\n]{0,4}(?=\n)" % re.escape(sign.encode()))
            found = map(bytes.decode, pattern.findall(self._terms))
            self._signs[sign] = [term for term in found if len(term) <= 2]
        return self._signs[sign]

    def only(self, groups: Iterable[tuple[str, ...]]) -> Segment:
        """Return a segment with only the words of a query, which takes little memory."""
        lean = Segment({name: self.sections[name] for name in ("windows", "types", "details")})
        for term in terms_of(self.containing, groups):
            self._gaps_of(term)
        lean._found = self._found
        lean._signs = self._signs
        return lean


Part = IndexBuilder | Segment
"""A searchable part of a log, with its messages and windows numbered from 0."""


def _contents(section: bytes) -> bytes:
    return decompress_bytes(section, maximum=_MAXIMUM_BYTES)


def _packed(lists: Sequence[Sequence[int]], code: str) -> bytes:
    """Return the windows of some terms: for each term the first window, then the gaps, 0 for a repeated window.

    >>> _packed([[0, 3, 3], [2]], "H").hex(" ", 2)
    '0000 0300 0000 0200'
    """
    flat = list(chain.from_iterable(lists))
    gaps = list(map(sub, flat, chain((0,), flat)))
    for start in accumulate(map(len, lists[:-1]), initial=0):
        gaps[start] = flat[start]
    return packed_numbers(array(code, gaps))


def _details(part: IndexBuilder) -> dict[str, Any]:
    """Return the data that is needed only for hits."""
    return {
        "messages": list(map(_row, part.messages)),
        "labels": list(part.labels.items()),
    }


def _row(row: IndexedMessage) -> list[Any]:
    ref = row.payload
    at = (row.created_at - _EPOCH) // _MILLISECOND
    return [
        row.ordinal,
        row.first,
        row.id,
        row.tool,
        at,
        [ref.token, ref.chunk, *ref.ends] if ref else [],
        row.turn,
    ]

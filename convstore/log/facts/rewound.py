"""The ranges of messages that an entry rewinds; see `log.rewind`.

They are stored as a compressed list with a checksum, 2 to 5 bytes for each range: ``[entry number, number to undo,
number of the rewind before it, ranges, restored ranges]``. Each range is stored as four differences: of its first
ordinal to the last one of the range before it, of its last ordinal to its first one, of its first entry to that of the
range before it, and of its last entry to its first one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from convstore.log.entry import Entry
from convstore.log.facts.kind import FactKind
from convstore.messages.compression import compress_bytes, decompress_bytes

_MAXIMUM = 32_000_000
_RANGE_BYTES = 5


class RewoundRange(NamedTuple):
    """Messages that were rewound.

    Attributes:
        first: First ordinal.
        last: Last ordinal.
        entry: First of the entries that contain rewound messages only.
        until: Last of these entries; lower than `entry` if every entry also contains active messages.
    """

    first: int
    last: int
    entry: int
    until: int


class Rewound(NamedTuple):
    """The messages that are rewound as of an entry.

    Attributes:
        ranges: The rewound ranges that the last whole list does not have.
        restored: The ranges of that list that are active again.
        undo: Number of the rewind that can be undone, or 0.
        previous: Number of the rewind entry before it, or 0.
    """

    ranges: tuple[RewoundRange, ...] = ()
    restored: tuple[RewoundRange, ...] = ()
    undo: int = 0
    previous: int = 0

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return _RANGE_BYTES * len(self.ranges)


class RewoundKind(FactKind[Rewound]):
    """Kind of fact: ranges of rewound messages; every entry with `Entry.is_rewind` has one."""

    name = "rewound"
    shape = bytes
    is_loaded = True
    is_forked = False  # `append.forker` writes the ranges of the fork
    is_copied = False

    def encode(self, value: Rewound, entry: Entry) -> Any:
        """Return the compressed list."""
        ranges = [_distances(value.ranges), _distances(value.restored)]
        written = [entry.number, value.undo, value.previous, *ranges]
        return compress_bytes(json.dumps(written, separators=(",", ":")).encode())

    def decode(self, stored: Any, number: int) -> Rewound:
        """Return the ranges that `encode` wrote; raise a ValueError if they belong to another entry."""
        text = decompress_bytes(stored, maximum=_MAXIMUM)
        written, undo, previous, ranges, restored = json.loads(text)
        if written != number:
            raise ValueError("its rewound ranges are those of another entry")
        return Rewound(_ranges(ranges), _ranges(restored), undo, previous)


REWOUND = RewoundKind()


def _distances(ranges: Sequence[RewoundRange]) -> list[int]:
    distances: list[int] = []
    before = RewoundRange(0, 0, 0, 0)
    for new in ranges:
        distances += (
            new.first - before.last,
            new.last - new.first,
            new.entry - before.entry,
            new.until - new.entry,
        )
        before = new
    return distances


def _ranges(distances: Sequence[int]) -> tuple[RewoundRange, ...]:
    ranges: list[RewoundRange] = []
    last = 0
    at = 0
    numbers = iter(distances)
    for gap, size, entry, entries in zip(numbers, numbers, numbers, numbers, strict=True):
        first = last + gap
        at = at + entry
        last = first + size
        ranges.append(RewoundRange(first, last, at, at + entries))
    return tuple(ranges)

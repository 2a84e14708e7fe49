"""Convert what a rewind entry says to bytes and back: a compressed list with a checksum, 2 to 5 bytes for each range.

It is ``[entry number, number to undo, number of the rewind before it, ranges, restored ranges]``; ranges follow each
other, with the distance of each to the one before, its size, and the same of its entries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from convstore.log.entry import Entry, RewoundRange
from convstore.messages.compression import compress_bytes, decompress_bytes
from convstore.mongo.bson_values import stored_bytes

_MAXIMUM = 32_000_000


def rewound_data(entry: Entry) -> bytes:
    """Return what a rewind entry says in the form that documents store."""
    ranges = [_distances(entry.rewound), _distances(entry.restored)]
    data = json.dumps([entry.number, entry.undo, entry.previous, *ranges], separators=(",", ":"))
    return compress_bytes(data.encode())


def rewound_from(stored: Any, number: int) -> dict[str, Any]:
    """Return the fields of a rewind entry; a ValueError or TypeError if they are damaged or of another entry."""
    written, undo, previous, *ranges = json.loads(
        decompress_bytes(stored_bytes(stored), maximum=_MAXIMUM)
    )
    if written != number:
        raise ValueError("its rewound ranges are those of another entry")
    rewound, restored = map(_ranges, ranges)
    return {"rewound": rewound, "restored": restored, "undo": undo, "previous": previous}


def _distances(ranges: Sequence[RewoundRange]) -> list[int]:
    distances = list[int]()
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
    ranges = list[RewoundRange]()
    last = 0
    at = 0
    numbers = iter(distances)
    for gap, size, entry, entries in zip(numbers, numbers, numbers, numbers, strict=True):
        first = last + gap
        at = at + entry
        last = first + size
        ranges.append(RewoundRange(first, last, at, at + entries))
    return tuple(ranges)

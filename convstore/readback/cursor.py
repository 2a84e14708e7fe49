"""The cursor at the end of a page: the position where the page ended, and the request that the next page continues.

``11@4000`` continues in source 11, ``m7@4000`` in the message with ordinal 7, ``m7.2@0`` in the third part of its
content, ``m7.x1@0`` in its second part after the content, ``f9@40`` after the best 40 passages of a search up to
ordinal 9. The names of the request follow, then the words to find: ``2@325/m3+1,1-5/leopard seal``. ``m3+1`` is the
message with ordinal 4, in an entry that begins with ordinal 3. A cursor is data from a model: it names messages and
sources of the conversation that reads it, no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from convstore.messages.tokens import weight
from convstore.sources.source import MAX_SOURCES, read_ids
from convstore.values.scope import MAX_IDS

MAX_CHARACTERS = 4_000
"""Maximum length of a cursor."""
_MAX_NAMES = 1_000
_MESSAGE = r"m(?:\d{1,15}\+)?\d{1,15}"
_SOURCES = r"\d{1,15}(?:-\d{1,15})?"
_NAMES = rf"(?:{_MESSAGE}|{_SOURCES})(?:,(?:{_MESSAGE}|{_SOURCES}))*"
_CURSOR = re.compile(
    rf"([mf]?\d{{1,15}}|m\d{{1,15}}\.x?\d{{1,6}})@(\d{{1,15}})(?:/({_NAMES})?(?:/(.*))?)?",
    re.ASCII | re.DOTALL,
)


class Place(NamedTuple):
    """The ordinal of a message, and the first ordinal of its entry, by which it is found at once."""

    ordinal: int
    first: int

    def __str__(self) -> str:
        return (
            f"m{self.first}+{self.ordinal - self.first}"
            if self.first < self.ordinal
            else f"m{self.ordinal}"
        )


class Cursor(NamedTuple):
    """A position, and the rest of a request; only the pager and the search know if there are such passages.

    Attributes:
        key: Name of the passage; for a search "f" and the ordinal of the last message that is searched.
        offset: Number of characters of the passage, or of found passages, that were shown.
        places: The requested messages.
        source_ids: The requested sources.
        find: The words to find.
    """

    key: str
    offset: int
    places: tuple[Place, ...] = ()
    source_ids: tuple[int, ...] = ()
    find: str = ""


def read_cursor(text: Any) -> Cursor | None:
    """Parse a cursor; None if it is invalid. Without names it continues the source, or the message, that it is in.

    >>> read_cursor("11@4000")
    Cursor(key='11', offset=4000, places=(), source_ids=(11,), find='')
    >>> read_cursor("2@325/m3+1,1-2/leopard seal")[2:]
    ((Place(ordinal=4, first=3),), (1, 2), 'leopard seal')
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return None
    found = _CURSOR.fullmatch(text.strip())
    if not found:
        return None
    key, offset, names, find = found.groups("")
    if not names and not key.startswith("f"):
        names = key.partition(".")[0]
    messages = [name for name in names.split(",") if name.startswith("m")]
    others = [name for name in names.split(",") if not name.startswith("m")]
    places = tuple(map(_place, messages[:MAX_IDS]))
    numbers = read_ids(",".join(others))[:MAX_SOURCES]
    return Cursor(key, int(offset), places, tuple(numbers), unquote(find, errors="replace").strip())


def quoted(find: str) -> str:
    """Return a text to find for a cursor: on one line, without quotes and backslashes, which models escape."""
    plain = (
        sign if sign.isprintable() and sign not in '%"\\' else quote(sign, errors="replace")
        for sign in find
    )
    return "".join(plain)


def compact_names(
    places: Iterable[Place], numbers: Sequence[int], *, room: int
) -> tuple[str, int, int]:
    """Return names for a cursor, and how many of the messages and sources they are; the others do not fit in `room`.

    >>> compact_names([Place(7, 5)], [1, 2, 3, 9], room=100)
    ('m5+2,1-3,9', 1, 4)
    """
    room = min(room, _MAX_NAMES)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    messages = [(str(place), 1, 0) for place in places]
    sources = [(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]), 0, len(run)) for run in runs]
    kept: list[tuple[str, int, int]] = []
    for name in (*messages, *sources):
        room -= len(name[0]) + 1
        if room < 0 and kept:
            break
        kept.append(name)
    return (
        ",".join(name for name, *_ in kept),
        sum(count for _, count, _ in kept),
        sum(size for *_, size in kept),
    )


def last_line(cursor: str) -> str:
    """Return the last line of a page: the end, or how to read on."""
    return f'More: cursor="{cursor}"; call again with this cursor alone.' if cursor else "End."


def room_for_last_line(names: str, find: str) -> int:
    """Return the maximum weight of `last_line` for a request."""
    return len(last_line("m1234567890.123@1234567890//")) + len(names) + weight(quoted(find))


def _place(name: str) -> Place:
    first, _, offset = name[1:].partition("+")
    return Place(int(first) + int(offset or 0), int(first))

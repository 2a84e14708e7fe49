"""Convert plain values to BSON and back, and refuse values of another type than was stored.

Floor 2; the other modules of this room call it. Text with lone surrogates is stored as bytes. Any field of a damaged
or hand-edited document may hold any value. The functions then raise TypeError, and callers turn it into an error that
names the document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from convstore.sources.source import DIGEST_BYTES

__all__ = [
    "from_stored",
    "pack_shown",
    "stored_bytes",
    "stored_list",
    "stored_number",
    "stored_number_or_none",
    "stored_text",
    "to_stored",
    "unpack_shown",
    "utc",
]

_NUMBER_BYTES = 8


def to_stored(text: str) -> str | bytes:
    """Return the text in a form that BSON can hold: bytes if it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def from_stored(stored: str | bytes) -> str:
    """Return the text that `to_stored` was given."""
    return stored if isinstance(stored, str) else stored_bytes(stored).decode("utf-8", "surrogatepass")


def utc(moment: datetime) -> datetime:
    """Return a datetime with its zone, which some drivers drop; raise TypeError for any other value."""
    if not isinstance(moment, datetime):
        raise TypeError(f"expected a datetime, found {moment!r}")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def stored_number(value: Any, *, minimum: int | None = 0) -> int:
    """Return a stored whole number; raise TypeError for any other value or a number below `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or (minimum is not None and value < minimum):
        raise TypeError(f"expected a whole number{'' if minimum is None else f' >= {minimum}'}, found {value!r}")
    return value


def stored_number_or_none(value: Any) -> int | None:
    """Return a stored whole number, or None if the field is missing."""
    return None if value is None else stored_number(value)


def stored_text(value: Any) -> str:
    """Return a stored text; raise TypeError for any other value."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def stored_bytes(value: Any, *, length: int | None = None) -> bytes:
    """Return stored bytes; raise TypeError for any other value or length."""
    if not isinstance(value, bytes) or (length is not None and len(value) != length):
        raise TypeError(f"expected {'' if length is None else f'{length} '}bytes, found {value!r}")
    return value


def stored_list(value: Any, *, minimum: int = 0) -> Sequence[Any]:
    """Return a stored list; raise TypeError for any other value or fewer than `minimum` items."""
    if not isinstance(value, list | tuple) or len(value) < minimum:
        raise TypeError(f"expected a list{f' of at least {minimum}' if minimum else ''}, found {value!r}")
    return value


def pack_shown(shown: Mapping[bytes, int]) -> bytes:
    """Pack the digests and numbers of the newest distinct sources, as an entry stores them."""
    return b"".join(digest + number.to_bytes(_NUMBER_BYTES) for digest, number in shown.items())


def unpack_shown(packed: Any) -> dict[bytes, int]:
    """Return the digests and numbers that `pack_shown` packed."""
    text, step = stored_bytes(packed), DIGEST_BYTES + _NUMBER_BYTES
    if len(text) % step:
        raise ValueError("the digests of sources are truncated")
    pieces = (text[start : start + step] for start in range(0, len(text), step))
    return {piece[:DIGEST_BYTES]: int.from_bytes(piece[DIGEST_BYTES:]) for piece in pieces}

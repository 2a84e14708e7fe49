"""Plain values as BSON can hold them, and back; what is not what was stored is refused.

Layer 1. Text with lone surrogates is kept as bytes. A document that was damaged, or changed by hand, may hold anything
in the place of anything; who reads one turns the TypeError into an error that names it.
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
    """A text as BSON can hold it: bytes if it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def from_stored(stored: str | bytes) -> str:
    """The text that `to_stored` stored."""
    return stored if isinstance(stored, str) else stored_bytes(stored).decode("utf-8", "surrogatepass")


def utc(moment: datetime) -> datetime:
    """A moment as the driver gives it, which may have lost its zone; a TypeError if it is none."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{moment!r} in the place of a moment")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def stored_number(value: Any, *, least: int | None = 0) -> int:
    """A whole number as it was stored; a TypeError if it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise TypeError(f"{value!r} in the place of a whole number")
    return value


def stored_number_or_none(value: Any) -> int | None:
    """As `stored_number`, for what may be missing."""
    return None if value is None else stored_number(value)


def stored_text(value: Any) -> str:
    """A text as it was stored; a TypeError if it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} in the place of a text")
    return value


def stored_bytes(value: Any, *, length: int | None = None) -> bytes:
    """Bytes as they were stored, of a length if one is given; a TypeError if they are none."""
    if not isinstance(value, bytes) or (length is not None and len(value) != length):
        raise TypeError(f"{value!r} in the place of bytes")
    return value


def stored_list(value: Any, *, least: int = 0) -> Sequence[Any]:
    """A list as it was stored, of so many values at least; a TypeError if it is none."""
    if not isinstance(value, list | tuple) or len(value) < least:
        raise TypeError(f"{value!r} in the place of a list")
    return value


def pack_shown(shown: Mapping[bytes, int]) -> bytes:
    """The newest different sources as an entry keeps them."""
    return b"".join(digest + number.to_bytes(_NUMBER_BYTES) for digest, number in shown.items())


def unpack_shown(packed: Any) -> dict[bytes, int]:
    """The newest different sources as an entry keeps them: digest and number, one after the other."""
    text, step = stored_bytes(packed), DIGEST_BYTES + _NUMBER_BYTES
    if len(text) % step:
        raise ValueError("the digests of sources are cut off")
    pieces = (text[start : start + step] for start in range(0, len(text), step))
    return {piece[:DIGEST_BYTES]: int.from_bytes(piece[DIGEST_BYTES:]) for piece in pieces}

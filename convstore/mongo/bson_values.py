"""Convert plain values to BSON and back, and refuse values of another type than was stored.

Text with lone surrogates is stored as bytes. A field of a damaged or hand-edited document may have any value. The
functions then raise TypeError, and callers convert it to an error that names the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import bson
from bson.int64 import Int64

from convstore.exceptions import CorruptDocumentError
from convstore.messages.encoding import digest_of
from convstore.values.plain import with_leaves

_SEAL_BYTES = 8
_NUMBERS = frozenset({int, Int64})
_TEXTS = frozenset({str})


def to_stored(text: str) -> str | bytes:
    """Return the text in a form that BSON can hold: bytes if it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def storable(value: Any) -> Any:
    """Return a value of lists, dicts and plain values with every text in the form of `to_stored`."""
    return with_leaves(value, lambda part: to_stored(part) if isinstance(part, str) else part)


def encoded(document: dict[str, Any]) -> bytes:
    """Return a document in BSON; texts with lone surrogates are stored as bytes."""
    try:
        return bson.encode(document)
    except UnicodeEncodeError:
        return bson.encode(storable(document))


def sealed(text: str, *owner: str) -> list[str | bytes]:
    """Return a text that cannot be derived, with a checksum of the text and of its owner: document and field."""
    return [to_stored(text), digest_of("\n".join([*owner, text]))[:_SEAL_BYTES]]


def unsealed(value: Any, *owner: str) -> str:
    """Return the text that `sealed` stored.

    Raises:
        ValueError, TypeError: The value is damaged, or belongs to another owner.
    """
    stored, seal = stored_list(value)
    if sealed(text := from_stored(stored), *owner)[1] != seal:
        raise ValueError("it does not match its checksum")
    return text


def from_stored(stored: str | bytes) -> str:
    """Return the text that `to_stored` converted."""
    return (
        stored if isinstance(stored, str) else stored_bytes(stored).decode("utf-8", "surrogatepass")
    )


@contextmanager
def reading(document: Mapping[str, Any], collection: str = "log") -> Iterator[None]:
    """Convert errors about the values of a document to a CorruptDocumentError that names the document."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptDocumentError(
            str(document.get("_id")), wrong_with(error), collection=collection
        ) from error


def wrong_with(error: Exception) -> str:
    """Return the text of an error about the values of a document, for its reader.

    >>> wrong_with(KeyError("conversation")), wrong_with(ValueError("the key does not match the scope"))
    ("its field 'conversation' is missing", 'the key does not match the scope')
    """
    return f"its field {error} is missing" if isinstance(error, KeyError) else str(error)


def utc(moment: datetime) -> datetime:
    """Return a datetime with its zone, which some drivers drop; raise TypeError for any other value."""
    if not isinstance(moment, datetime):
        raise TypeError(f"expected a datetime, found {moment!r}")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def stored_number(value: Any, *, minimum: int | None = 0) -> int:
    """Return a stored whole number; raise TypeError for any other value or a number below `minimum`."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or (minimum is not None and value < minimum)
    ):
        raise TypeError(
            f"expected a whole number{'' if minimum is None else f' >= {minimum}'}, found {value!r}"
        )
    return value


def stored_numbers(values: Sequence[Any]) -> Sequence[int]:
    """Return stored whole numbers that are not negative; raise TypeError for any other value among them."""
    if _NUMBERS.issuperset(map(type, values)) and min(values) >= 0:
        return values
    return [stored_number(value) for value in values]


def stored_number_or_none(value: Any) -> int | None:
    """Return a stored whole number, or None if the field is missing."""
    return None if value is None else stored_number(value)


def stored_text(value: Any) -> str:
    """Return a stored text; raise TypeError for any other value."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def stored_texts(values: Sequence[Any]) -> Sequence[str]:
    """Return stored texts; raise TypeError for any other value among them."""
    return (
        values if _TEXTS.issuperset(map(type, values)) else [stored_text(value) for value in values]
    )


def stored_bytes(value: Any, *, length: int | None = None) -> bytes:
    """Return stored bytes; raise TypeError for any other value or length."""
    if not isinstance(value, bytes) or (length is not None and len(value) != length):
        raise TypeError(f"expected {'' if length is None else f'{length} '}bytes, found {value!r}")
    return value


def stored_list(value: Any, *, minimum: int = 0) -> Sequence[Any]:
    """Return a stored list; raise TypeError for any other value or fewer than `minimum` items."""
    if not isinstance(value, list | tuple) or len(value) < minimum:
        raise TypeError(
            f"expected a list{f' of at least {minimum}' if minimum else ''}, found {value!r}"
        )
    return value

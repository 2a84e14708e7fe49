"""Convert the locations of payloads to documents and back, find their chunks and join them; sends no command."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import PayloadRef
from convstore.messages.compression import decompress
from convstore.messages.encoding import DIGEST_BYTES
from convstore.mongo.bson_values import stored_bytes, stored_list, stored_numbers, stored_text

_FIELDS = {"token", "chunk", "ends"}


def payload_document(ref: PayloadRef) -> dict[str, Any]:
    """Return the location of a payload in the form that entries store."""
    document = {
        "token": ref.token,
        "chunk": ref.chunk,
        "ends": list(ref.ends),
        "digest": ref.digest,
        "size": ref.size,
        "shown": ref.shown,
    }
    optional = {
        "own": ref.own if ref.own != ref.ends[-1] else None,
        "shown_digest": ref.shown_digest or None,
        "edged": int(ref.is_edged) or None,
        "identity": ref.identity or None,
    }
    return document | {key: value for key, value in optional.items() if value is not None}


def payload_from(document: Mapping[str, Any]) -> PayloadRef:
    """Return the location that `payload_document` wrote."""
    get = document.get
    ends = tuple(stored_numbers(stored_list(document["ends"], minimum=1)))
    if sorted({*ends}) != [*ends]:
        raise ValueError("the ends of a payload's chunks are not in ascending order")
    chunk, size, shown, own = stored_numbers(
        (document["chunk"], document["size"], document["shown"], get("own", ends[-1]))
    )
    if shown and shown not in ends:
        raise ValueError("the part of the payload that views show does not end with a chunk")
    if own > ends[-1]:
        raise ValueError("the message's part of the payload ends after the payload")
    return PayloadRef(
        stored_text(document["token"]),
        chunk,
        ends,
        own,
        stored_bytes(document["digest"], length=DIGEST_BYTES),
        size,
        shown,
        _digest_from(get("shown_digest")),
        bool(get("edged", 0)),
        stored_bytes(get("identity", b"")),
    )


def _digest_from(value: Any) -> bytes:
    """Return a stored digest, empty if the field is missing."""
    return b"" if value is None else stored_bytes(value, length=DIGEST_BYTES)


def payloads_in(stored: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the stored locations of payloads anywhere in a part of a document, including damaged ones."""
    if isinstance(stored, Mapping):
        if stored.keys() >= _FIELDS:
            yield stored
            return
        parts = [part for part in stored.values() if isinstance(part, Mapping | list)]
    else:
        parts = stored if isinstance(stored, list) else []
    for part in parts:
        yield from payloads_in(part)


def chunks_of(ref: PayloadRef, start: int, end: int) -> range:
    """Return the numbers of the chunks that contain a range of a payload."""
    first = bisect_right(ref.ends, start)
    last = min(bisect_left(ref.ends, end), len(ref.ends) - 1)
    return range(ref.chunk + min(first, last), ref.chunk + last + 1) if start < end else range(0)


def piece_of(ref: PayloadRef, start: int, end: int, chunks: Mapping[tuple[str, int], str]) -> str:
    """Return a range of a payload, given the texts of its chunks by token and number."""
    numbers = chunks_of(ref, start, end)
    if not numbers:
        return ""
    before = ref.ends[numbers.start - ref.chunk - 1] if numbers.start > ref.chunk else 0
    return "".join(chunks[ref.token, number] for number in numbers)[start - before : end - before]


def decompressed(frames: Sequence[tuple[str, Any, int]]) -> list[str]:
    """Return the texts of some chunks; each chunk is given as its key, its frame and its number of characters."""
    texts = []
    for key, frame, characters in frames:
        try:
            texts.append(decompress(frame, characters=characters))
        except (TypeError, ValueError) as error:
            raise CorruptDocumentError(key, str(error)) from error
    return texts

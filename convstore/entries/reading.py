"""A stored message as the message that was appended, once it is sure that it is that one.

Layer 1. What is stored is compared with the digests that were taken when it was written, so what a damaged document
says is never shown.
"""

from __future__ import annotations

from langchain_core.messages import BaseMessage

from convstore.codec import Codec, decode_message, digest_of
from convstore.entries.models import EntryMessage
from convstore.exceptions import CorruptDocumentError

__all__ = ["BODY_DIGEST_BYTES", "CONTENT_DIGEST_BYTES", "read_message"]

BODY_DIGEST_BYTES = 16
"""Enough to tell that a body was damaged."""

CONTENT_DIGEST_BYTES = 12
"""Enough to tell the contents of any two messages apart."""


def read_message(codec: Codec, message: EntryMessage, payload: str | None = None) -> BaseMessage:
    """The message that an entry holds; ranges stand in the place of parts that were not read of its payload.

    Args:
        codec: Knows the types of values.
        message: As it is stored.
        payload: All of its payload, or the beginning that views show; None if it was not read.

    Raises:
        CorruptDocumentError: What is stored is not what was written; names the entry.
    """
    try:
        return _read(codec, message, payload)
    except ValueError as error:
        raise CorruptDocumentError(message.entry, f"message {message.id!r}: {error}") from error


def _read(codec: Codec, message: EntryMessage, payload: str | None) -> BaseMessage:
    ref, taken = message.payload, digest_of(message.body)
    if taken != message.digest if ref is None else not taken.startswith(ref.body):
        raise ValueError("its body is not what was written")
    if ref is None or payload is None:
        decoded = decode_message(codec, message.body)
    else:
        digest = ref.digest if len(payload) == ref.ends[-1] else ref.shown_digest
        if not digest or not digest_of(payload).startswith(digest):
            raise ValueError("its payload is not what was written")
        decoded = decode_message(codec, message.body, fetch=lambda start, end: payload[start:end], limit=len(payload))
    if (decoded.type, decoded.id) != (message.type, message.id):
        raise ValueError("its body is that of another message")
    return decoded

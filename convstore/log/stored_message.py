"""A stored message as the message that was appended, once it is sure that it is that one.

Layer 1. What is stored is compared with the digests that were taken when it was written, so what a damaged document
says is never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import EntryMessage, PayloadRef
from convstore.messages.encoding import decode_message, digest_of
from convstore.messages.provenance import without_mark
from convstore.messages.values import Codec
from convstore.sources.shortening import (
    SHORTENED,
    leave_out,
    needs_edges_only,
    with_short_texts,
    with_stub,
    without_media,
)

__all__ = ["BODY_DIGEST_BYTES", "CONTENT_DIGEST_BYTES", "Form", "Shown", "payload_needed", "read_message", "shorten"]

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


class Shown(NamedTuple):
    """A message as a view shows it; `tokens` is None where its size has to be counted."""

    message: BaseMessage
    tokens: int | None
    has_placeholder: bool = False
    is_shortened: bool = False


def shorten(codec: Codec, message: EntryMessage, payloads: Mapping[str, str]) -> BaseMessage:
    """A message as views show it once its turn is finished: as its stub, with placeholders, or as it is."""
    return Form(message, whole=False, stub=message.stub).decode(codec, payloads).message


def payload_needed(message: EntryMessage, *, whole: bool = False, shorten_over: int | None = None) -> PayloadRef | None:
    """What a view reads of a message's payload: all of it, or the part that it shows once the turn is finished."""
    ref = message.payload
    if ref is None or whole:
        return ref
    has_edges = ref.is_edged and message.type in SHORTENED and needs_edges_only(shorten_over)
    return ref.shown_part() if ref.shown and message.stub is None and not has_edges else None


class Form(NamedTuple):
    """How one message is shown: in full, as a stub, or as a policy shows those of finished turns."""

    message: EntryMessage
    whole: bool
    stub: str | None = None
    has_media: bool = False
    shorten_over: int | None = None

    def decode(self, codec: Codec, payloads: Mapping[str, str]) -> Shown:
        """Return the message in this form, with the payloads that were read, by message id."""
        message, payload = self.message, payloads.get(self.message.id)
        if self.whole:
            whole = read_message(codec, message, payloads[message.id] if message.payload else None)
            return Shown(without_mark(whole), message.tokens)
        if self.stub is not None:
            stubbed = with_stub(without_mark(read_message(codec, message)), self.stub)
            return Shown(stubbed, message.view_tokens if self.stub == message.stub else None)
        return self._finished(codec, payload)

    def _finished(self, codec: Codec, payload: str | None) -> Shown:
        message, ref = self.message, self.message.payload
        if payload is not None and ref and not self.has_media:
            payload = payload[: ref.shown] or None
        decoded = without_mark(read_message(codec, message, payload))
        texts = decoded if self.shorten_over is None else with_short_texts(decoded, self.shorten_over)
        rest = ref is not None and len(payload or "") < ref.ends[-1] and (texts is decoded or ref.shown < ref.ends[-1])
        shown = leave_out(texts) if ref else texts
        final = shown if self.has_media else without_media(shown)
        tokens = message.tokens if self.has_media else message.view_tokens
        is_same = texts is decoded
        return Shown(final, tokens if is_same else None, rest or final is not shown, is_shortened=not is_same)

"""Restore stored messages, verified by their digests, in full or as a view shows them.

Each stored message is checked against the digests computed when it was written, so that damaged content is never shown.
The text of a source is checked against its own digest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import EntryMessage, EntrySource, PayloadRef
from convstore.messages.encoding import decode_message, digest_of
from convstore.messages.provenance import without_mark
from convstore.messages.text import text_of
from convstore.messages.values import Codec
from convstore.sources.detection import parse_json
from convstore.sources.shortening import (
    SHORTENED,
    Arguments,
    leave_out,
    needs_edges_only,
    with_short_texts,
    with_stub,
    without_media,
)
from convstore.sources.source import text_digest
from convstore.sources.stub import failure_in, stub_of
from convstore.values.stamps import ViewStamp, read_stamp

CONTENT_DIGEST_BYTES = 12
"""Length of a content digest; sufficient to distinguish the contents of any two messages."""
_RUN_CHARACTERS = 2_000_000
"""Characters of payloads after which a run ends; one command reads the payloads of a run of successive messages."""


def read_message(codec: Codec, message: EntryMessage, payload: str | None = None) -> BaseMessage:
    """Return the message of an entry, verified. Parts in a payload that was not read remain `PayloadRange` values.

    Args:
        codec: Decodes the values.
        message: The stored message.
        payload: Its whole payload, or the part that views show; None if it was not read.

    Raises:
        CorruptDocumentError: The stored message is damaged; names the entry.
    """
    ref = message.payload
    limit = None
    fetch: Callable[[int, int], str] | None = None if ref else _no_payload
    try:
        if digest_of(message.body) != message.digest:
            raise ValueError("its body does not match its digest")
        if ref and payload is not None:
            part = payload[: ref.own]
            digest = ref.digest if len(payload) >= ref.own else ref.shown_digest
            if digest_of(part) != digest:
                raise ValueError("its payload does not match its digest")
            fetch = partial(_slice, part)
            limit = len(part)
        decoded = decode_message(codec, message.body, fetch=fetch, limit=limit)
        if decoded.type != message.type or decoded.id != message.id:
            raise ValueError("its body belongs to another message")
    except ValueError as error:
        raise CorruptDocumentError(message.entry, f"message {message.id!r}: {error}") from error
    return decoded


def check_source(source: EntrySource, held: str) -> None:
    """Check the text of a source, given its piece or the whole payload of its message.

    Raises:
        CorruptDocumentError: The text is missing or damaged; names the entry.
    """
    place = source.place
    text = held[place.start : place.middle]
    if not held or (place.length and text_digest(text) != source.digest):
        raise CorruptDocumentError(
            source.entry, f"source {source.id}: its text does not match its digest"
        )


def stub_again(
    message: EntryMessage,
    appended: BaseMessage,
    *,
    source_ids: Collection[int] = (),
) -> str | None:
    """Recompute the stub of a stored tool result from the whole message; see `stub_of`."""
    text = text_of(appended.content)
    error = failure_in(getattr(appended, "status", "success"), text, parse_json(text))
    if message.is_judged:
        error = text if message.is_failed else None
    return stub_of(
        tool=message.tool,
        tool_message_id=message.id,
        content=text,
        tokens=message.tokens,
        source_ids=source_ids,
        error=error,
    )


def _slice(text: str, start: int, end: int) -> str:
    return text[start:end]


def _no_payload(_start: int, _end: int) -> str:
    raise ValueError("its body refers to a payload, and its entry names none")


def stored_stamp(conversation: str, message: EntryMessage) -> ViewStamp | None:
    """Return the stamp of the view that an AI message answers, None if it was appended without a stamp.

    Raises:
        CorruptDocumentError: The stamp is damaged.
    """
    try:
        return read_stamp(message.stamp, conversation) if message.stamp else None
    except ValueError as error:
        raise CorruptDocumentError(message.entry, f"message {message.id!r}: {error}") from error


@dataclass(slots=True)
class FormDetails:
    """How a view shows a message, and its size; `tokens` is None if the size has to be counted."""

    tokens: int | None
    has_placeholder: bool = False
    is_shortened: bool = False
    is_stub: bool = False


ShownMessage = tuple[BaseMessage, FormDetails]
"""A message as a view shows it, and the details."""


@dataclass(slots=True, kw_only=True)
class KeptMessage(FormDetails):
    """A verified message in the form of the last view, cached for the next one.

    The cache has encoded fields, because decoding a message is as fast as copying it.

    Attributes:
        showing: The view's decision on the message.
        options: The policy options that determined the form.
        body: The encoded fields; None if they equal those of the stored message, with its stub if `is_stub`.
    """

    showing: object
    options: tuple[object, ...]
    body: str | None


def as_in_finished_turn(
    codec: Codec, message: EntryMessage, payloads: Mapping[str, str]
) -> BaseMessage:
    """Return a message as views of finished turns show it: as its stub, with placeholders, or unchanged."""
    return MessageForm(message).decode(codec, payloads)[0]


def payload_runs(messages: Sequence[EntryMessage]) -> list[int]:
    """Return for each message with a payload the number of its run of successive messages; long runs are split."""
    runs: list[int] = []
    run = 0
    room = _RUN_CHARACTERS
    before = 0
    for message in messages:
        if room <= 0 or abs(message.ordinal - before) > 1:
            run = run + 1
            room = _RUN_CHARACTERS
        if message.payload:
            runs.append(run)
            room -= message.payload.ends[-1]
        before = message.ordinal
    return runs


def payload_needed(
    message: EntryMessage, *, whole: bool = False, shorten_over: int | None = None
) -> PayloadRef | None:
    """Return the part of a message's payload that a view must read; None if it needs no part."""
    ref = message.payload
    if ref is None or whole:
        return ref
    has_edges = ref.is_edged and message.type in SHORTENED and needs_edges_only(shorten_over)
    return ref.shown_part() if ref.shown and message.stub is None and not has_edges else None


class MessageForm(NamedTuple):
    """The form in which one message is shown: in full, or as a policy shows messages of finished turns.

    `arguments` decides if call arguments above `shorten_over` tokens are shortened, too.
    """

    message: EntryMessage
    whole: bool = False
    has_media: bool = False
    shorten_over: int | None = None
    arguments: Arguments = "kept"

    def decode(self, codec: Codec, payloads: Mapping[str, str]) -> ShownMessage:
        """Return the message in this form, given the loaded payloads by message id."""
        if self.whole:
            payload = payloads[self.message.id] if self.message.payload else None
            whole = read_message(codec, self.message, payload)
            return without_mark(whole), FormDetails(self.message.tokens)
        if (stub := self.message.stub) is not None:
            decoded = without_mark(read_message(codec, self.message))
            return with_stub(leave_out(decoded), stub), FormDetails(
                self.message.view_tokens, is_stub=True
            )
        return self._as_finished(codec, self._shown_part(payloads.get(self.message.id)))

    def _shown_part(self, payload: str | None) -> str | None:
        """Return the part of a payload that views of finished turns show; all of it if media are shown."""
        ref = self.message.payload
        if payload is None or ref is None or self.has_media:
            return payload
        return payload[: ref.shown] or None

    def _as_finished(self, codec: Codec, payload: str | None) -> ShownMessage:
        """Return the message as views show it in finished turns."""
        message = self.message
        decoded = without_mark(read_message(codec, message, payload))
        texts = decoded
        if self.shorten_over is not None:
            texts = with_short_texts(decoded, self.shorten_over, arguments=self.arguments)
        shown = leave_out(texts) if message.payload else texts
        final = shown if self.has_media else without_media(shown)
        if texts is not decoded:
            has_more = self._has_unread(payload, is_same=False) or final is not shown
            return final, FormDetails(None, has_more, is_shortened=True)
        has_more = self._has_unread(payload, is_same=True) or final is not shown
        tokens = message.tokens if self.has_media else message.view_tokens
        return final, FormDetails(tokens, has_more, is_shortened=False)

    def _has_unread(self, payload: str | None, *, is_same: bool) -> bool:
        """Return True if the message has content in a part of the payload that was not read."""
        ref = self.message.payload
        if ref is None or len(payload or "") >= ref.ends[-1]:
            return False
        return is_same or ref.shown < ref.ends[-1]

"""Split a message into a small body, stored in its log entry, and a payload, stored outside it.

The body is the message's fields, encoded by `messages.values`. The payload is one long text, which the body refers to
with `PayloadRange` values. It holds parts that are too large for an entry, and content and artifact of tool results
that have a stub.

The payload begins with the parts that views of finished turns show. Images, audio, files, artifacts and response
metadata come last, so that a view reads only the beginning. Where a part is stored depends only on the message, so
equal messages have equal bodies and payloads. One exception is a batch that is too large for an entry, which moves
smaller parts, too. Copies of sources that cannot be read in place come after the message's own parts.

Messages are restored by setting their fields, not by calling their constructors. Validators would fill in and convert
values, and the restored message must equal the stored one.

The module is long because splitting a message and joining it again have to agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import orjson
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.messages.media import is_media, media_description
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.values import Codec, is_text
from convstore.values.json_form import new_model

PART_MINIMUM = 16_384
"""Parts of a message with at least this many characters move to the payload."""

RESULT_MINIMUM = 1_100
"""Content and artifact of a tool result with at least this many characters move to the payload.

By the default counter, such a content has more than `sources.stub.STUB_MIN_TOKENS` tokens.
"""

DIGEST_BYTES = 16
"""Length of the digests of bodies and payloads: the beginning of a sha256."""

_MAX_SMALL_PARTS = 250_000
"""Maximum characters of all smaller parts together; above it, parts of average size move to the payload, too."""

SMALLEST_PART = 500
"""Parts with fewer characters never move to the payload."""

EDGE_CHARACTERS = 2_000
"""Number of characters at the beginning and at the end of a long text in the payload that the body keeps."""

_IN_BODY = frozenset({"type", "id", "name", "role", "status", "tool_call_id"})
"""Identifying fields of messages and calls, which never leave the body."""

_LATE = frozenset({"artifact", "response_metadata", "audio"})
"""Fields that views of finished turns do not show; `audio` is the audio of an answer."""

# a tuple, because the `type` of a block may be unhashable
_REQUESTS = (
    "server_tool_use",
    "mcp_tool_use",
    "server_tool_call",
)
"""Blocks in which a model calls a tool that its provider runs; the result is in the same message."""

_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
    "chat": ChatMessage,
}
MESSAGE_TYPES = frozenset(_CLASSES)
"""The values of a message's `type` that can be stored."""


_EMPTY: dict[str, dict[str, Callable[..., Any]]] = {
    name: {key: make for key, info in class_.model_fields.items() if (make := info.default_factory)}
    for name, class_ in _CLASSES.items()
}
_EMPTY_FIELDS = {name: tuple(factories.items()) for name, factories in _EMPTY.items()}
_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {
        key: None if key in _EMPTY[name] or info.is_required() else info.default
        for key, info in class_.model_fields.items()
    }
    for name, class_ in _CLASSES.items()
}
_FIELDS: dict[str, list[tuple[str, Any, type | None]]] = {
    name: [
        (key, default, type(_EMPTY[name][key]()) if key in _EMPTY[name] else None)
        for key, default in defaults.items()
        if key != "type"
    ]
    for name, defaults in _DEFAULTS.items()
}
"""The fields of each class with their default, or with the type of an empty default."""


class EncodedMessage(NamedTuple):
    """A message ready to be stored.

    Attributes:
        body: The fields, with ranges that refer to the payload.
        payload: The parts stored outside the entry.
        has_content: True if the payload has the content of a tool result.
        shown: Length of the beginning of the payload that a view of the finished turn shows.
        edges: Number of characters of texts in the payload that the body keeps.
        is_edged: True if the shown beginning consists of texts only, and the body keeps the edges of each.
        has_large_fields: True if the payload has more than content and artifact of a tool result.
    """

    body: str
    payload: str = ""
    shown: int = 0
    edges: int = 0
    is_edged: bool = False
    has_content: bool = False
    has_large_fields: bool = False

    @property
    def digests(self) -> bytes:
        """The digest of the body, followed by the digest of the payload if there is one."""
        return digest_of(self.body) + (digest_of(self.payload) if self.payload else b"")


@dataclass(slots=True)
class _Payload:
    """Collects the parts of a payload and their positions."""

    codec: Codec
    omitted: list[str] | None
    max_edges: int = 0
    minimum: int = PART_MINIMUM
    whole_contents: bool = False
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    edges: int = 0
    edged_length: int = 0

    def put(
        self, value: Any, *, about: str = "", link: str = "", is_media: bool = False
    ) -> PayloadRange:
        if is_text(value):
            return self.add(value, raw=True)
        part = self.add(self.codec.encode(value, omitted=self.omitted), raw=False)
        return replace(part, about=about, link=link, is_media=is_media) if about else part

    def add(self, text: str, *, raw: bool) -> PayloadRange:
        """Add a text, or the encoding of another value."""
        start = self.length
        self.length = self.length + len(text)
        self.pieces.append(text)
        return PayloadRange(start, self.length, raw)

    def put_text(self, text: str) -> PayloadRange:
        """Add a text of a message; its range keeps the beginning and the end if the body has room for them."""
        part = self.put(text)
        if len(text) < PART_MINIMUM or self.edges + 2 * EDGE_CHARACTERS > self.max_edges:
            return part
        self.edges += 2 * EDGE_CHARACTERS
        self.edged_length += len(text)
        return replace(part, head=text[:EDGE_CHARACTERS], tail=text[-EDGE_CHARACTERS:])


def fields_of(message: BaseMessage) -> dict[str, Any]:
    """Return the fields of a message that differ from their default, in the order of its class, `type` first.

    Extra fields are included. Equal messages give equal fields in the same order.
    """
    values: Any = message.__dict__
    fields: dict[str, Any] = {"type": message.type}
    for key, default, empty in _FIELDS[message.type]:
        value = values.get(key, default)
        # A value equal to the default is left out only if it has the same type.
        if empty is not None:
            if value or type(value) is not empty:
                fields[key] = value
        elif value is not default and not (type(value) is str and value == default):
            fields[key] = value
    return fields | (message.__pydantic_extra__ or {})


def digest_of(text: str) -> bytes:
    """Return the digest of a stored text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES]


def date_text(at: datetime) -> str:
    """Return a date as text for checksums: in UTC and to the millisecond, the precision of MongoDB."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def digest_of_messages(messages: Sequence[BaseMessage]) -> str:
    """Return a digest of a list of messages; equal lists give equal digests in every process.

    >>> digest_of_messages([HumanMessage("hi")]) == digest_of_messages([HumanMessage("hi")])
    True
    """
    codec = Codec()
    digest = hashlib.sha256()
    for message in messages:
        text = codec.encode(fields_of(message), omitted=[]).encode("utf-8", "surrogatepass")
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()[:32]


def encode_message(
    codec: Codec,
    fields: dict[str, Any],
    *,
    omitted: list[str] | None = None,
    max_edges: int = 0,
    minimum: int = PART_MINIMUM,
    whole_contents: bool = False,
) -> EncodedMessage:
    """Split a message's fields, as `fields_of` returns them, into body and payload.

    `max_edges` limits the characters of long texts that the body keeps. Parts with at least `minimum` characters move
    to the payload; with `whole_contents`, a content of many small blocks does so as a whole. With `omitted`, values of
    unknown types are left out and their paths appended to it.
    """
    payload = _Payload(codec, omitted, max_edges, minimum, whole_contents)
    if fields["type"] == "tool":
        return _encode_result(fields, payload)
    body = codec.encode(fields, omitted=omitted)
    # Every model call needs the system prompt, so it stays whole in the entry if it fits.
    is_kept = fields["type"] == "system" and minimum == PART_MINIMUM
    if len(body) < minimum or is_kept:
        return EncodedMessage(body)
    fields = dict(fields)
    _put_large_parts(fields, payload, late=False)
    shown = payload.length
    _put_large_parts(fields, payload, late=True)
    if not payload.length:  # it has only many small parts
        return EncodedMessage(body)
    body = codec.encode(fields, omitted=None if omitted is None else [])
    is_edged = payload.edged_length == shown > 0
    return EncodedMessage(
        body,
        "".join(payload.pieces),
        shown=shown,
        edges=payload.edges,
        is_edged=is_edged,
        has_large_fields=True,
    )


def _encode_result(fields: dict[str, Any], payload: _Payload) -> EncodedMessage:
    """Encode a tool result, whose large content and artifact are the beginning of its payload."""
    fields = dict(fields)
    encode = partial(payload.codec.encode, omitted=payload.omitted)
    content = fields["content"]
    text = content if is_text(content) else encode(content)
    moved: dict[str, PayloadRange] = {}
    if len(text) >= RESULT_MINIMUM:
        moved["content"] = payload.add(text, raw=text is content)
    shown = payload.length
    if "artifact" in fields:
        artifact = encode(fields["artifact"])
        if len(artifact) >= RESULT_MINIMUM:
            moved["artifact"] = payload.add(artifact, raw=False)
    result = payload.length
    for key in moved:
        del fields[key]
    _put_large_parts(fields, payload, late=False)
    _put_large_parts(fields, payload, late=True)
    return EncodedMessage(
        payload.codec.encode_with(moved, fields, omitted=payload.omitted),
        "".join(payload.pieces),
        shown,
        has_content="content" in moved,
        has_large_fields=payload.length > result,
    )


def decode_message(
    codec: Codec,
    body: str,
    *,
    fetch: Callable[[int, int], str] | None = None,
    limit: int | None = None,
) -> BaseMessage:
    """Restore a message from its body.

    `fetch` returns a range of the payload; without it, and beyond `limit`, ranges stay in the message.

    Raises:
        ValueError: The body was not written by `encode_message`.
    """
    fields = codec.decode(body, fetch=fetch, limit=limit)
    try:
        return _message_of(fields)
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"not the fields of a message: {error!r}") from error


def decode_if_plain(body: str, stub: str | None = None) -> BaseMessage | None:
    """Restore a message from a body of plain JSON types, with a stub in place of its result; None for other bodies."""
    try:
        fields = _loads(body)
        tags = body.count('"$":')
        if stub is not None:
            for part in (fields.get("content"), fields.get("artifact")):
                tags -= type(part) is dict and "$" in part
        return None if tags else _message_of(fields, stub)
    except (ValueError, KeyError, TypeError, AttributeError):
        # the body has a NaN, a lone surrogate or several lines, or is damaged
        return None


def decode_plain(body: str, stub: str | None = None) -> BaseMessage:
    """Restore a message from a body that `decode_if_plain` could read before; it is as fast as a copy."""
    return _message_of(_loads(body), stub)


def _loads(body: str) -> Any:
    """Parse a body. Text that is not ASCII is encoded first, because Python would cache its UTF-8 form, too."""
    return orjson.loads(body if body.isascii() else body.encode())


def _message_of(fields: dict[str, Any], stub: str | None = None) -> BaseMessage:
    """Return the message with these fields, and a stub in place of its result; the dict becomes part of the message."""
    if stub is not None:
        fields["content"] = stub
        fields.pop("artifact", None)
    name = fields.pop("type")
    defaults = _DEFAULTS[name]
    values = defaults | fields
    for key, make in _EMPTY_FIELDS[name]:
        if key not in fields:
            values[key] = make()
    extra: dict[str, Any] = {}
    if len(values) > len(defaults):
        extra = {key: values.pop(key) for key in fields if key not in defaults}
    return new_model(_CLASSES[name], values, extra=extra, fields_set=set(fields))


def link_of(block: Any) -> str:
    """Return the id shared by the request and the result of a tool that the provider ran, "" for other blocks."""
    if type(block) is not dict:
        return ""
    if block.get("type") in _REQUESTS:
        link = block.get("id")
    else:
        link = block.get("tool_use_id") or block.get("tool_call_id")
    return link if is_text(link) else ""


def _put_large_parts(fields: dict[str, Any], payload: _Payload, *, late: bool) -> None:
    """Move large parts into the payload: content, blocks, arguments, entries of dicts.

    It is called twice, because parts that views of finished turns do not show (`late`) come last.
    """
    for key, value in fields.items():
        if type(value) is PayloadRange or key in _IN_BODY:
            continue
        size = _size(value, payload)
        if size >= payload.minimum and (late or not _is_late(key, size)):
            fields[key] = _split(key, value, payload, late=late)


def _is_late(key: Any, size: int) -> bool:
    """Return True for a part that views of finished turns do not show; they do show small values of these fields."""
    return key in _LATE and size >= PART_MINIMUM


def _split(key: str, value: Any, payload: _Payload, *, late: bool) -> Any:
    if key == "content" and type(value) is list:
        return _split_content(value, payload, late=late)
    if key in ("tool_calls", "invalid_tool_calls") and type(value) is list:
        minimum = _minimum(value, payload)
        return [
            _split_dict(call, payload, minimum, keep=_IN_BODY) if type(call) is dict else call
            for call in value
        ]
    if type(value) is dict:
        return _split_dict(value, payload, _minimum(value.values(), payload), late=late)
    if key == "content" and is_text(value):
        return payload.put_text(value)
    return payload.put(value)


def _split_content(blocks: list[Any], payload: _Payload, *, late: bool) -> Any:
    """Move large content blocks to the payload; media only in the second, `late` pass."""
    if payload.whole_contents:
        return payload.put(blocks)
    minimum = _minimum(blocks, payload)
    split: list[Any] = []
    for block in blocks:
        stays = type(block) is PayloadRange or (is_media(block) and not late)
        if stays or _size(block, payload) < minimum:
            split.append(block)
        else:
            split.append(_split_block(block, payload, minimum))
    return split


def _split_block(block: Any, payload: _Payload, minimum: int) -> Any:
    """Move a large content block to the payload; of a text block only the text, if the rest is small."""
    if is_text(block):
        return payload.put_text(block)
    if type(block) is not dict:
        return payload.put(block, about="text", link=link_of(block))
    text = block.get("text")
    if is_text(text) and len(text) >= minimum:
        rest = {key: part for key, part in block.items() if key != "text"}
        if _size(rest, payload) < minimum:
            return {**block, "text": payload.put_text(text)}
    if is_media(block):
        return payload.put(block, about=media_description(block), is_media=True)
    kind = block.get("type")
    return payload.put(block, about=kind if is_text(kind) else "text", link=link_of(block))


def _split_dict(
    value: dict[Any, Any],
    payload: _Payload,
    minimum: int,
    *,
    keep: Collection[str] = (),
    late: bool = True,
) -> dict[Any, Any]:
    left: dict[Any, Any] = {}
    for key, part in value.items():
        left[key] = part
        if key in keep or type(part) is PayloadRange:
            continue
        size = _size(part, payload)
        if size >= minimum and (late or not _is_late(key, size)):
            left[key] = payload.put(part)
    return left


def _minimum(parts: Collection[Any], payload: _Payload) -> int:
    """Return the size from which parts move to the payload; it is lower if all small parts together are too large."""
    if payload.minimum < PART_MINIMUM or len(parts) * PART_MINIMUM <= _MAX_SMALL_PARTS:
        return payload.minimum
    small = sum(size for size in (_size(part, payload) for part in parts) if size < PART_MINIMUM)
    if small > _MAX_SMALL_PARTS:
        return max(SMALLEST_PART, _MAX_SMALL_PARTS // len(parts))
    return PART_MINIMUM


def _size(value: Any, payload: _Payload) -> int:
    """Return the length of a text or of a value's JSON; 0 for values that are not longer than a reference to them."""
    if is_text(value):
        return len(value)
    if value is None or type(value) in (bool, int, float):
        return 0
    return len(payload.codec.encode(value, omitted=None if payload.omitted is None else []))

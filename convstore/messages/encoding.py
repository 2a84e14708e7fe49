"""A message as a small body, which stays in the log entry, and a payload, which does not.

The body is the message's fields as text of ``codec.values``. What is too large for an entry, and content and artifact
of a tool result that has a stub, goes into the payload: one long text, to which `PayloadRange` values in the body
refer. It begins with what views of finished turns show; images, audio, files, artifacts and metadata of the response
come last, so that a view reads the beginning alone. Each source of a tool result stands in one piece of it, text first,
so that it can be read without the rest; sources that stand elsewhere, in JSON content for example, have such pieces
too, beside what holds them::

    text of source 1 | item 1 | text of source 2 | item 2 | … | content | artifact without its items | other parts

Messages are rebuilt by filling their fields, not by calling their constructors: validators fill in and convert, and
what comes back must be equal to what was stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic.fields import FieldInfo

from convstore.messages.media import is_media, media_description
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.values import Codec, is_text

__all__ = [
    "EDGE_CHARACTERS",
    "MESSAGE_TYPES",
    "PART_MINIMUM",
    "EncodedMessage",
    "SourceItem",
    "SourcePlace",
    "decode_message",
    "digest_of",
    "encode_message",
    "encode_source",
    "fields_of",
    "link_of",
]

PART_MINIMUM = 16_384
"""A part of a message whose text is this long, in characters, is kept outside the entry."""

_PARTS_MOST, _PART_LEAST = 250_000, 500
"""If smaller parts are longer than the first together, those from about their average size on, or the second, leave."""

EDGE_CHARACTERS = 2_000
"""The body keeps so much of the beginning and of the end of a long text in the payload."""

_IN_BODY = frozenset({"type", "id", "name", "role", "status", "tool_call_id"})
"""What tells a message or a call from others never leaves the body."""

_LATE = frozenset({"artifact", "response_metadata", "audio"})
"""What views of finished turns do not show: these fields, and the audio of an answer."""

_REQUESTS = frozenset({"server_tool_use", "mcp_tool_use", "server_tool_call"})
"""Blocks with which a model calls a tool that its provider runs; the result stands in the same message."""

_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
    "chat": ChatMessage,
}
MESSAGE_TYPES = frozenset(_CLASSES)
"""What a message calls its class."""


def _factory_of(info: FieldInfo) -> Callable[[], Any] | None:
    """The function that makes a field's default. Before langchain-core 1.3 the default is an empty list instead."""
    return type(info.default) if info.default in ([], {}) else info.default_factory  # type: ignore[return-value]


_EMPTY: dict[str, dict[str, Callable[[], Any]]] = {
    name: {key: make for key, info in class_.model_fields.items() if (make := _factory_of(info))}
    for name, class_ in _CLASSES.items()
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {
        key: None if key in _EMPTY[name] or info.is_required() else info.default
        for key, info in class_.model_fields.items()
    }
    for name, class_ in _CLASSES.items()
}


class SourceItem(Protocol):
    """A source inside an artifact, as ``sources.find_sources`` finds it."""

    @property
    def text(self) -> str:
        """The text that is read page by page."""
        ...

    def with_text(self, text: Any) -> Any:
        """The item itself with something else in the place of its text."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where a source stands in the payload, in characters: its text to `middle`, the item around it to `end`."""

    start: int
    middle: int
    end: int


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message ready to be stored.

    Attributes:
        body: Its fields, with ranges in the place of what is in the payload.
        payload: The rest.
        places: Where its sources stand in the payload.
        shown: Length of the beginning of the payload that a view of the finished turn shows.
        edges: Characters of texts in the payload that the body keeps, too.
        is_edged: That beginning of the payload is texts alone of which the body keeps the edges.
    """

    body: str
    payload: str = ""
    places: tuple[SourcePlace, ...] = ()
    shown: int = 0
    edges: int = 0
    is_edged: bool = False


@dataclass(slots=True)
class _Payload:
    """Collects the pieces of a payload and knows where each one stands."""

    codec: Codec
    omitted: list[str] | None
    most_edges: int = 0
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    edges: int = 0
    edged_length: int = 0

    def put(self, value: Any, *, about: str = "", link: str = "", is_media: bool = False) -> PayloadRange:
        raw = is_text(value)
        text = value if raw else self.codec.encode(value, omitted=self.omitted)
        start, self.length = self.length, self.length + len(text)
        self.pieces.append(text)
        return PayloadRange(start, self.length, raw, about, link, is_media)

    def put_text(self, text: str) -> PayloadRange:
        """Put a text of a message, and keep its edges in the body as far as there is room for them."""
        part = self.put(text)
        if len(text) < PART_MINIMUM or self.edges + 2 * EDGE_CHARACTERS > self.most_edges:
            return part
        self.edges += 2 * EDGE_CHARACTERS
        self.edged_length += len(text)
        return replace(part, head=text[:EDGE_CHARACTERS], tail=text[-EDGE_CHARACTERS:])

    def put_source(self, item: SourceItem) -> tuple[SourcePlace, PayloadRange]:
        text = self.put(item.text)
        around = self.put(item.with_text(text))
        return SourcePlace(text.start, text.end, around.end), around


def fields_of(message: BaseMessage) -> dict[str, Any]:
    """The fields of a message that are not at their default, its type first, in the order of its class.

    Extra fields are kept. Equal messages give equal fields in the same order.
    """
    name = message.type
    defaults, empty = _DEFAULTS[name], _EMPTY[name]
    values: Any = message.__dict__
    fields = {"type": name}
    for key, default in defaults.items():
        value = values.get(key, default)
        if key != "type" and not _is_default(value, default, empty.get(key)):
            fields[key] = value
    return fields | (message.__pydantic_extra__ or {})


def digest_of(text: str) -> bytes:
    """What tells two canonical texts apart: their sha256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def encode_message(
    codec: Codec,
    fields: dict[str, Any],
    *,
    items: Sequence[SourceItem] = (),
    rebuild: Callable[[list[Any]], Any] | None = None,
    split_result: bool = False,
    omitted: list[str] | None = None,
    most_edges: int = 0,
) -> EncodedMessage:
    """Split a message's fields into body and payload.

    Args:
        codec: Knows the types of values.
        fields: What `fields_of` gave.
        items: Sources in the artifact that get a place of their own.
        rebuild: Gives the artifact with something else in the place of each item.
        split_result: Put content and artifact of a tool result into the payload, whatever their size.
        omitted: If given, paths of unknown values that were left out are added here.
        most_edges: Of long texts in the payload the body keeps up to so many characters, too.
    """
    payload = _Payload(codec, omitted, most_edges)
    fields = dict(fields)
    places: tuple[SourcePlace, ...] = ()
    if split_result:
        placed = [payload.put_source(item) for item in items]
        places = tuple(place for place, _ in placed)
        fields["content"] = payload.put(fields["content"])
        if "artifact" in fields:
            artifact = rebuild([around for _, around in placed]) if rebuild and placed else fields["artifact"]
            fields["artifact"] = payload.put(artifact)
    _put_large_parts(fields, payload, late=False)
    shown = 0 if split_result else payload.length
    _put_large_parts(fields, payload, late=True)
    body = codec.encode(fields, omitted=omitted)
    is_edged = payload.edged_length == shown > 0
    return EncodedMessage(body, "".join(payload.pieces), places, shown, payload.edges, is_edged)


def encode_source(codec: Codec, item: SourceItem, *, omitted: list[str] | None = None) -> tuple[str, SourcePlace]:
    """A source as it stands in a payload, for a message that has none."""
    payload = _Payload(codec, omitted)
    place, _ = payload.put_source(item)
    return "".join(payload.pieces), place


def decode_message(
    codec: Codec, body: str, *, fetch: Callable[[int, int], str] | None = None, limit: int | None = None
) -> BaseMessage:
    """The message that a body stands for; ranges of its payload are read with `fetch`, or left standing without.

    Args:
        codec: Knows the types of values.
        body: The body.
        fetch: Gives the characters of a range.
        limit: Length of what was read of the payload; ranges that end behind it are left standing.

    Raises:
        ValueError: The body is not what `encode_message` wrote.
    """
    fields = codec.decode(body, fetch=fetch, limit=limit)
    try:
        return _build(fields.pop("type"), fields)
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"not the fields of a message: {error!r}") from error


def link_of(block: Any) -> str:
    """The id that the request and the result of a tool run by the provider have in common, "" for other blocks."""
    if type(block) is not dict:
        return ""
    link = block.get("id") if block.get("type") in _REQUESTS else block.get("tool_use_id") or block.get("tool_call_id")
    return link if is_text(link) else ""


def _is_default(value: Any, default: Any, empty: Callable[[], Any] | None) -> bool:
    """Whether a field need not be stored; True only if its default has the very same value and type."""
    if empty is not None:
        return not value and type(value) is type(empty())
    return value is default or (type(value) is str and value == default)


def _build(name: str, fields: dict[str, Any]) -> BaseMessage:
    class_ = _CLASSES[name]
    defaults = _DEFAULTS[name]
    values = {**defaults, **fields}
    for key, make in _EMPTY[name].items():
        if key not in fields:
            values[key] = make()
    extra: dict[str, Any] = {}
    if len(values) > len(defaults):
        extra = {key: values.pop(key) for key in fields if key not in defaults}
    message = class_.__new__(class_)
    # pydantic's own way to restore a model without validation, as its pickling does.
    message.__setstate__(
        {
            "__dict__": values,
            "__pydantic_extra__": extra,
            "__pydantic_fields_set__": set(fields),
            "__pydantic_private__": None,
        }
    )
    return message


def _put_large_parts(fields: dict[str, Any], payload: _Payload, *, late: bool) -> None:
    """Move each part from `PART_MINIMUM` on into the payload: content, blocks, arguments, entries of dicts.

    Called twice, as what no view of a finished turn shows comes last.
    """
    for key, value in fields.items():
        if type(value) is PayloadRange or key in _IN_BODY or (key in _LATE and not late):
            continue
        if _size(value, payload) >= PART_MINIMUM:
            fields[key] = _split(key, value, payload, late=late)


def _split(key: str, value: Any, payload: _Payload, *, late: bool) -> Any:
    if key == "content" and type(value) is list:
        least = _minimum(value, payload)
        return [
            _split_block(part, payload, least)
            if (late or not is_media(part)) and type(part) is not PayloadRange and _size(part, payload) >= least
            else part
            for part in value
        ]
    if key in ("tool_calls", "invalid_tool_calls") and type(value) is list:
        least = _minimum(value, payload)
        return [_split_dict(call, payload, least, keep=_IN_BODY) if type(call) is dict else call for call in value]
    if type(value) is dict:
        return _split_dict(value, payload, _minimum(value.values(), payload), keep=() if late else _LATE)
    return payload.put_text(value) if key == "content" and is_text(value) else payload.put(value)


def _split_block(block: Any, payload: _Payload, least: int) -> Any:
    """A large content block as a range, or a text block with its text as one."""
    if is_text(block):
        return payload.put_text(block)
    if type(block) is dict and is_text(text := block.get("text")) and len(text) >= least:
        around = {key: part for key, part in block.items() if key != "text"}
        if _size(around, payload) < least:
            return {**block, "text": payload.put_text(text)}
    if is_media(block):
        return payload.put(block, about=media_description(block), is_media=True)
    kind = block.get("type") if type(block) is dict else None
    return payload.put(block, about=kind if is_text(kind) else "text", link=link_of(block))


def _split_dict(value: dict[Any, Any], payload: _Payload, least: int, *, keep: Collection[str] = ()) -> dict[Any, Any]:
    return {
        key: payload.put(part)
        if key not in keep and type(part) is not PayloadRange and _size(part, payload) >= least
        else part
        for key, part in value.items()
    }


def _minimum(parts: Collection[Any], payload: _Payload) -> int:
    """From what size on a part leaves the body: smaller ones too if there are so many that no entry could hold them."""
    if len(parts) * PART_MINIMUM <= _PARTS_MOST:
        return PART_MINIMUM
    small = sum(size for size in (_size(part, payload) for part in parts) if size < PART_MINIMUM)
    return max(_PART_LEAST, _PARTS_MOST // len(parts)) if small > _PARTS_MOST else PART_MINIMUM


def _size(value: Any, payload: _Payload) -> int:
    """Characters of a text or of a value's JSON; what is no longer than a reference to it has none."""
    if is_text(value):
        return len(value)
    if value is None or type(value) in (bool, int, float):
        return 0
    return len(payload.codec.encode(value, omitted=None if payload.omitted is None else []))

"""What can be read of a stored message, as passages with names.

Layer 4, pure. A passage is read from its beginning to its end. Its key and a character make a cursor: ``11@4000`` goes
on in source 11, ``m7@4000`` in the message with ordinal 7, ``m7.2@0`` in the second further part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.codec import Codec, PayloadRange
from convstore.entries import EntrySource, PayloadRef
from convstore.models import Source
from convstore.repository import StoredMessageRow
from convstore.sources import source_in
from convstore.stubs import text_of

__all__ = ["Cursor", "Passage", "make_source", "passage_of_source", "passages_of", "read_cursor", "snippets"]

_AROUND = 200
_LABEL_CHARACTERS = 200
_NUMBERS = 60
_CURSOR = re.compile(r"(?P<key>(?P<source>\d{1,15})|m(?P<ordinal>\d{1,15})(\.\d{1,6})?)@(?P<offset>\d{1,15})", re.ASCII)


class Cursor(NamedTuple):
    """Where a page ended: the passage, and what it is a passage of: a source or the message with an ordinal."""

    key: str
    source_id: int | None
    ordinal: int | None
    offset: int


def read_cursor(text: str) -> Cursor | None:
    """The place that a cursor names; None if it is none.

    >>> read_cursor("11@4000")
    Cursor(key='11', source_id=11, ordinal=None, offset=4000)
    """
    found = _CURSOR.fullmatch(text.strip())
    if not found:
        return None
    source, ordinal = found["source"], found["ordinal"]
    return Cursor(
        found["key"], int(source) if source else None, int(ordinal) if ordinal else None, int(found["offset"])
    )


@dataclass(frozen=True, slots=True)
class Passage:
    """Something to read: a text at hand, or a range of a payload.

    Attributes:
        key: Names it in cursors.
        label: Names it in headers; one line.
        length: Its characters.
        text: The text itself, if it is at hand.
        ref: The payload that it is in, if it is in one.
        start: Where it begins in the payload.
        source: The source that it is the text of.
    """

    key: str
    label: str
    length: int
    text: str = ""
    ref: PayloadRef | None = None
    start: int = 0
    source: EntrySource | None = None

    @property
    def overhead(self) -> int:
        """Characters of its header line on a page."""
        return len(self.label) + _NUMBERS

    @property
    def item_range(self) -> tuple[int, int]:
        """Where what is said of its source stands in the payload."""
        assert self.source is not None  # noqa: S101 - asked for sources only
        return self.source.place.middle, self.source.place.end


def passages_of(row: StoredMessageRow, message: BaseMessage) -> list[Passage]:
    """All passages of a message whose payload was not read: sources, content, and what else stands outside."""
    ref, key = row.message.payload, f"m{row.message.ordinal}"
    texts = [passage_of_source(source, row) for source in row.sources]
    content = _of_value(row.message.tool or row.message.type, message.content, ref)
    rest = _rest(message, ref, has_sources=bool(texts))
    own = [replace(passage, key=f"{key}.{place}" if place else key) for place, passage in enumerate([*content, *rest])]
    return [*texts, *own]


def passage_of_source(source: EntrySource, row: StoredMessageRow) -> Passage:
    """The text of one source; an item without a text of its own is read as it is."""
    named = " ".join(filter(None, [source.title, f"({source.url})" if source.url else ""]))
    same = f", the same as [{source.earlier}]" if source.earlier else ""
    label = _one_line(f"[{source.id}] {named}")[: _LABEL_CHARACTERS - len(same)] + same
    place, ref = source.place, row.message.payload
    start, end = (place.start, place.middle) if place.middle > place.start else (place.middle, place.end)
    if source.piece or ref is None:
        return Passage(str(source.id), label, end - start, text=source.piece[start:end], source=source)
    return Passage(str(source.id), label, end - start, ref=ref, start=start, source=source)


def make_source(codec: Codec, source: EntrySource, *, content: str, item: str) -> Source:
    """A source as the public API gives it.

    Args:
        codec: Decodes the item.
        source: What its entry says of it.
        content: Its text, or the part of it that is asked for.
        item: What the tool said of it, as it is stored.

    Raises:
        ValueError: The item is not what was written.
    """
    found = source_in(codec.decode(item, fetch=lambda _start, _end: ""))
    return Source(
        source_id=source.id,
        title=found.title if found else source.title,
        url=found.url if found else source.url,
        content=content,
        metadata=found.metadata if found else {},
        tool_message_id=source.message_id,
        earlier_id=source.earlier,
        given_id=source.given,
    )


def snippets(text: str, find: str) -> Iterator[tuple[int, int]]:
    """Ranges of a text around the matches of another, in any case, those that touch joined.

    >>> list(snippets("a" * 300 + "Needle" + "b" * 300, "needle"))
    [(100, 506)]
    """
    start = stop = 0
    for match in re.finditer(re.escape(find), text, re.IGNORECASE):
        if stop and match.start() - _AROUND > stop:
            yield start, stop
            stop = 0
        start = start if stop else max(0, match.start() - _AROUND)
        stop = min(len(text), match.end() + _AROUND)
    if stop:
        yield start, stop


def _of_value(label: str, value: Any, ref: PayloadRef | None) -> list[Passage]:
    """A content or an artifact as passages; what lies in the payload in pieces of its own."""
    label = _one_line(label)
    if isinstance(value, PayloadRange):
        return [Passage("", label, value.end - value.start, ref=ref, start=value.start)]
    if isinstance(value, list) and any(isinstance(part, PayloadRange) for part in value):
        parts = enumerate(value, 1)
        return [passage for place, part in parts for passage in _of_value(f"{label}, part {place}", part, ref)]
    text = text_of(value)
    return [Passage("", label, len(text), text=text)]


def _rest(message: BaseMessage, ref: PayloadRef | None, *, has_sources: bool) -> list[Passage]:
    """The artifact, unless all that it holds is read as sources; and whatever else stands outside the entry."""
    found: list[tuple[str, Any]] = []
    if isinstance(message, ToolMessage) and message.artifact is not None and not has_sources:
        found.append(("artifact", message.artifact))
    calls = [*getattr(message, "tool_calls", []), *getattr(message, "invalid_tool_calls", [])]
    found += [(f"arguments {place} of {call.get('name')}", call.get("args")) for place, call in enumerate(calls, 1)]
    for name, value in {**message.__dict__, **(message.__pydantic_extra__ or {})}.items():
        if name not in ("content", "artifact"):
            parts = {f"{name}.{key}": part for key, part in value.items()} if type(value) is dict else {name: value}
            found += parts.items()
    return [
        passage
        for label, value in found
        if isinstance(value, PayloadRange) or label == "artifact"
        for passage in _of_value(label, value, ref)
    ]


def _one_line(label: str) -> str:
    """A label that can be part of a header: what a source calls itself can not pass for a line of ours."""
    return " ".join(label.split())[:_LABEL_CHARACTERS]

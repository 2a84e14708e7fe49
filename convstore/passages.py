"""What can be read of a stored message, as passages with names.

Layer 4, pure. A passage is read from its beginning to its end; its key and a character make a cursor, such as
``11@4000`` for source 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.codec import PayloadRange
from convstore.entries import EntrySource, PayloadRef
from convstore.repository import StoredMessageRow
from convstore.sources import find_sources, parse_json
from convstore.stubs import text_of

__all__ = ["Passage", "passage_of_source", "passages_of", "snippets"]

_AROUND = 200
_LABEL_CHARACTERS = 200
_NUMBERS = 60


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
        metadata: Of a source whose text is at hand.
    """

    key: str
    label: str
    length: int
    text: str = ""
    ref: PayloadRef | None = None
    start: int = 0
    source: EntrySource | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def overhead(self) -> int:
        """Characters of its header line on a page."""
        return len(self.label) + _NUMBERS


def passages_of(row: StoredMessageRow, message: BaseMessage) -> list[Passage]:
    """All passages of a message whose payload was not read: sources, content, and what else stands outside."""
    ref = row.message.payload
    texts = [passage_of_source(source, row, message) for source in row.sources]
    content = _of_value(row.message.id, row.message.tool or row.message.type, message.content, ref)
    return [*texts, *content, *_rest(message, ref, has_sources=bool(texts))]


def passage_of_source(source: EntrySource, row: StoredMessageRow, message: BaseMessage) -> Passage:
    """The text of one source; an item without a text of its own is read as it is."""
    named = " ".join(filter(None, [source.title, f"({source.url})" if source.url else ""]))
    label = _one_line(f"[{source.id}] {named}")
    place = source.place
    if place is None or row.message.payload is None:
        return _at_hand(source, row, message, label)
    start, end = (place.start, place.middle) if place.middle > place.start else (place.middle, place.end)
    return Passage(str(source.id), label, end - start, ref=row.message.payload, start=start, source=source)


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


def _at_hand(source: EntrySource, row: StoredMessageRow, message: BaseMessage, label: str) -> Passage:
    """A source of a small result, which is whole in its entry."""
    assert isinstance(message, ToolMessage)  # noqa: S101 - nothing else has sources
    found = find_sources(message, parse_json(text_of(message.content))).items[row.sources.index(source)]
    text = found.text or text_of(found.item)
    return Passage(str(source.id), label, len(text), text=text, source=source, metadata=found.metadata)


def _of_value(key: str, label: str, value: Any, ref: PayloadRef | None) -> list[Passage]:
    """A content or an artifact as passages; what lies in the payload in pieces of its own."""
    label = _one_line(label)
    if isinstance(value, PayloadRange):
        return [Passage(key, label, value.end - value.start, ref=ref, start=value.start)]
    if isinstance(value, list) and any(isinstance(part, PayloadRange) for part in value):
        return [
            passage
            for place, part in enumerate(value, 1)
            for passage in _of_value(f"{key}#{place}", f"{label}, part {place}", part, ref)
        ]
    text = text_of(value)
    return [Passage(key, label, len(text), text=text)]


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
        for passage in _of_value(f"{message.id}#{label.replace(' ', '-')}", label, value, ref)
    ]


def _one_line(label: str) -> str:
    """A label that can be part of a header: what a source calls itself can not pass for a line of ours."""
    return " ".join(label.split())[:_LABEL_CHARACTERS]

"""Converts stored sources to the public model, whole or cut to the room on a page."""

from __future__ import annotations

from typing import Any

from convstore.log.entry import EntrySource
from convstore.messages.provenance import mark
from convstore.messages.unvalidated import new_model
from convstore.messages.values import Codec
from convstore.readback.passages import in_line
from convstore.sources.source import FoundSource
from convstore.values.models import Source

_LEFT_OUT = "too large for a page; get_tool_messages gives it whole"
_MAX_NAMED = 5
_NAME_CHARACTERS = 60


def make_source(source: EntrySource, found: FoundSource | None, *, content: str) -> Source:
    """Convert a stored source to the public model.

    Args:
        source: The source as stored in its entry.
        found: The item that the tool returned; None if it was not read.
        content: Its text, or the requested part of it.
    """
    title, url, metadata = found.label() if found else (source.title, source.url, {})
    values = {
        "source_id": source.id,
        "title": title,
        "url": url,
        "content": content,
        "metadata": metadata,
        "tool_message_id": source.message_id,
        "earlier_id": source.earlier,
        "given_id": source.given,
        "child_id": "",
    }
    return new_model(Source, values, fields_set=set(values))


def page_source(
    codec: Codec, source: EntrySource, found: FoundSource | None, *, content: str, room: int
) -> tuple[Source, int]:
    """Convert a stored source for a page; return it with the remaining room for items.

    Metadata that does not fit is replaced by a mark that lists the omitted keys.

    Args:
        codec: Measures the metadata.
        source: The source as stored in its entry.
        found: The item that the tool returned; None if it is too large to read.
        content: The part of its text that is on the page.
        room: Maximum number of stored characters of the item.
    """
    whole = make_source(source, found, content=content)
    if found and source.place.rest <= room:
        return whole, room - source.place.rest
    kept: dict[str, Any] = {}
    for key, value in whole.metadata.items():
        size = len(key) + len(codec.encode(value, omitted=[]))
        if size <= room:
            kept[key] = value
            room -= size
    left_out = [name for name in ("title", "url") if getattr(whole, name) != getattr(source, name)]
    left_out += [in_line(key, _NAME_CHARACTERS) for key in whole.metadata if key not in kept]
    if found and not left_out:
        return whole, room
    rest = [f"{len(left_out) - _MAX_NAMED} more"] if len(left_out) > _MAX_NAMED else []
    kept |= mark("left_out", keys=[*left_out[:_MAX_NAMED], *rest], message=_LEFT_OUT)
    return whole.model_copy(
        update={"title": source.title, "url": source.url, "metadata": kept}
    ), room

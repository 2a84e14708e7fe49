"""Decide how much of an artifact, or of content in JSON, other passages of its result show already."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import EntrySource
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.values import Codec
from convstore.readback.dedup import SHOWN_ABOVE
from convstore.sources.places import read_item, read_text
from convstore.sources.source import source_in

_WRAPPER_LENGTHS = tuple(
    len(frame) for frame in ("", '{"results":}', '{"documents":}', '{"chunks":}', '{"passages":}')
)
"""Lengths of wrappers around a list of items that add no content; all differ, so none can hide one more value."""


def holds_only_sources(value: Any, sources: Sequence[EntrySource], codec: Codec) -> bool:
    """Return True if a value holds only texts of its sources, which have passages of their own."""
    if not all(source.is_plain for source in sources):
        return False
    if isinstance(value, PayloadRange):
        return _is_frame(value, sources)
    items = _items_in(value)
    if len(items) != len(sources):
        return False
    return all(map(partial(_is_source, codec), sources, items))


def _is_source(codec: Codec, source: EntrySource, item: Any) -> bool:
    """Return True if an item is the text of a source that is stored with its entry."""
    found = source_in(item)
    if not source.piece or not found:
        return False
    return found.text == read_text(codec, source.place, source.piece)


def _is_frame(stored: PayloadRange, sources: Sequence[EntrySource]) -> bool:
    """Return True if the length of a stored artifact leaves room only for a wrapper around its sources."""
    places = [source.place for source in sources]
    if any(place.part != "artifact" for place in places):
        return False
    items = sum(place.end - place.middle + len(",") for place in places) - len(",")
    more = stored.end - stored.start - items
    return more - len("[]") in _WRAPPER_LENGTHS or (len(places) == 1 and not more)


def _items_in(value: Any) -> Sequence[Any]:
    """Return the list that a value is, in wrappers with one key each; none for any other value."""
    while type(value) is dict and len(value) == 1:
        (value,) = value.values()
    if isinstance(value, (list, tuple)):
        return value
    return ()


def without_texts(
    codec: Codec, payload: str, artifact: PayloadRange, sources: Sequence[EntrySource]
) -> str:
    """Return the text of an artifact with a reference in place of the text of each source."""
    pieces = []
    position = artifact.start
    for source in sources:
        place = source.place
        try:
            found = read_item(codec, place, payload[place.middle : place.end])
        except ValueError as error:
            raise CorruptDocumentError(source.entry, f"source {source.id}: {error}") from error
        pieces.append(payload[position : place.middle])
        if found:
            pieces.append(codec.encode(found.with_text(SHOWN_ABOVE)))
        position = place.end
    return "".join([*pieces, payload[position : artifact.end]])

"""Store each source of a tool result after the message's own parts, and read it from there.

A source is stored as its plain text, followed by its item without the text. So a page of a source is a range of the
payload, independent of the tool's format. Most of these characters repeat the result, and compress well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from convstore.messages.encoding import RESULT_MINIMUM
from convstore.messages.values import Codec, is_text
from convstore.sources.source import FoundSource, source_in


class SourcePlace(NamedTuple):
    """The position of a source, in characters of the payload or of the piece in its entry.

    Attributes:
        start: Start of the text.
        middle: End of the text, and start of the encoded item.
        end: End of the item.
    """

    start: int
    middle: int
    end: int

    @property
    def length(self) -> int:
        """The number of characters of the text."""
        return self.middle - self.start

    @property
    def rest(self) -> int:
        """The stored size of the item without its text."""
        return self.end - self.middle


def store_sources(
    found: Sequence[FoundSource], payload: str, codec: Codec, omitted: list[str] | None
) -> tuple[str, list[tuple[SourcePlace, str]]]:
    """Return the payload of a result with its sources, and for each source its position and its piece.

    The piece is empty for a source in the payload. Small sources of a result without a payload are stored in the entry.
    """
    items = codec.encode_each([source.with_text("") for source in found], omitted=omitted)
    texts = [source.text for source in found]
    if not payload and sum(map(len, chain(texts, items))) < RESULT_MINIMUM:
        return payload, [_held(text, item) for text, item in zip(texts, items, strict=True)]
    parts = [payload]
    stored: list[tuple[SourcePlace, str]] = []
    start = len(payload)
    for text, item in zip(texts, items, strict=True):
        place = _place(start, text, item)
        stored.append((place, ""))
        parts += text, item
        start = place.end
    return "".join(parts), stored


def _held(text: str, item: str) -> tuple[SourcePlace, str]:
    """Return the position and the piece of a source that is stored in the entry."""
    return _place(0, text, item), text + item


def _place(start: int, text: str, item: str) -> SourcePlace:
    middle = start + len(text)
    return SourcePlace(start, middle, middle + len(item))


def read_item(codec: Codec, item: str) -> FoundSource | None:
    """Return the source in a stored item, without its text; raise a ValueError if the item is damaged."""
    value = codec.decode(item)
    return FoundSource(value, value, {}) if is_text(value) else source_in(value)


def read_text(place: SourcePlace, stored: str) -> str:
    """Return the text of a source from its payload or piece; if it has no text, its encoded item."""
    return stored[place.start : place.middle] or stored[place.middle : place.end]

"""Store each source of a tool result after the message's own parts, and read it from there.

A source is stored as its text, as it is, then its item without the text. So a page of it is a range of the payload,
whatever form the tool gave it. Most of these characters repeat the result, and compress to little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convstore.messages.encoding import RESULT_MINIMUM
from convstore.messages.values import Codec, is_text
from convstore.sources.source import FoundSource, source_in


class SourcePlace(NamedTuple):
    """The place of a source, in characters of the payload or of the piece that its entry holds.

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
    """Return the payload of a result with its sources; and the place of each, with its piece if the entry holds it.

    The entry holds small sources of a result without a payload.
    """
    parts = [(source.text, codec.encode(source.with_text(""), omitted=omitted)) for source in found]
    pieces = ["".join(part) for part in parts]
    is_outside = bool(payload) or sum(map(len, pieces)) >= RESULT_MINIMUM
    stored = list[tuple[SourcePlace, str]]()
    start = len(payload)
    for (text, _), piece in zip(parts, pieces, strict=True):
        begin = start if is_outside else 0
        place = SourcePlace(begin, begin + len(text), begin + len(piece))
        stored.append((place, "" if is_outside else piece))
        start += len(piece)
    return payload + "".join(pieces) if is_outside else payload, stored


def read_item(codec: Codec, item: str) -> FoundSource | None:
    """Return the source in a stored item, without its text; ValueError if the item is damaged."""
    value = codec.decode(item)
    return FoundSource(value, value, {}) if is_text(value) else source_in(value)


def read_text(place: SourcePlace, held: str) -> str:
    """Return the text of a source from the text that its place refers to; its item if it has none."""
    return held[place.start : place.middle] or held[place.middle : place.end]

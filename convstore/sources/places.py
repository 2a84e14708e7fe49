"""Find where the sources of a tool result lie in its content or artifact, and read them from there.

A source is stored where the tool put it, as an item of a list in JSON, so a result is stored once. A place is used only
if the item read from it is the one that was found. A source without such a place gets a copy: its text as it is, then
its item without the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from convstore.messages.encoding import RESULT_MINIMUM, EncodedMessage
from convstore.messages.json_text import is_same_json
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.values import Codec, is_text
from convstore.sources.source import FoundSource, FoundSources, source_in

Part = Literal["content", "artifact", "copy"]
"""The part of a payload that a source is read from."""

SOURCE_PARTS = frozenset({"content", "artifact", "copy"})

_DECODER = json.JSONDecoder()
_SLOW_DECODER = json.JSONDecoder(object_hook=lambda node: node)
"""For long texts: other threads can run in its Python hook."""
_LONG = 100_000
_SEARCHED = 2
"""Items are searched for by decoding at most so many times the length of the text, for objects around them."""

_MAX_IN_PLACE = 1_000_000
"""Maximum characters of an item that is read as a whole for each page of its text; larger ones get a copy."""


class SourcePlace(NamedTuple):
    """The place of a source, in characters of the payload or of the text that its entry holds.

    Attributes:
        part: "content": an item of the JSON that the tool wrote. "artifact": an item of the encoded artifact. Both
            contain the text of the source. "copy": the text up to `middle`, followed by the encoded item without it.
        start: Start of the text in a copy, else of the item.
        middle: Start of the item.
        end: End of the item.
        length: Number of characters of the text.
    """

    part: Part
    start: int
    middle: int
    end: int
    length: int

    @property
    def rest(self) -> int:
        """The stored size of the item without its text; escaped characters in the text count, too."""
        return self.end - self.middle - (0 if self.part == "copy" else self.length)

    @property
    def is_inside(self) -> bool:
        """True if the item contains the text, so that it has to be decoded to read the text."""
        return self.part != "copy" and self.length > 0

    def moved(self, by: int) -> SourcePlace:
        """Return the place in a text that begins earlier."""
        return SourcePlace(self.part, self.start + by, self.middle + by, self.end + by, self.length)


class Located(NamedTuple):
    """The sources of a result with their places.

    Attributes:
        places: Place of each source within its part: the content, the artifact or the copies.
        artifact: The encoded artifact, if it was needed; else None.
        copies: The copies of sources, one after the other.
    """

    places: tuple[SourcePlace, ...] = ()
    artifact: str | None = None
    copies: str = ""

    def stored_with(
        self, encoded: EncodedMessage, content: Any
    ) -> tuple[str, list[tuple[SourcePlace, str]]]:
        """Return the payload with the copies, and each place in it; or a place in a text that the entry holds."""
        keeps_copies = encoded.payload or len(self.copies) >= RESULT_MINIMUM
        parts = {
            "content": (encoded.content, content),
            "artifact": (encoded.artifact, self.artifact or ""),
            "copy": (len(encoded.payload) if keeps_copies else -1, self.copies),
        }
        stored = []
        for place in self.places:
            start, text = parts[place.part]
            if start >= 0:
                stored.append((place.moved(start) if start else place, ""))
            else:
                stored.append((place.moved(-place.start), text[place.start : place.end]))
        return encoded.payload + (self.copies if keeps_copies else ""), stored


def place_sources(
    found: FoundSources, text: str, codec: Codec, omitted: list[str] | None
) -> Located:
    """Return the places of the sources of a tool result; `text` is its content, if the tool wrote it as text."""
    artifact, ranges = (
        _in_artifact(found, codec, omitted) if found.rebuild else (None, _in_content(found, text))
    )
    part: Part = "artifact" if found.rebuild else "content"
    places = []
    copies = []
    length = 0
    for item, (start, end) in zip(found.items, ranges, strict=True):
        if 0 < end - start <= _MAX_IN_PLACE:
            places.append(SourcePlace(part, start, start, end, len(item.text)))
        else:
            text = item.text
            rest = codec.encode(
                item.with_text(PayloadRange(0, len(text), raw=True)), omitted=omitted
            )
            copies += [text, rest]
            middle = length + len(text)
            places.append(SourcePlace("copy", length, middle, middle + len(rest), len(text)))
            length = middle + len(rest)
    return Located(tuple(places), artifact, "".join(copies))


def _in_content(found: FoundSources, text: str) -> Iterator[tuple[int, int]]:
    """Yield the range of each item in a JSON text, where they have the same order; (0, 0) for any other."""
    position = int(len(found.items) > 1)  # the first value of the text holds all others
    budget = _SEARCHED * len(text)
    decoder = _SLOW_DECODER if len(text) > _LONG else _DECODER
    for item in (source.item for source in found.items):
        opening = "{" if type(item) is dict else "[" if type(item) is list else '"'
        start = text.find(opening, position)
        end = 0
        while start >= 0 and budget > 0:
            try:
                value, end = decoder.raw_decode(text, start)
                if is_same_json(value, item):
                    break
            except (ValueError, RecursionError):
                end = start + 1
            budget -= end - start
            start = text.find(opening, start + 1)
            end = 0
        yield (start, end) if end else (0, 0)
        position = end or position


def _in_artifact(
    found: FoundSources, codec: Codec, omitted: list[str] | None
) -> tuple[str | None, list[tuple[int, int]]]:
    """Return the encoded artifact, each item encoded once, and the ranges of its items in it."""
    assert found.rebuild is not None  # noqa: S101 - the caller checked it
    marks = [PayloadRange(number, number, raw=False) for number in range(len(found.items))]
    rest = codec.encode(found.rebuild(marks))
    pieces = []
    ranges = []
    length = 0
    for mark, source in zip(marks, found.items, strict=True):
        before, _, rest = rest.partition(f'{{"$":["payload",[{mark.start},{mark.end},false]]}}')
        item = codec.encode(source.item, omitted=omitted)
        pieces += [before, item]
        ranges.append((length + len(before), length + len(before) + len(item)))
        length = ranges[-1][1]
    text = "".join([*pieces, rest])
    # Deep values are written on several lines, which cannot be put together.
    return (None, [(0, 0)] * len(marks)) if "\n" in text else (text, ranges)


def read_item(codec: Codec, place: SourcePlace, item: str) -> FoundSource | None:
    """Return the source in the text of an item, without text for a copy; ValueError if the item is damaged."""
    if place.part == "content":
        value, end = _DECODER.raw_decode(item)
        if end < len(item):
            raise ValueError("its item is not the text of one value")
    else:
        value = codec.decode(item, fetch=None if place.is_inside else lambda _start, _end: "")
    found = FoundSource(value, value, {}) if is_text(value) else source_in(value)
    if place.is_inside and (found is None or len(found.text) != place.length):
        raise ValueError("its item has another text")
    return found


def read_text(codec: Codec, place: SourcePlace, held: str) -> str:
    """Return the text of a source from the text that its place refers to, or its item; ValueError if it is damaged."""
    item = held[place.middle : place.end]
    if place.is_inside and (found := read_item(codec, place, item)):
        return found.text
    return held[place.start : place.middle] if place.length else item

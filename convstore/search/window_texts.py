"""Read the texts of windows: all that a search shows, in one round trip.

Floor 4; `searcher` calls it. Texts of the unsealed end of a log are in memory. Others are read as ranges of payloads,
one command for each append, or with their entries, one command for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from convstore.exceptions import CorruptDocumentError
from convstore.index.part import IndexedMessage, Part, Window
from convstore.log.entry import PayloadRef
from convstore.messages.values import Codec
from convstore.mongo.keys import entry_id
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.search.log_parts import LogParts
from convstore.sources.places import read_text

__all__ = ["ShownWindow", "WindowTexts"]

_Range = tuple[PayloadRef, int, int]


class ShownWindow(NamedTuple):
    """A window that a search shows, with its message and part."""

    part: Part
    message: IndexedMessage
    window: Window


class WindowTexts:
    """Texts of one conversation, each read once."""

    def __init__(self, reader: LogReader, logs: LogParts, cached: CachedConversation, *, codec: Codec) -> None:
        self._reader, self._logs, self._cached, self._codec = reader, logs, cached, codec
        self._pieces: dict[_Range, str] = {}
        self._rows: dict[int, StoredMessageRow] = {}

    async def read(self, shown: Iterable[ShownWindow], messages: Iterable[IndexedMessage] = ()) -> None:
        """Read what the texts of some windows and the ids of some messages need."""
        ranges, firsts = dict[_Range, None](), {one.first for one in messages if one.ordinal not in self._rows}
        for one in shown:
            if one.part.text_of(one.window) is None:
                if found := _range_of(one):
                    ranges |= {} if found in self._pieces else {found: None}
                elif one.message.ordinal not in self._rows:
                    firsts.add(one.message.first)
        pieces, rows = await asyncio.gather(
            self._reader.log.payload_ranges(self._cached.conversation, list(ranges)),
            self._logs.rows(self._cached, firsts),
        )
        self._pieces |= zip(ranges, pieces, strict=True)
        self._rows |= rows

    def text(self, shown: ShownWindow) -> str:
        """Return the text of a window."""
        part, message, window = shown
        text = part.text_of(window)
        if text is None and (found := _range_of(shown)):
            text = self._pieces[found]
            if (place := part.place_of(window)) is None:
                return text
            text = read_text(self._codec, place.moved(-place.middle), text)
        elif text is None:
            row = self.row(message)
            text = self._logs.texts(row.message, row.sources)[window.text].text
        return text[window.start : window.end]

    def named(self, message: IndexedMessage) -> tuple[str, str, datetime]:
        """Return id, tool and date of a message."""
        if message.created_at:
            return message.id, message.tool, message.created_at
        row = self.row(message)
        return row.message.id, row.message.tool, row.entry.at

    def row(self, message: IndexedMessage) -> StoredMessageRow:
        """Return a message that was read with its entry."""
        if message.ordinal not in self._rows:
            key = entry_id(self._cached.conversation, 0)
            raise CorruptDocumentError(key, f"no entry has the message {message.ordinal}")
        return self._rows[message.ordinal]


def _range_of(shown: ShownWindow) -> _Range | None:
    """Return the range of the payload that has the text of a window; None if its entry has it."""
    part, message, window = shown
    if message.payload and window.payload_start >= 0:
        return message.payload, window.payload_start + window.start, window.payload_start + window.end
    place = part.place_of(window)
    return (message.payload, place.middle, place.end) if message.payload and place else None

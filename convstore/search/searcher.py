"""Search one conversation: rank its messages and return hits with snippets.

Floor 4; `conversation` and the retrieval tool call it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from convstore.exceptions import CorruptDocumentError
from convstore.index.part import IndexedMessage, Part, Window, only_terms_of
from convstore.index.ranking import Found, ranked
from convstore.index.snippets import snippet
from convstore.log.entry import EntrySource
from convstore.mongo.keys import entry_id
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.parallel import in_parallel
from convstore.runtime.threads import run_in_thread_if_long
from convstore.search.log_parts import LogParts, SearchedLog
from convstore.search.request import SearchRequest
from convstore.search.sealer import Sealer
from convstore.values.hits import SearchHit
from convstore.values.scope import Scope

__all__ = ["RANKING_COST", "Match", "Matches", "Searcher"]

RANKING_COST = 50_000
"""Cost of ranking one word of a query, in characters of `run_in_thread_if_long`."""


class Match(NamedTuple):
    """A hit, with title and address of the source that it is in."""

    hit: SearchHit
    label: str


class Matches(NamedTuple):
    """The matches of a search, best first.

    Attributes:
        matches: Those between the request's offset and limit.
        is_last: There are no further ones.
        last: Ordinal of the last message of the searched log.
    """

    matches: Sequence[Match] = ()
    is_last: bool = True
    last: int = 0


class Searcher:
    """Searches the conversations of a store."""

    def __init__(self, reader: LogReader, logs: LogParts, sealer: Sealer | None) -> None:
        self._reader, self._logs, self._sealer = reader, logs, sealer

    async def hits(self, scope: Scope, request: SearchRequest) -> list[SearchHit]:
        """Return the best messages of a conversation; see `Conversation.search`."""
        return [match.hit for match in (await self.search(scope, request)).matches]

    async def search(self, scope: Scope, request: SearchRequest) -> Matches:
        """Return the best messages of a conversation, or the best sources and messages for a model."""
        cached = await self._reader.find(scope)
        if cached is None or not request.groups:
            return Matches()
        async with self._reader.reading(cached):
            log = await self._logs.read(cached, only_terms_of(request.groups))
            if log.is_due and self._sealer:
                self._sealer.owe(cached.scope, cached.conversation)
            found = await self._ranked(log, request)
            end = request.offset + request.limit
            matches = await self.matches(cached, log, found[request.offset : end], request)
            return Matches(matches, len(found) <= end, log.last)

    async def _ranked(self, log: SearchedLog, request: SearchRequest) -> list[Found]:
        def is_allowed(_: int, message: IndexedMessage) -> bool:
            if not request.allows(message.ordinal, message.type) or not log.rewinds.is_active(message.ordinal):
                return False
            return not request.is_for_model or message.ordinal != log.question

        def rank() -> list[Found]:
            limit = request.offset + request.limit + 1
            by_source = request.is_for_model
            return ranked(log.parts, request.groups, is_allowed=is_allowed, limit=limit, by_source=by_source)

        return await run_in_thread_if_long(rank, characters=RANKING_COST * len(request.groups))

    async def matches(
        self, cached: CachedConversation, log: SearchedLog, found: Sequence[Found], request: SearchRequest
    ) -> list[Match]:
        """Return found messages with snippets, read by one point read for each."""
        questions = [one for part in log.parts for one in part.questions() if log.rewinds.is_active(one.ordinal)]

        async def match(one: Found) -> Match:
            part = log.parts[one.part]
            window = _shown_window(part, one.windows[0], request)
            message_id, tool, at, text = await self._text(cached, one, window)
            sources = (part.window(number).source_id for number in one.windows)
            shown = f"{window.label}\n{text}" if window.label and not request.is_for_model else text
            characters = request.source_characters if window.source_id else request.characters
            hit = SearchHit(
                message_id=message_id,
                ordinal=one.message.ordinal,
                turn_id=await self._turn_id(cached, log, questions, one.message.ordinal),
                type=one.message.type,
                tool=tool,
                source_ids=tuple(dict.fromkeys(number for number in sources if number)),
                snippet=snippet(shown, request.groups, characters=characters),
                score=one.score,
                created_at=at,
            )
            return Match(hit, _label(part, one.windows[0]))

        return await in_parallel(match, found)

    async def _turn_id(
        self, cached: CachedConversation, log: SearchedLog, questions: Sequence[IndexedMessage], ordinal: int
    ) -> str:
        """Return the id of the first message of the turn that contains a message."""
        index = bisect_right(questions, ordinal, key=lambda one: one.ordinal)
        if index:
            return questions[index - 1].id
        first = next(one for part in log.parts for one in part.messages if log.rewinds.is_active(one.ordinal))
        return (await self._row(cached, first.ordinal)).message.id

    async def _text(self, cached: CachedConversation, one: Found, window: Window) -> tuple[str, str, datetime, str]:
        """Return id, tool and date of a message, and the text of a window. One command; two if the text is escaped."""
        message = one.message
        if message.payload and message.created_at and window.payload_start >= 0:
            start, end = window.payload_start + window.start, window.payload_start + window.end
            [text] = await self._reader.payload_ranges(cached, [(message.payload, start, end)])
            return message.id, message.tool, message.created_at, text
        row = await self._row(cached, message.ordinal)
        payload, item = row.message.payload, _escaped(row, window)
        if payload and item:
            # Decoded as a piece of its own, so that only this item of the payload is read.
            place = item.place
            [held] = await self._reader.payload_ranges(cached, [(payload, place.middle, place.end)])
            item = replace(item, place=place.moved(-place.middle), piece=held)
            [found, _] = self._logs.texts_of_source(item)
        else:
            found = self._logs.texts(row.message, row.sources)[window.text]
        return row.message.id, row.message.tool, row.entry.at, found.text[window.start : window.end]

    async def _row(self, cached: CachedConversation, ordinal: int) -> StoredMessageRow:
        row = await self._reader.message_at(cached, ordinal)
        if row is None:
            raise CorruptDocumentError(entry_id(cached.conversation, 0), f"no entry has the message {ordinal}")
        return row


def _escaped(row: StoredMessageRow, window: Window) -> EntrySource | None:
    """Return the source that a window belongs to, if its text is escaped in an item of the payload."""
    found = next((source for source in row.sources if source.id == window.source_id), None)
    return found if found and found.place.is_inside and not found.piece else None


def _shown_window(part: Part, number: int, request: SearchRequest) -> Window:
    """Return the window to show; for a model that of a source grows to the whole source, or as much as is shown."""
    window = part.window(number)
    if not request.is_for_model or not window.source_id:
        return window
    start, end = window.start, window.end
    for step, stop in ((1, len(part.lengths)), (-1, -1)):
        for other in map(part.window, range(number + step, stop, step)):
            if other[:3] != window[:3] or max(end, other.end) - min(start, other.start) > request.source_characters:
                break
            start, end = min(start, other.start), max(end, other.end)
    return window._replace(start=start, end=end)


def _label(part: Part, number: int) -> str:
    """Return title and address of the source that a window belongs to, from the source's first window."""
    window = part.window(number)
    while number and window.source_id and part.window(number - 1)[:3] == window[:3]:
        number -= 1
    return part.window(number).label

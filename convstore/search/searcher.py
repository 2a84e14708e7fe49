"""Search one conversation: rank its messages and return hits with snippets.

Floor 4; `conversation` and the retrieval tool call it. A search takes two round trips: segments and the end of the log,
then the texts to show. If the end of the log needs a second one, its first results are read along with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from convstore.index.part import IndexedMessage, Part, Window, only_terms_of
from convstore.index.ranking import Found, ranked
from convstore.index.snippets import Snippets
from convstore.messages.values import Codec
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long
from convstore.search.log_parts import LogEnds, LogParts, SearchedLog
from convstore.search.request import SearchRequest
from convstore.search.sealer import Sealer
from convstore.search.window_texts import ShownWindow, WindowTexts
from convstore.values.hits import SearchHit
from convstore.values.scope import Scope

__all__ = ["RANKING_COST", "Match", "Matches", "Searcher"]

RANKING_COST = 20_000
"""Cost of ranking one word of a query, in characters of `run_in_thread_if_long`."""


class Match(NamedTuple):
    """A hit, with title and address of the source that it is in."""

    hit: SearchHit
    label: str


class Matches(NamedTuple):
    """The matches of a search, best first.

    Attributes:
        matches: As many as the request's limit allows.
        is_last: There are no further ones.
        last: Ordinal of the last message of the searched log.
    """

    matches: Sequence[Match] = ()
    is_last: bool = True
    last: int = 0


class Searcher:
    """Searches the conversations of a store."""

    def __init__(self, reader: LogReader, logs: LogParts, sealer: Sealer | None, *, codec: Codec) -> None:
        self._reader, self._logs, self._sealer, self._codec = reader, logs, sealer, codec

    async def hits(self, scope: Scope, request: SearchRequest) -> list[SearchHit]:
        """Return the best messages of a conversation; see `Conversation.search`."""
        return [match.hit for match in (await self.search(scope, request)).matches]

    async def search(self, scope: Scope, request: SearchRequest) -> Matches:
        """Return the best messages of a conversation, or the best sources and messages for a model."""
        cached = await self._reader.find(scope)
        if cached is None or not request.groups:
            return Matches()
        async with self._reader.reading(cached):
            texts = WindowTexts(self._reader, self._logs, cached, codec=self._codec)
            ends = await self._logs.ends(cached)
            log, _ = await asyncio.gather(
                self._logs.whole(cached, ends, only_terms_of(request.groups)),
                self._read_ahead(cached, ends, texts, request),
            )
            if log.is_due and self._sealer:
                self._sealer.owe(cached.scope, cached.conversation)
            found = await _ranked(log, request)
            matches = await self.matches(cached, log, found[: request.limit], request, texts)
            return Matches(matches, len(found) <= request.limit, log.last)

    async def _read_ahead(
        self, cached: CachedConversation, ends: LogEnds, texts: WindowTexts, request: SearchRequest
    ) -> None:
        """Read the texts of what the segments alone rank best, unless the search needs no more of the log."""
        if ends.chain and not ends.are_all(cached):
            log = SearchedLog(ends.parts, cached.rewinds)
            await texts.read(_shown(log, (await _ranked(log, request))[: request.limit], request))

    async def matches(
        self,
        cached: CachedConversation,
        log: SearchedLog,
        found: Sequence[Found],
        request: SearchRequest,
        texts: WindowTexts | None = None,
    ) -> list[Match]:
        """Return found messages with snippets; `texts` has those that were read already. One round trip."""
        texts = texts or WindowTexts(self._reader, self._logs, cached, codec=self._codec)
        shown, turns = _shown(log, found, request), [log.turn_of(one) for one in found]
        await texts.read(shown, [turn for turn in turns if not turn.id])
        snippets = Snippets(request.groups)

        def match(one: Found, window: ShownWindow, turn: IndexedMessage) -> Match:
            part, label = log.parts[one.part], window.window.label
            message_id, tool, at = texts.named(one.message)
            text = texts.text(window)
            sources = (part.source_of[number] for number in one.windows)
            hit = SearchHit(
                message_id=message_id,
                ordinal=one.message.ordinal,
                turn_id=turn.id or texts.row(turn).message.id,
                type=one.message.type,
                tool=tool,
                source_ids=tuple(dict.fromkeys(number for number in sources if number)),
                snippet=snippets.of(
                    f"{label}\n{text}" if label and not request.is_for_model else text,
                    characters=request.source_characters if window.window.source_id else request.characters,
                ),
                score=one.score,
                created_at=at,
            )
            return Match(hit, _label(part, one.windows[0]))

        return [match(*one) for one in zip(found, shown, turns, strict=True)]


async def _ranked(log: SearchedLog, request: SearchRequest) -> list[Found]:
    """Return the best messages, one more than the request asks for."""

    def is_allowed(message: IndexedMessage) -> bool:
        if not request.allows(message.ordinal, message.type) or not log.rewinds.is_active(message.ordinal):
            return False
        return not request.is_for_model or message.ordinal != log.question

    def rank() -> list[Found]:
        by_source = request.is_for_model
        return ranked(log.parts, request.groups, is_allowed=is_allowed, limit=request.limit + 1, by_source=by_source)

    return await run_in_thread_if_long(rank, characters=RANKING_COST * len(request.groups))


def _shown(log: SearchedLog, found: Sequence[Found], request: SearchRequest) -> list[ShownWindow]:
    """Return the windows to show of some messages, best first."""
    parts = [log.parts[one.part] for one in found]
    return [
        ShownWindow(part, one.message, _shown_window(part, one.windows[0], request))
        for part, one in zip(parts, found, strict=True)
    ]


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

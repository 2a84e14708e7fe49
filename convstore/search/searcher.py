"""Search one conversation: rank its messages and return hits with snippets.

A search takes two round trips: segments and the end of the log, then the texts to show. If the end of the log takes a
second round trip, the texts of the first results are read in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from convstore.exceptions import CorruptDocumentError
from convstore.index.part import IndexedMessage
from convstore.index.ranking import RankedMessage, ranked
from convstore.index.segment import Part
from convstore.index.texts import Snippets
from convstore.index.windows import Window
from convstore.log.entry import PayloadRef
from convstore.mongo.keys import entry_id
from convstore.mongo.log import StoredMessageRow
from convstore.mongo.parallel import together
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.runtime.threads import run_in_thread_if_long
from convstore.search.log_parts import LogEnds, LogParts, SearchedLog
from convstore.search.request import SearchRequest
from convstore.search.sealer import Sealer
from convstore.values.reports import SearchHit
from convstore.values.scope import Scope

_Range = tuple[PayloadRef, int, int]

_RANKING_COST = 20_000
"""Cost of ranking one word of a query, in characters of `run_in_thread_if_long`."""


class Match(NamedTuple):
    """A hit; `label` has title and address of its source, if it is in one."""

    hit: SearchHit
    label: str


class Matches(NamedTuple):
    """The matches of a search, best first.

    Attributes:
        matches: The matches, up to the request's limit.
        is_last: True if there are no further matches.
        last: Ordinal of the last message of the searched log.
    """

    matches: Sequence[Match] = ()
    is_last: bool = True
    last: int = 0


class Searcher:
    """Searches the conversations of a store."""

    def __init__(self, reader: LogReader, logs: LogParts, sealer: Sealer) -> None:
        self._reader = reader
        self._logs = logs
        self._sealer = sealer

    async def search(self, scope: Scope, request: SearchRequest) -> Matches:
        """Return the best messages of a conversation, or the best sources and messages for a model."""
        cached = await self._reader.find(scope)
        if cached is None or not request.groups:
            return Matches()
        async with self._reader.reading(cached):
            texts = _WindowTexts(self._reader, self._logs, cached)
            ends = await self._logs.ends(cached)
            log, _ = await together(
                self._logs.whole(cached, ends, request),
                self._read_ahead(cached, ends, texts, request),
            )
            self._sealer.searched(cached, ends.chain, log, split=log.unsealed)
            found = await ranked_of(log.parts, lambda _: log, request, limit=request.limit + 1)
            matches = await self.matches(cached, log, found[: request.limit], request, texts)
            return Matches(matches, len(found) <= request.limit, log.last)

    async def _read_ahead(
        self, cached: CachedConversation, ends: LogEnds, texts: _WindowTexts, request: SearchRequest
    ) -> None:
        """Read the texts of the best messages in the segments while more of the log is read."""
        if ends.chain and not ends.are_all(cached):
            log = SearchedLog(ends.chain.parts, Snapshot(cached, active=cached.active))
            found = await ranked_of(log.parts, lambda _: log, request, limit=request.limit)
            await texts.read(_shown(log, found, request))

    async def matches(
        self,
        cached: CachedConversation,
        log: SearchedLog,
        found: Sequence[RankedMessage],
        request: SearchRequest,
        texts: _WindowTexts | None = None,
    ) -> list[Match]:
        """Return ranked messages with snippets; `texts` has texts that were read already. One round trip."""
        texts = texts or _WindowTexts(self._reader, self._logs, cached)
        shown = _shown(log, found, request)
        turns = [log.turn_of(place) for place in found]
        await texts.read(shown)
        snippets = Snippets(request.groups)

        def match(place: RankedMessage, window: _ShownWindow, turn: IndexedMessage) -> Match:
            part = log.parts[place.part]
            message = place.message
            text = texts.text(window)
            label = part.labels.get(place.windows[0])
            sources = (part.windows.source_of[number] for number in place.windows)
            characters = request.characters
            if window.window.source_id:
                characters = request.source_characters
            hit = SearchHit(
                message_id=message.id,
                ordinal=message.ordinal,
                turn_id=turn.id,
                type=message.type,
                tool=message.tool,
                source_ids=tuple(dict.fromkeys(number for number in sources if number)),
                snippet=snippets.of(
                    f"{label}\n{text}" if label and not request.is_for_model else text,
                    characters=characters,
                ),
                score=place.score,
                created_at=message.created_at,
            )
            return Match(hit, _label(part, place.windows[0]))

        return [match(*pair) for pair in zip(found, shown, turns, strict=True)]


async def ranked_of(
    parts: Sequence[Part],
    log_of: Callable[[int], SearchedLog],
    request: SearchRequest,
    *,
    limit: int,
) -> list[RankedMessage]:
    """Return the best messages of one or more logs; `log_of` returns the log of a part."""

    def is_allowed(part: int, message: IndexedMessage) -> bool:
        log = log_of(part)
        ordinal = message.ordinal
        if not request.after < ordinal < request.before or (
            request.is_for_model and ordinal == log.question
        ):
            return False
        return (request.types is None or message.type in request.types) and log.is_active(message)

    def rank() -> list[RankedMessage]:
        return ranked(
            parts,
            request.groups,
            is_allowed=is_allowed,
            limit=limit,
            by_source=request.is_for_model,
        )

    return await run_in_thread_if_long(rank, characters=_RANKING_COST * len(request.groups))


def _shown(
    log: SearchedLog, found: Sequence[RankedMessage], request: SearchRequest
) -> list[_ShownWindow]:
    parts = [log.parts[place.part] for place in found]
    return [
        _ShownWindow(part, place.message, _shown_window(part, place.windows[0], request))
        for part, place in zip(parts, found, strict=True)
    ]


def _shown_window(part: Part, number: int, request: SearchRequest) -> Window:
    """Return the window to show; for a model the window of a source is extended, up to the length of a snippet."""
    window = part.windows[number]
    if not request.is_for_model or not window.source_id:
        return window
    start = window.start
    end = window.end
    for step, stop in ((1, len(part.windows)), (-1, -1)):
        for other in map(part.windows.__getitem__, range(number + step, stop, step)):
            if (
                other[:3] != window[:3]
                or max(end, other.end) - min(start, other.start) > request.source_characters
            ):
                break
            start = min(start, other.start)
            end = max(end, other.end)
    return window._replace(start=start, end=end)


def _label(part: Part, number: int) -> str:
    """Return title and address of the source that a window belongs to, from the source's first window."""
    window = part.windows[number]
    while number and window.source_id and part.windows[number - 1][:3] == window[:3]:
        number -= 1
    return part.labels.get(number, "")


class _ShownWindow(NamedTuple):
    """A window to show, with its message and part."""

    part: Part
    message: IndexedMessage
    window: Window

    @property
    def text(self) -> str | None:
        """Return the text that contains the window; None if it has to be read."""
        return self.part.texts.get((self.window.message, self.window.text))


class _WindowTexts:
    """Texts of one conversation, each read once.

    Texts of entries without a segment are in memory. Others are read as ranges of payloads, with one command for each
    append, or with their entries, with one command for all.
    """

    def __init__(self, reader: LogReader, logs: LogParts, cached: CachedConversation) -> None:
        self._reader = reader
        self._logs = logs
        self._cached = cached
        self._pieces: dict[_Range, str] = {}
        self._rows: dict[int, StoredMessageRow] = {}

    async def read(self, shown: Iterable[_ShownWindow]) -> None:
        """Read the texts of some windows."""
        ranges: dict[_Range, None] = {}
        firsts: set[int] = set()
        for window in shown:
            if window.text is None:
                if found := _range_of(window):
                    ranges |= {} if found in self._pieces else {found: None}
                elif window.message.ordinal not in self._rows:
                    firsts.add(window.message.first)
        pieces, rows = await together(
            self._reader.payload_ranges(self._cached, list(ranges)),
            self._reader.log.messages_of_entries(self._cached.conversation, firsts),
        )
        self._pieces |= zip(ranges, pieces, strict=True)
        self._rows |= rows

    def text(self, shown: _ShownWindow) -> str:
        """Return the text of a window."""
        text = shown.text
        message = shown.message
        window = shown.window
        if text is None and (found := _range_of(shown)):
            return self._pieces[found]
        if text is None:
            if message.ordinal not in self._rows:
                key = entry_id(self._cached.conversation, 0)
                raise CorruptDocumentError(key, f"message {message.ordinal} is missing")
            row = self._rows[message.ordinal]
            text = self._logs.texts(row.message, row.sources)[window.text].text
        return text[window.start : window.end]


def _range_of(shown: _ShownWindow) -> _Range | None:
    """Return the range of the payload with the text of a window; None if the entry has the text."""
    _, message, window = shown
    if message.payload and window.payload_start >= 0:
        return (
            message.payload,
            window.payload_start + window.start,
            window.payload_start + window.end,
        )
    return None

"""Search several conversations at once: rank their messages together, and return hits by conversation.

Segments of all conversations are read by one command. Logs with entries that are in no segment are read one by one, a
limited number of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from convstore.exceptions import ConversationDeletedError
from convstore.index.part import IndexBuilder, IndexedMessage, only_terms_of
from convstore.index.ranking import Found, ranked
from convstore.index.segment import Part
from convstore.log.entry import Totals
from convstore.log.rewind import NO_REWINDS
from convstore.mongo.segments import Segments
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.parallel import in_parallel
from convstore.runtime.threads import run_in_thread_if_long
from convstore.search.log_parts import LogParts, SearchedLog
from convstore.search.request import SearchRequest
from convstore.search.sealer import Sealer
from convstore.search.searcher import RANKING_COST, Match, Searcher

_MAX_TAILS = 20
"""Maximum number of logs with unsealed entries that a search reads."""
_SPARE = 200
"""Messages that are ranked beyond the limit, as some may be rewound. If more are, messages are ranked again."""
_GAP = [IndexedMessage(0, "human")] * 8
"""Messages between two conversations, so that the end of one is no neighbour of the beginning of another."""

_Conversation = tuple[CachedConversation, Totals]
"""A conversation with the totals of its last entry."""


class AcrossSearcher:
    """Searches any conversations of a store together."""

    def __init__(
        self, reader: LogReader, logs: LogParts, segments: Segments, searcher: Searcher, sealer: Sealer | None
    ) -> None:
        self._reader, self._logs, self._segments = reader, logs, segments
        self._searcher, self._sealer = searcher, sealer

    async def search(
        self, conversations: Sequence[_Conversation], request: SearchRequest
    ) -> tuple[list[tuple[int, Match]], list[int]]:
        """Return the best messages, each with the index of its conversation, and the conversations not read whole.

        The conversations come in order of importance, the most important first.
        """
        if not request.groups or not conversations:
            return [], []
        logs, incomplete = await self._read(conversations, request)
        found = await _ranked(logs, request, limit=request.limit + _SPARE)
        logs = await self._with_rewinds(conversations, logs, {index for index, _ in found})
        active = [one for one in found if logs[one[0]].rewinds.is_active(one[1].message.ordinal)]
        if len(active) < request.limit and len(found) == request.limit + _SPARE:
            logs = await self._with_rewinds(conversations, logs, range(len(logs)))
            active = await _ranked(logs, request, limit=request.limit)
        return await self._matches(conversations, logs, active[: request.limit], request), incomplete

    async def _read(
        self, conversations: Sequence[_Conversation], request: SearchRequest
    ) -> tuple[list[SearchedLog], list[int]]:
        """Return the log of each conversation, without rewinds, and the indexes of those not read whole."""
        chains = await self._segments.chains([cached.conversation for cached, _ in conversations])
        logs, unsealed = list[SearchedLog](), list[int]()
        for index, (cached, totals) in enumerate(conversations):
            chain = chains.get(cached.conversation, [])
            logs.append(SearchedLog([segment.part for segment in chain]))
            if totals.entries > (chain[-1].until if chain else 0):
                unsealed.append(index)
                if self._sealer:
                    self._sealer.note(cached.scope, cached.conversation, totals)
        is_wanted = only_terms_of(request.groups)

        async def read(index: int) -> SearchedLog:
            try:
                async with self._reader.reading(conversations[index][0]):
                    return await self._logs.read(conversations[index][0], is_wanted)
            except ConversationDeletedError:
                return SearchedLog()

        whole = await in_parallel(read, unsealed[:_MAX_TAILS])
        for index, log in zip(unsealed, whole, strict=False):
            logs[index] = log
        return logs, unsealed[_MAX_TAILS:]

    async def _with_rewinds(
        self, conversations: Sequence[_Conversation], logs: Sequence[SearchedLog], indexes: Collection[int]
    ) -> list[SearchedLog]:
        """Return the logs, some of them with their rewinds. One command for each that has any not read before."""

        async def complete(index: int) -> SearchedLog:
            (cached, totals), log = conversations[index], logs[index]
            if index not in indexes or not totals.rewind_entry or log.rewinds is not NO_REWINDS:
                return log
            try:
                async with self._reader.reading(cached):
                    return replace(log, rewinds=await self._reader.rewinds(cached, totals))
            except ConversationDeletedError:
                return log  # `_matches` finds no messages of it

        return await in_parallel(complete, range(len(logs)))

    async def _matches(
        self,
        conversations: Sequence[_Conversation],
        logs: Sequence[SearchedLog],
        found: Sequence[tuple[int, Found]],
        request: SearchRequest,
    ) -> list[tuple[int, Match]]:
        async def match(index: int) -> list[tuple[int, Match]]:
            cached, own = conversations[index][0], [one for owner, one in found if owner == index]
            try:
                async with self._reader.reading(cached):
                    matches = await self._searcher.matches(cached, logs[index], own, request)
            except ConversationDeletedError:
                return []
            return [(index, one) for one in matches]

        groups = await in_parallel(match, list(dict.fromkeys(index for index, _ in found)))
        return [one for group in groups for one in group]


async def _ranked(logs: Sequence[SearchedLog], request: SearchRequest, *, limit: int) -> list[tuple[int, Found]]:
    """Return the best messages that are not known to be rewound, each with the index of its log."""
    parts: list[Part] = []
    place_of: list[tuple[int, int]] = []
    for index, log in enumerate(logs):
        parts += [*log.parts, IndexBuilder(messages=_GAP)]
        place_of += [(index, number) for number in range(len(log.parts) + 1)]

    def is_allowed(part: int, message: IndexedMessage) -> bool:
        rewinds = logs[place_of[part][0]].rewinds
        return request.allows(message.ordinal, message.type) and rewinds.is_active(message.ordinal)

    def rank() -> list[Found]:
        return ranked(parts, request.groups, is_allowed=is_allowed, limit=limit)

    found = await run_in_thread_if_long(rank, characters=RANKING_COST * len(request.groups))
    return [(place_of[one.part][0], one._replace(part=place_of[one.part][1])) for one in found]

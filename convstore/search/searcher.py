"""Search one conversation: rank its messages and return hits with snippets.

Floor 4; `conversation` and the retrieval tool call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from convstore.exceptions import CorruptDocumentError
from convstore.index.part import Window, only_terms_of
from convstore.index.ranking import Found, ranked
from convstore.index.snippets import snippet
from convstore.mongo.keys import entry_id
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.parallel import in_parallel
from convstore.runtime.threads import run_in_thread_if_long
from convstore.search.log_parts import LogParts, SearchedLog
from convstore.search.request import SearchRequest
from convstore.values.models import SearchHit
from convstore.values.scope import Scope

__all__ = ["Searcher"]

_RANKING_COST = 50_000
"""Cost of ranking one word of a query, in characters of `run_in_thread_if_long`."""


class Searcher:
    """Searches the conversations of a store."""

    def __init__(self, reader: LogReader, logs: LogParts) -> None:
        self._reader, self._logs = reader, logs

    async def search(self, scope: Scope, request: SearchRequest) -> list[SearchHit]:
        """Return the best messages of a conversation, best first; see `Conversation.search`."""
        cached = await self._reader.find(scope)
        if cached is None or not request.groups:
            return []
        async with self._reader.reading(cached):
            log = await self._logs.read(cached, only_terms_of(request.groups))
            found = await self._ranked(log, request)
            return await self.hits(cached, log, found, request)

    async def _ranked(self, log: SearchedLog, request: SearchRequest) -> list[Found]:
        def rank() -> list[Found]:
            return ranked(
                log.parts,
                request.groups,
                is_allowed=lambda _, one: request.allows(one.ordinal, one.type) and log.rewinds.is_active(one.ordinal),
                limit=request.limit,
            )

        return await run_in_thread_if_long(rank, characters=_RANKING_COST * len(request.groups))

    async def hits(
        self, cached: CachedConversation, log: SearchedLog, found: Sequence[Found], request: SearchRequest
    ) -> list[SearchHit]:
        """Return found messages with snippets, read by one point read for each."""
        turns = [one for part in log.parts for one in part.messages if log.rewinds.is_active(one.ordinal)]
        turns = [one for index, one in enumerate(turns) if one.type == "human" or index == 0]

        async def hit(one: Found) -> SearchHit:
            window = log.parts[one.part].window(one.windows[0])
            message_id, tool, at, text = await self._text(cached, one, window)
            first = [turn for turn in turns if turn.ordinal <= one.message.ordinal][-1]
            sources = (log.parts[one.part].window(number).source_id for number in one.windows)
            label = f"{window.label}\n" if window.label else ""
            return SearchHit(
                message_id=message_id,
                ordinal=one.message.ordinal,
                turn_id=first.id or (await self._row(cached, first.ordinal)).message.id,
                type=one.message.type,
                tool=tool,
                source_ids=tuple(dict.fromkeys(number for number in sources if number)),
                snippet=snippet(label + text, request.groups),
                score=one.score,
                created_at=at,
            )

        return await in_parallel(hit, found)

    async def _text(self, cached: CachedConversation, one: Found, window: Window) -> tuple[str, str, datetime, str]:
        """Return id, tool and date of a message, and the text of a window. One command."""
        message = one.message
        if message.payload and message.created_at and window.payload_start >= 0:
            start, end = window.payload_start + window.start, window.payload_start + window.end
            [text] = await self._reader.payload_ranges(cached, [(message.payload, start, end)])
            return message.id, message.tool, message.created_at, text
        row = await self._row(cached, message.ordinal)
        texts = self._logs.texts(row.message, row.sources)
        return row.message.id, row.message.tool, row.entry.at, texts[window.text].text[window.start : window.end]

    async def _row(self, cached: CachedConversation, ordinal: int) -> StoredMessageRow:
        row = await self._reader.message_at(cached, ordinal)
        if row is None:
            raise CorruptDocumentError(entry_id(cached.conversation, 0), f"no entry has the message {ordinal}")
        return row

"""Read the ``log`` collection for search and listings: entries with their sources, questions, and long messages.

Floor 2; `readback.listing` and `search` call it. It uses ranges of ``_id`` or an index, as any other filter would scan
a clustered collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from convstore.log.entry import Entry, EntryMessage
from convstore.mongo.documents import entry_from
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.key_ranges import between
from convstore.mongo.keys import LOG, entry_range
from convstore.mongo.log import StoredMessageRow, rows_of

__all__ = ["Newest"]

_BATCH = 1_000
_NOT_SEARCHED = {"lookup": 0, "rewound": 0, "totals.preview": 0}
_NAMES = {**_NOT_SEARCHED, "sources": 0, "messages.stub": 0, "messages.arguments": 0}


class Newest:
    """Commands on the ``log`` collection, most of which begin with the last entry."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._log = driver.collection(prefix + LOG)

    async def entries(self, conversation: str, *, start: int = 0, before: int | None = None, limit: int) -> list[Entry]:
        """Return the last entries of a range of numbers with their sources, in order. One command."""
        documents = await self.documents(conversation, start=start, before=before, limit=limit)
        return await asyncio.to_thread(lambda: [entry_from(document) for document in documents])

    async def documents(
        self, conversation: str, *, start: int = 0, before: int | None = None, limit: int
    ) -> list[Mapping[str, Any]]:
        """Return the documents of the same entries, for a caller that parses only some of them. One command."""
        query = between(conversation, *entry_range(conversation, start=start, before=before))
        async with driver_errors():
            found = self._log.find(query, _NOT_SEARCHED).sort("_id", -1).limit(limit)
            documents: list[Mapping[str, Any]] = await found.batch_size(limit).to_list(None)
        return documents[::-1]

    async def messages_of_entries(self, conversation: str, firsts: Collection[int]) -> dict[int, StoredMessageRow]:
        """Return the messages of the entries that begin with some ordinals, by ordinal. One command."""
        if not firsts:
            return {}
        query = {"conversation": conversation, "first": {"$in": sorted(firsts)}}
        async with driver_errors():
            documents = await self._log.find(query).batch_size(_BATCH).to_list(None)
        return {row.message.ordinal: row for row in rows_of(documents).values()}

    async def questions(self, conversation: str, *, before: int, limit: int) -> list[Entry]:
        """Return the last entries before a number that have human messages, newest first. One command."""
        query = between(conversation, *entry_range(conversation, before=before)) | {"messages.type": "human"}
        async with driver_errors():
            found = self._log.find(query, {**_NOT_SEARCHED, "sources": 0}).sort("_id", -1).limit(limit)
            documents = await found.to_list(None)
        return [entry_from(document) for document in documents]

    async def long_messages(self, conversation: str, *, start: int, tokens: int, limit: int) -> list[EntryMessage]:
        """Return the newest human and AI messages of at least `tokens` tokens, newest first, without their bodies.

        Entries before `start` are not searched. One command.
        """
        query: dict[str, Any] = between(conversation, *entry_range(conversation, start=start))
        query["messages"] = {"$elemMatch": {"type": {"$in": ["human", "ai"]}, "tokens": {"$gte": tokens}}}
        async with driver_errors():
            found = self._log.find(query, {**_NAMES, "messages.body": 0}).sort("_id", -1).limit(limit)
            documents = await found.to_list(None)
        filled = [{**one, "messages": [{**message, "body": ""} for message in one["messages"]]} for one in documents]
        messages = [message for one in filled for message in reversed(entry_from(one).messages)]
        return [one for one in messages if one.type in ("human", "ai") and one.tokens >= tokens][:limit]

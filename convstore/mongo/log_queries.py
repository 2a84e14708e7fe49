"""Read parts of the ``log`` collection: for search and listings, and digests alone to compare messages.

Every filter is a range of ``_id`` or uses an index; any other would scan a clustered collection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection as Items
from collections.abc import Sequence
from typing import Any

from convstore.log.entry import Entry, EntryMessage
from convstore.messages.encoding import DIGEST_BYTES
from convstore.mongo.collection import Collection, Document, between
from convstore.mongo.documents import entry_from
from convstore.mongo.driver import Driver
from convstore.mongo.keys import LOG, entry_range
from convstore.mongo.log import StoredMessageRow, entries_from, filled, rows_of

_NEWEST_FIRST = (("_id", -1),)
_MAX_BEGUN = 20
_NOT_SEARCHED = {"lookup": 0, "totals.preview": 0}
_NAMES = {**_NOT_SEARCHED, "sources": 0, "messages.stub": 0, "messages.arguments": 0}
_NO_CONTENT = {"sources": 0, "lookup": 0, "kept_source_ids": 0} | {
    f"messages.{name}": 0 for name in ("body", "digest", "arguments", "stub", "sources", "payload")
}


class LogQueries:
    """Commands on the ``log`` collection, most of which begin with the last entry."""

    def __init__(self, driver: Driver) -> None:
        self._log = Collection(driver, LOG)

    async def entries(self, conversation: str, *, start: int = 0, before: int | None = None, limit: int) -> list[Entry]:
        """Return the last entries of a range of numbers with their sources, in order. One command."""
        documents = await self.documents(conversation, start=start, before=before, limit=limit)
        return await asyncio.to_thread(lambda: [entry_from(document) for document in documents])

    async def documents(
        self, conversation: str, *, start: int = 0, before: int | None = None, limit: int
    ) -> list[Document]:
        """Return the documents of the same entries, for a caller that parses only some of them. One command."""
        query = between(conversation, *entry_range(conversation, start=start, before=before))
        return (await self._log.find(query, _NOT_SEARCHED, order=_NEWEST_FIRST, limit=limit))[::-1]

    async def without_content(self, conversation: str, *, before: int | None = None, limit: int) -> list[Entry]:
        """Return the last entries, or those before a number, in order: totals and rewound ranges, but no content.

        A message costs about 150 bytes, whatever its size. One command.
        """
        query = between(conversation, *entry_range(conversation, before=before))
        documents = await self._log.find(query, _NO_CONTENT, order=_NEWEST_FIRST, limit=limit)
        return await entries_from([filled(one, body="", digest=bytes(DIGEST_BYTES)) for one in documents[::-1]])

    async def messages_of_entries(self, conversation: str, firsts: Items[int]) -> dict[int, StoredMessageRow]:
        """Return the messages of the entries that begin with some ordinals, by ordinal. One command."""
        if not firsts:
            return {}
        documents = await self._log.find({"conversation": conversation, "first": {"$in": sorted(firsts)}})
        return {row.message.ordinal: row for row in rows_of(documents).values()}

    async def messages_by_beginning(self, conversation: str, beginnings: Sequence[str]) -> dict[str, StoredMessageRow]:
        """Return the messages whose ids begin in one of some ways; none if there are many. One command."""
        if not beginnings:
            return {}
        documents = await self._log.find(beginnings_filter(conversation, beginnings), limit=_MAX_BEGUN)
        return rows_of(documents) if len(documents) < _MAX_BEGUN else {}

    async def questions(self, conversation: str, *, before: int, limit: int) -> list[Entry]:
        """Return the last entries before a number that have human messages, newest first. One command."""
        query = between(conversation, *entry_range(conversation, before=before)) | {"messages.type": "human"}
        fields = {**_NOT_SEARCHED, "sources": 0}
        return [entry_from(one) for one in await self._log.find(query, fields, order=_NEWEST_FIRST, limit=limit)]

    async def long_messages(self, conversation: str, *, start: int, tokens: int, limit: int) -> list[EntryMessage]:
        """Return the newest human and AI messages of at least `tokens` tokens, newest first, without their bodies.

        Entries before `start` are not searched. One command.
        """
        query: dict[str, Any] = between(conversation, *entry_range(conversation, start=start))
        query["messages"] = {"$elemMatch": {"type": {"$in": ["human", "ai"]}, "tokens": {"$gte": tokens}}}
        fields = {**_NAMES, "messages.body": 0}
        documents = await self._log.find(query, fields, order=_NEWEST_FIRST, limit=limit)
        messages = [one for found in documents for one in reversed(entry_from(filled(found, body="")).messages)]
        return [one for one in messages if one.type in ("human", "ai") and one.tokens >= tokens][:limit]


def beginnings_filter(conversation: str, beginnings: Sequence[str]) -> dict[str, Any]:
    """Return the filter for ids that begin in one of some ways; with Python's flag "u" it would scan the index."""
    patterns = [re.compile(f"^{re.escape(beginning)}", re.ASCII) for beginning in beginnings]
    return {"conversation": conversation, "messages.id": {"$in": patterns}}

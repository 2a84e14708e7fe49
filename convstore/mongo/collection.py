"""Send commands to one collection; errors of the driver become those of convstore.

Every collection except ``heads`` has the documents of a conversation in one range of ``_id``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import CursorNotFound, DuplicateKeyError

from convstore.mongo.driver import COMMAND_SECONDS, Driver, driver_errors
from convstore.mongo.keys import conversation_range

Document = Mapping[str, Any]

BY_KEY = (("_id", 1),)
NEWEST_FIRST = (("_id", -1),)
_BATCH = 1_000
_DELETED_AT_ONCE = 5_000


@asynccontextmanager
async def closing(cursor: Any) -> AsyncGenerator[Any, None]:
    """Close a cursor at the end, so that the server does not keep it for ten minutes."""
    try:
        yield cursor
    finally:
        ended = cursor.close()
        if isawaitable(ended):
            await ended


class Collection:
    """Commands on the collection with a name; each method is one command, unless its docstring says otherwise.

    `driver_collection` is for commands that have no method here. With `raw`, documents are returned as undecoded BSON.
    """

    def __init__(self, driver: Driver, name: str, *, raw: bool = False) -> None:
        self._driver = driver
        self.read_limit = driver.read_limit
        self.driver_collection = driver.collection(name, raw=raw)

    async def find(
        self,
        query: Document,
        fields: Mapping[str, Any] | None = None,
        *,
        order: Sequence[tuple[str, int]] = (),
        limit: int = 0,
    ) -> list[Document]:
        """Return the documents that a filter matches. One command up to a thousand documents, or up to the limit."""
        # larger than the limit, so that the server closes the cursor at once
        size = max(limit, _BATCH) + 1
        async with driver_errors():
            found = self.driver_collection.find(
                dict(query),
                fields,
                sort=list(order) or None,
                limit=limit,
                batch_size=size,
                **self.read_limit,
            )
            # as after a failover; no document was returned yet, so the read begins again
            try:
                documents: list[Document] = await found.to_list(None)
            except CursorNotFound:
                documents = await found.clone().to_list(None)
        return documents

    async def aggregate(
        self, pipeline: Sequence[Document], *, is_long: bool = False
    ) -> list[Document]:
        """Return the results of a pipeline; with `is_long` there is no time limit. One command up to 16 MB."""
        options = {} if is_long else {"maxTimeMS": int(COMMAND_SECONDS * 1_000)}
        async with driver_errors(seconds=None if is_long else COMMAND_SECONDS):
            found = self.driver_collection.aggregate(
                list(pipeline), batchSize=10 * _BATCH, **options
            )
            documents: list[Document] = await (
                await found if isawaitable(found) else found
            ).to_list(None)
        return documents

    async def distinct(self, field: str, query: Document) -> list[Any]:
        """Return the values of a field in the documents that a filter matches, at most 16 MB of them."""
        async with driver_errors(seconds=None):
            values: list[Any] = await self.driver_collection.distinct(field, dict(query))
        return values

    async def each(
        self, query: Document, *, order: Sequence[tuple[str, int]]
    ) -> AsyncGenerator[Document, None]:
        """Yield the documents that a filter matches, with one batch at a time in memory. One command or more."""
        async with (
            driver_errors(seconds=None),
            closing(
                self.driver_collection.find(dict(query), sort=list(order), batch_size=_BATCH)
            ) as documents,
        ):
            async for document in documents:
                yield document

    async def find_one(
        self, query: Document, fields: Mapping[str, Any] | None = None
    ) -> Document | None:
        """Return a document that a filter matches, or None."""
        async with driver_errors():
            document: Document | None = await self.driver_collection.find_one(
                dict(query), fields, **self.read_limit
            )
        return document

    async def insert(self, document: Document) -> bool:
        """Insert a document; False if its key is taken."""
        async with driver_errors():
            try:
                await self.driver_collection.insert_one(dict(document))
            except DuplicateKeyError:
                return False
        return True

    async def update(self, query: Document, change: Any, *, upsert: bool = False) -> bool:
        """Update a document by a mapping or a pipeline, or insert it with `upsert`; False if neither happened."""
        async with driver_errors():
            try:
                result = await self.driver_collection.update_one(dict(query), change, upsert=upsert)
            except DuplicateKeyError:
                # Of two concurrent upserts of one key the server fails one; the document exists now.
                result = await self.driver_collection.update_one(dict(query), change)
            return bool(result.matched_count or result.upserted_id)

    async def find_and_update(
        self,
        query: Document,
        change: Any,
        fields: Mapping[str, Any] | None = None,
        *,
        after: bool = False,
        upsert: bool = False,
    ) -> Document | None:
        """Update a document and return it as it was before, or with `after` as it is now; None if nothing matched."""
        returned = ReturnDocument.AFTER if after else ReturnDocument.BEFORE
        update = partial(
            self.driver_collection.find_one_and_update, dict(query), change, fields, upsert=upsert
        )
        async with driver_errors():
            try:
                found: Document | None = await update(return_document=returned)
            except DuplicateKeyError:
                # Of two concurrent upserts of one key the server fails one; the document exists now.
                found = await update(return_document=returned)
        return found

    async def update_many(self, query: Document, change: Document) -> None:
        """Update all documents that a filter matches."""
        async with driver_errors():
            await self.driver_collection.update_many(dict(query), dict(change))

    async def replace(self, query: Document, document: Document) -> bool:
        """Replace a document; False if the filter matched nothing."""
        async with driver_errors():
            result = await self.driver_collection.replace_one(dict(query), dict(document))
            return bool(result.matched_count)

    async def delete_one(self, query: Document) -> bool:
        """Delete a document; False if the filter matched nothing."""
        async with driver_errors():
            return bool((await self.driver_collection.delete_one(dict(query))).deleted_count)

    async def delete_many(self, query: Document) -> int:
        """Delete all documents that a filter matches and return their number."""
        async with driver_errors():
            with self._driver.limited():
                return int((await self.driver_collection.delete_many(dict(query))).deleted_count)

    async def delete(self, conversation: str, *keys: str) -> int:
        """Delete the documents of a conversation, or of a range of its keys, and return their number.

        Two commands for each 5,000 documents, as one command for millions would exceed the command timeout.
        """
        low, high = keys or conversation_range(conversation)
        removed = 0
        further = True
        while further:
            query = within(conversation, low, high)
            async with driver_errors():
                found = self.driver_collection.find(
                    query, {"_id": 1}, sort=[("_id", 1)], **self.read_limit
                )
                further = await found.skip(_DELETED_AT_ONCE).limit(1).to_list(None)
            removed += await self.delete_many(
                within(conversation, low, further[0]["_id"] if further else high)
            )
        return removed

    async def count(self, conversation: str, *keys: str) -> int:
        """Count the documents of a conversation, or of a range of its keys."""
        async with driver_errors():
            return int(await self.driver_collection.count_documents(within(conversation, *keys)))


def within(conversation: str, *keys: str) -> dict[str, Any]:
    """Return the filter for a conversation in one collection, or for a range of its keys.

    A sharded cluster routes it by conversation, a server searches by key.
    """
    low, high = keys or conversation_range(conversation)
    return {"conversation": conversation, "_id": {"$gte": low, "$lt": high}}

"""Read raw documents for verification, and write repairs.

Documents are returned as stored and found by ranges of ``_id`` alone, so that damaged documents are found, too. All
reads are pages, which bounds memory for any size of conversation or database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from convstore.mongo.collection import BY_KEY, Collection, Document
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.heads import Head, readable_head
from convstore.mongo.indexes import Index
from convstore.mongo.keys import (
    HEADS,
    LOG,
    date_field,
    entry_range,
    is_conversation_id,
    log_ranges,
    scope_filter,
    state_id,
    tombstone_id,
)
from convstore.mongo.versions import readable
from convstore.values.plain import slices
from convstore.values.scope import PATH

_DIGITS = "0123456789abcdef"
_ENTRIES = 50
_KEYS = 10_000
_SMALL = 500
_BATCH = 1_000


class Inspection:
    """Commands on raw documents of all collections."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._heads = Collection(driver, HEADS)
        self._log = Collection(driver, LOG)

    async def heads(
        self, partial_scope: Mapping[str, str], *, after: Any, limit: int
    ) -> list[Document]:
        """Return heads with these scope values after a key, ordered by key, without tombstones. One command."""
        query = scope_filter(partial_scope) | {
            "_id": {"$gt": after},
            "sweep_at": {"$exists": False},
        }
        return await self._heads.find(query, order=BY_KEY, limit=limit)

    async def head(self, key: str) -> Document | None:
        """Return a head as it is stored, if it exists. One command."""
        return await self._heads.find_one({"_id": key})

    async def set_head(self, head: Document, changes: Mapping[str, Any]) -> bool:
        """Change a head, unless a writer refreshed it since it was read. One command."""
        unchanged = {
            name: head.get(name)
            for name in ("_id", "conversation", "updated_at", "written_at", "entry")
        }
        date = date_field(head.get("scope") or {})
        renamed = {date if name == "updated_at" else name: value for name, value in changes.items()}
        return await self._heads.update(unchanged, {"$set": renamed})

    async def entries(
        self, conversation: str, *, after: str = "", through: str = ""
    ) -> list[Document]:
        """Return the next page of entries after a key and through another, in order; empty at the end. One command."""
        low, high = entry_range(conversation)
        begin = {"$gt": after} if after else {"$gte": low}
        end = {"$lte": through} if through else {"$lt": high}
        return await self._log.find({"_id": begin | end}, order=BY_KEY, limit=_ENTRIES)

    async def entry(self, key: str) -> Document | None:
        """Return an entry as it is stored, if it exists. One command."""
        return await self._log.find_one({"_id": key})

    async def state(self, conversation: str) -> Document | None:
        """Return the state of a conversation as it is stored, if it exists. One command."""
        return await self.entry(state_id(conversation))

    async def replace_state(self, state: Document | None, document: Document) -> bool:
        """Replace a damaged state of the same revision, or insert a missing one. One command."""
        if state is None:
            return await self._log.insert(document)
        return await self._log.replace(_same_state(state), document)

    async def set_hint(self, state: Document, name: str, value: Any) -> bool:
        """Replace a derived field in a state of the same revision, or remove it if `value` is None. One command."""
        update = {"$unset": {name: ""}} if value is None else {"$set": {name: value}}
        return await self._log.update(_same_state(state), update)

    async def chunk_keys(self, conversation: str, *, after: str = "") -> list[str]:
        """Return the next page of chunk keys after a key, in order; empty at the end. One command."""
        _, (low, high) = log_ranges(conversation)
        query = {"_id": {"$gt": after or low, "$lt": high}}
        found = await self._log.find(query, {"_id": 1}, order=BY_KEY, limit=_KEYS)
        return [str(document["_id"]) for document in found]

    async def chunks(self, conversation: str, *, start: str, limit: int) -> dict[str, Document]:
        """Return chunks from a key on as they are stored, by key; their order is that of the appends. One command."""
        _, (_, high) = log_ranges(conversation)
        query = {"_id": {"$gte": start, "$lt": high}}
        found = await self._log.find(query, order=BY_KEY, limit=limit)
        return {document["_id"]: document for document in found}

    async def documents_of(
        self, collection: str, conversation: str, *, after: str = ""
    ) -> list[Document]:
        """Return the next page of a conversation's summaries or annotations; empty at the end. One command."""
        (low, high), _ = log_ranges(conversation)
        query = {"_id": {"$gt": after or low, "$lt": high}}
        return await Collection(self._driver, collection).find(query, order=BY_KEY, limit=_SMALL)

    async def next_conversation(self, collection: str, conversation: str) -> str | None:
        """Return the next conversation that has documents in a collection, in the order of keys. One command."""
        query = {"_id": {"$gt": f"{conversation};" if conversation else ""}}
        page = await Collection(self._driver, collection).find(
            query, {"_id": 1}, order=BY_KEY, limit=1
        )
        return str(page[0]["_id"]).partition(":")[0].partition("#")[0] if page else None

    async def is_known(self, conversation: str) -> bool:
        """Return True if the conversation has a head or a tombstone. Two commands at most."""
        for query in ({"conversation": conversation}, {"_id": tombstone_id(conversation)}):
            if await self._heads.find_one(query, {"_id": 1}) is not None:
                return True
        return False

    async def remove(self, collection: str, keys: Sequence[str]) -> int:
        """Remove documents by key and return their number. One command for each thousand."""
        removed = 0
        for part in slices(keys, _BATCH):
            batch = sorted(part)
            query = {"_id": {"$gte": batch[0], "$lte": batch[-1], "$in": batch}}
            removed += await Collection(self._driver, collection).delete_many(query)
        return removed

    async def lost_logs(self) -> AsyncGenerator[str, None]:
        """Yield the ids of conversations that have entries, but neither a head nor a tombstone.

        The scope is only in the head, so an erasure by scope values does not find them. They are read in sixteen parts
        by the first digit of their random ids, which bounds memory. Each is looked up again, because it may just have
        begun. Two commands for each part, and one or two for each candidate.
        """
        for digit in _DIGITS:
            inside = {"$gte": digit, "$lt": f"{digit}\x7f"}
            indexed = {"conversation": inside, "first": {"$gte": 0}}  # uses the index of ordinals
            found = set(await self._log.distinct("conversation", indexed))
            heads = map(
                readable_head, await self._heads.find({"conversation": inside}, {"conversation": 1})
            )
            found -= {head.conversation for head in heads}
            for conversation in sorted(filter(is_conversation_id, found)):
                if not await self.is_known(conversation):
                    yield conversation

    async def lost_heads(self) -> AsyncGenerator[Head, None]:
        """Yield the readable parts of heads whose conversation or scope is damaged. Reads every head.

        Heads of a newer version are left out, because they may have another format.
        """
        async with aclosing(
            self._heads.each({"sweep_at": {"$exists": False}, **readable("head")}, order=BY_KEY)
        ) as documents:
            async for document in documents:
                head = readable_head(document)
                if not (head.conversation and head.has_key_of_scope):
                    yield head

    async def drop_lost_head(self, head: Head) -> bool:
        """Delete a head without the id of a conversation; False if it has one now or is missing. One command."""
        # the second condition matches a list
        is_nameless = [
            {"conversation": {"$not": {"$regex": "."}}},
            {"conversation.0": {"$exists": True}},
        ]
        return await self._heads.delete_one({"_id": head.key, "$or": is_nameless})


async def all_of_pages(
    read: Callable[..., Awaitable[Sequence[Document]]], *names: str
) -> AsyncGenerator[Document, None]:
    """Yield the documents of all pages that a method returns, which takes the last key as `after`."""
    after = ""
    while page := await read(*names, after=after):
        for document in page:
            yield document
        after = str(page[-1]["_id"])


class SchemaInspection:
    """Commands that inspect collections and indexes; the in-memory driver does not support them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._database = driver.database
        self._prefix = driver.prefix
        self.is_real = driver.name != "memory"

    async def options(self, collections: Iterable[str]) -> dict[str, Document]:
        """Return the options of existing collections, by name without the prefix. One command."""
        names = {self._prefix + name: name for name in collections}
        async with driver_errors():
            reply = await self._database.command(
                "listCollections", filter={"name": {"$in": sorted(names)}}
            )
        return {
            names[found["name"]]: found.get("options", {})
            for found in reply["cursor"]["firstBatch"]
        }

    async def compressor(self, collection: str) -> str:
        """Return a collection's block compressor, "" if the server does not report it. One command."""
        async with driver_errors():
            stats = await self._database.command("collStats", self._prefix + collection)
        text = str(stats.get("wiredTiger", {}).get("creationString", ""))
        return text.partition("block_compressor=")[2].partition(",")[0]

    async def lacks(self, collection: str, field: str, *, given: str) -> bool:
        """Return True if some document has the field `given` but none has `field`. Two commands, perhaps scans."""
        found = Collection(self._driver, collection)
        has = [
            await found.find_one({name: {"$exists": True}}, {"_id": 1}) for name in (given, field)
        ]
        return has[0] is not None and has[1] is None

    async def scope_keys(self) -> list[str]:
        """Return the sorted scope keys of one conversation; empty if there are no conversations. One command."""
        found = await Collection(self._driver, HEADS).find_one(
            {"scope": {"$exists": True}}, {"scope": 1}
        )
        scope = (found or {}).get("scope")
        return sorted(map(str, scope.keys() - {PATH})) if isinstance(scope, Mapping) else []

    async def indexes(self, collection: str) -> dict[str, Document]:
        """Return the indexes of a collection by name. One command."""
        async with driver_errors():
            reply = await self._database.command("listIndexes", self._prefix + collection)
        return {str(index["name"]): index for index in reply["cursor"]["firstBatch"]}


def _same_state(state: Document) -> dict[str, Any]:
    """Return the filter for a state of the same revision; a router finds its shard by the conversation."""
    return {
        "_id": state["_id"],
        "conversation": state.get("conversation"),
        "revision": state.get("revision"),
    }


def matches(found: Document, index: Index) -> bool:
    """Return True if an index of the database matches its definition."""
    keys = [(name, int(direction)) for name, direction in found["key"].items()]
    over = {index.present: {"$exists": True}} if index.present else {}
    same = keys == list(index.keys) and bool(found.get("unique")) == index.unique
    return same and found.get("partialFilterExpression", {}) == over and "collation" not in found

"""End conversations in the ``heads`` collection and keep a tombstone until everything of them is swept.

A tombstone replaces the head and stays until late writes of appends in flight are swept. It holds no scope values, only
their hashes, by which an interrupted deletion is found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from convstore.mongo.collection import Collection, Document, within
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.heads import Head, head_key, readable_head
from convstore.mongo.keys import HEADS, OF_CONVERSATIONS, head_id, root_id, scope_filter, tombstone_id
from convstore.mongo.times import SWEEP_MARGIN

_KEY_FIELDS = {"conversation": 1, "scope": 1, "updated_at": 1, "written_at": 1, "has_children": 1}
_BY_KEY = (("_id", 1),)


class Tombstones:
    """Commands on the ``heads`` collection that end conversations."""

    def __init__(self, driver: Driver) -> None:
        self._times, self._heads = driver.times, Collection(driver, HEADS)
        self._others = [Collection(driver, name) for name in OF_CONVERSATIONS]

    async def find(self, scope: Mapping[str, str]) -> Head | None:
        """Return the head of a whole scope, or None if it has no conversation. One command."""
        document = await self._heads.find_one({"_id": await head_key(self._heads, scope)}, _KEY_FIELDS)
        return readable_head(document) if document else None

    async def find_by_conversation(self, conversation: str) -> Head | None:
        """Return what can be read of the head that names a conversation, or None. One command."""
        query = {"conversation": conversation, "sweep_at": {"$exists": False}}
        document = await self._heads.find_one(query, _KEY_FIELDS)
        return readable_head(document) if document else None

    async def children(self, conversation: str) -> list[Head]:
        """Return the heads of the children of a conversation. One command for each thousand."""
        return [readable_head(head) for head in await self._heads.find({"parent": conversation}, _KEY_FIELDS)]

    async def page(self, partial_scope: Mapping[str, str], *, after: str, limit: int) -> list[Head]:
        """Return heads with these scope values after a key, ordered by key; without values all heads. One command."""
        query = scope_filter(partial_scope) | {"sweep_at": {"$exists": False}, "_id": {"$gt": after}}
        return [readable_head(head) for head in await self._heads.find(query, _KEY_FIELDS, order=_BY_KEY, limit=limit)]

    async def idle(
        self, partial_scope: Mapping[str, str], *, before: datetime, after: Head | None, limit: int
    ) -> list[Head]:
        """Return heads with these scope values both of whose dates are before a time, oldest first.

        `after` is the last head of the page before. One command.
        """
        query = scope_filter(partial_scope) | {"updated_at": {"$lt": before}, "written_at": {"$lt": before}}
        if after is not None:
            query["$or"] = [
                {"updated_at": {"$gt": after.updated_at}},
                {"updated_at": after.updated_at, "_id": {"$gt": after.key}},
            ]
        order = [("updated_at", 1), ("_id", 1)]
        return [readable_head(head) for head in await self._heads.find(query, _KEY_FIELDS, order=order, limit=limit)]

    async def begin_copy(self, conversation: str, scope: Mapping[str, str], *, sweep_after: timedelta) -> None:
        """Write a tombstone for a copy that has no head yet; after that time it is swept. One command."""
        tombstone = _tombstone(conversation, head_id(scope), scope) | {"copying": True}
        written = await self._times.setting(tombstone, field="sweep_at", ahead=sweep_after)
        await self._heads.update({"_id": tombstone_id(conversation)}, written, upsert=True)

    async def end_copy(self, conversation: str) -> bool:
        """Drop the tombstone of a copy that has a head now; False if a sweep or an erasure began. One command."""
        return await self._heads.delete_one({"_id": tombstone_id(conversation), "copying": True})

    async def write_tombstone(self, head: Head, *, sweep_after: timedelta, pruned: bool) -> bool:
        """Replace a head by a tombstone: the scope then has no conversation. False if another call did. Three commands.

        With `pruned`, only if the head was not refreshed since it was read: a concurrent writer then starts a new
        conversation and writes its batch there. After `sweep_after`, no append can still be in flight.
        """
        query: dict[str, Any] = {"_id": head.key, "conversation": head.conversation}
        if pruned:
            query |= {"updated_at": head.updated_at, "written_at": head.written_at}
        tombstone = _tombstone(head.conversation, head.key, head.scope) | {"pruned": pruned, "copying": False}
        written = await self._times.setting(tombstone, field="sweep_at", ahead=sweep_after)
        key = {"_id": tombstone_id(head.conversation)}
        # Written first, so that no ended conversation lacks a tombstone; it has no effect while the head exists.
        await self._heads.update(key, written, upsert=True)
        async with driver_errors():
            ended = await self._heads.driver_collection.find_one_and_delete(query, {"has_children": 1})
        if ended:
            # Written again: a concurrent sweep may have dropped it because it still found the head.
            tombstone["has_children"] = "has_children" in ended
            written = await self._times.setting(tombstone, field="sweep_at", ahead=sweep_after)
            await self._heads.update(key, written, upsert=True)
        return bool(ended)

    async def was_pruned(self, conversation: str) -> bool:
        """Return True if prune() ended the conversation, with its parents, not delete(). One command."""
        tombstone = await self._heads.find_one({"_id": tombstone_id(root_id(conversation))}, {"pruned": 1})
        return bool(tombstone and tombstone.get("pruned"))

    async def unswept(self, partial_scope: Mapping[str, str], *, copies: bool = True) -> list[str]:
        """Return ended conversations with these scope values that were not swept yet, ordered by key. One command.

        Without `copies`, forks that are being made are left out.
        """
        return await self._unswept(_marks_filter(partial_scope) | ({} if copies else {"copying": {"$ne": True}}))

    async def unswept_lost(self) -> list[str]:
        """Return ended conversations of unknown scope that were not swept yet, ordered by key. One command."""
        return await self._unswept({"marks": {}})

    async def _unswept(self, query: Document) -> list[str]:
        query = {"sweep_at": {"$exists": True}, "swept": {"$ne": True}, **query}
        return [_ended(tombstone) for tombstone in await self._heads.find(query, {"_id": 1}, order=_BY_KEY)]

    async def due(self, partial_scope: Mapping[str, str], *, limit: int) -> list[str]:
        """Return ended conversations with these scope values whose sweep is due. One command."""
        query = await self._times.is_past("sweep_at", margin=SWEEP_MARGIN) | _marks_filter(partial_scope)
        return [_ended(tombstone) for tombstone in await self._heads.find(query, {"_id": 1}, limit=limit)]

    async def take(self, conversation: str, *, time: timedelta) -> Document | None:
        """Take a sweep that is due; None if another process has it. After that time it is due again. One command."""
        query = {"_id": tombstone_id(conversation), **await self._times.is_past("sweep_at", margin=SWEEP_MARGIN)}
        update = await self._times.setting({"copying": False}, field="sweep_at", ahead=time)
        return await self._heads.find_and_update(query, update, after=True)

    async def is_ended(self, conversation: str, tombstone: Document | None = None) -> bool:
        """Return True if a conversation has a tombstone and no head; an interrupted deletion leaves both.

        A copy that is being made is given up.
        """
        if tombstone is None:
            key, given_up = {"_id": tombstone_id(conversation)}, {"$set": {"copying": False}}
            tombstone = await self._heads.find_and_update(key, given_up)
        if tombstone is None:
            return False
        head = {"_id": tombstone.get("head"), "conversation": conversation}
        return await self._heads.find_one(head, {"_id": 1}) is None

    async def has_ended(self, conversation: str) -> bool:
        """Return True as `is_ended` does, and change nothing. At most two commands."""
        tombstone = await self._heads.find_one({"_id": tombstone_id(conversation)})
        return tombstone is not None and await self.is_ended(conversation, tombstone)

    async def clear(self, conversation: str) -> None:
        """Delete what came late to an ended conversation. One range delete in each collection."""
        for collection in self._others:
            await collection.delete_many(within(conversation))

    async def swept(self, tombstone: Document, *, again_after: timedelta) -> None:
        """Record a sweep that was taken, and drop the tombstone after the second, unless it was written again."""
        taken = {"_id": tombstone["_id"], "sweep_at": tombstone["sweep_at"]}
        if tombstone.get("swept"):
            await self._heads.delete_one(taken)
        else:
            again = await self._times.setting({"swept": True}, field="sweep_at", ahead=again_after)
            await self._heads.update(taken, again)


def _tombstone(conversation: str, key: str, scope: Mapping[str, str]) -> dict[str, Any]:
    return {
        "conversation": conversation,
        "head": key,
        "marks": {name: _mark(name, value) for name, value in scope.items()},
        "swept": False,
        "has_children": True,  # until it is known
    }


def _ended(tombstone: Document) -> str:
    return str(tombstone["_id"]).partition(":")[2]


def _marks_filter(partial_scope: Mapping[str, str]) -> dict[str, Any]:
    return {f"marks.{key}": _mark(key, value) for key, value in partial_scope.items()}


def _mark(key: str, value: object) -> str:
    return hashlib.sha256(f"{key}={value}".encode("utf-8", "surrogatepass")).hexdigest()

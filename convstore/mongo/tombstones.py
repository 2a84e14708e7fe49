"""End conversations in the ``heads`` collection and keep a tombstone until everything of them is swept.

A tombstone replaces the head and stays until late writes of appends in flight are swept. It holds no scope values, only
their hashes, by which an interrupted deletion is found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from convstore.mongo.bson_values import utc
from convstore.mongo.collection import Collection, Document
from convstore.mongo.driver import Driver
from convstore.mongo.keys import HEADS, head_id, scope_filter

_KEY_FIELDS = {"conversation": 1, "scope": 1, "updated_at": 1}
_BY_KEY = (("_id", 1),)


@dataclass(frozen=True, slots=True)
class HeadKey:
    """The fields of a head that ending its conversation needs; damage in other fields does not matter.

    Attributes:
        key: The ``_id`` of the head.
        conversation: The id that the log uses; "" if that field is damaged.
        scope: The scope; empty if that field is damaged.
        updated_at: The time of the last refresh, as stored; None if that field is damaged.
    """

    key: str
    conversation: str
    scope: Mapping[str, str]
    updated_at: datetime | None


class Tombstones:
    """Commands on the ``heads`` collection that end conversations."""

    def __init__(self, driver: Driver) -> None:
        self._heads = Collection(driver, HEADS)

    async def find(self, scope: Mapping[str, str]) -> HeadKey | None:
        """Return the head of a whole scope, or None if it has no conversation. One command."""
        document = await self._heads.find_one({"_id": head_id(scope)}, _KEY_FIELDS)
        return _key_from(document) if document else None

    async def page(self, partial_scope: Mapping[str, str], *, after: str, limit: int) -> list[HeadKey]:
        """Return heads with these scope values after a key, ordered by key. One command."""
        query = scope_filter(partial_scope) | {"scope": {"$exists": True}, "_id": {"$gt": after}}
        return [_key_from(one) for one in await self._heads.find(query, _KEY_FIELDS, order=_BY_KEY, limit=limit)]

    async def idle(
        self,
        partial_scope: Mapping[str, str],
        *,
        at: datetime,
        before: datetime,
        after: HeadKey | None,
        limit: int,
    ) -> list[HeadKey]:
        """Return heads with these scope values that are closed now and were last refreshed before a time, oldest first.

        `after` is the last head of the page before. One command.
        """
        query = scope_filter(partial_scope) | {"updated_at": {"$lt": before}, **_is_closed(at)}
        if after is not None:
            query["$or"] = [
                {"updated_at": {"$gt": after.updated_at}},
                {"updated_at": after.updated_at, "_id": {"$gt": after.key}},
            ]
        order = [("updated_at", 1), ("_id", 1)]
        return [_key_from(one) for one in await self._heads.find(query, _KEY_FIELDS, order=order, limit=limit)]

    async def write_tombstone(self, head: HeadKey, *, at: datetime, sweep_at: datetime, pruned: bool) -> bool:
        """Replace a head by a tombstone: the scope then has no conversation. False if another call did. Three commands.

        With `pruned`, only if the head was not opened or refreshed since it was read: a concurrent writer then starts a
        new conversation and writes its batch there. After `sweep_at`, no append can still be in flight.
        """
        query: dict[str, Any] = {"_id": head.key, "conversation": head.conversation}
        if pruned:
            query |= {"updated_at": head.updated_at, **_is_closed(at)}
        tombstone = {
            "conversation": head.conversation,
            "head": head.key,
            "marks": {key: _mark(key, value) for key, value in head.scope.items()},
            "pruned": pruned,
            "sweep_at": sweep_at,
            "swept": False,
        }
        key = {"_id": _tombstone_id(head.conversation)}
        # Written first, so that no ended conversation lacks a tombstone; it has no effect while the head exists.
        await self._heads.update(key, {"$set": tombstone}, upsert=True)
        ended = await self._heads.delete_one(query)
        if ended:
            # Written again: a concurrent sweep may have dropped it because it still found the head.
            await self._heads.update(key, {"$set": tombstone}, upsert=True)
        return ended

    async def was_pruned(self, conversation: str) -> bool:
        """Return True if prune() ended the conversation, not delete(). One command."""
        tombstone = await self._heads.find_one({"_id": _tombstone_id(conversation)}, {"pruned": 1})
        return bool(tombstone and tombstone.get("pruned"))

    async def unswept(self, partial_scope: Mapping[str, str]) -> list[str]:
        """Return ended conversations with these scope values that were not swept yet, ordered by key. One command."""
        query: dict[str, Any] = {f"marks.{key}": _mark(key, value) for key, value in partial_scope.items()}
        query |= {"sweep_at": {"$exists": True}, "swept": {"$ne": True}}
        return [_ended(tombstone) for tombstone in await self._heads.find(query, {"_id": 1}, order=_BY_KEY)]

    async def due(self, *, at: datetime, limit: int) -> list[str]:
        """Return ended conversations whose sweep is due. One command."""
        found = await self._heads.find({"sweep_at": {"$lte": at}}, {"_id": 1}, limit=limit)
        return [_ended(tombstone) for tombstone in found]

    async def is_ended(self, conversation: str) -> bool:
        """Return True if a conversation has a tombstone and no head; an interrupted deletion leaves both."""
        tombstone = await self._heads.find_one({"_id": _tombstone_id(conversation)})
        if tombstone is None:
            return False
        head = {"_id": tombstone.get("head"), "conversation": conversation}
        return await self._heads.find_one(head, {"_id": 1}) is None

    async def swept(self, conversation: str, *, at: datetime, again: datetime) -> None:
        """Record a sweep that was due; drop the tombstone after the second one. Two commands, then one."""
        due = {"_id": _tombstone_id(conversation), "sweep_at": {"$lte": at}}
        if not await self._heads.delete_one({**due, "swept": True}):
            await self._heads.update(due, {"$set": {"sweep_at": again, "swept": True}})


def _is_closed(at: datetime) -> dict[str, Any]:
    """Return the filter for closed heads: no store may append without refreshing them."""
    return {"open_until": {"$not": {"$gt": at}}}


def _tombstone_id(conversation: str) -> str:
    return f"deleted:{conversation}"


def _ended(tombstone: Document) -> str:
    return str(tombstone["_id"]).partition(":")[2]


def _mark(key: str, value: object) -> str:
    return hashlib.sha256(f"{key}={value}".encode("utf-8", "surrogatepass")).hexdigest()


def _key_from(document: Document) -> HeadKey:
    conversation, scope, updated_at = (document.get(name) for name in ("conversation", "scope", "updated_at"))
    return HeadKey(
        key=document["_id"],
        conversation=conversation if isinstance(conversation, str) else "",
        scope=dict(scope) if isinstance(scope, Mapping) else {},
        updated_at=utc(updated_at) if isinstance(updated_at, datetime) else None,
    )

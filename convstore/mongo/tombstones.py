"""Ends of conversations in the ``heads`` collection: which are to end, and what stays until all of them is gone.

Layer 3. A head is replaced by a tombstone, which stays until everything that a writer in flight may still have added
is swept. A tombstone holds no values of the scope, only hashes, by which a removal that broke off is found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from convstore.mongo.bson_values import utc
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.keys import HEADS, head_id

__all__ = ["HeadKey", "Tombstones"]


@dataclass(frozen=True, slots=True)
class HeadKey:
    """What of a head is needed to end its conversation, so that damage elsewhere in it does not matter.

    Attributes:
        key: The ``_id`` of the head.
        conversation: The id that the log uses; "" if the head is damaged and does not say.
        scope: Whose it is; empty if the head is damaged and does not say.
        updated_at: When it was last brought up to date, as stored; None if it does not say.
    """

    key: str
    conversation: str
    scope: Mapping[str, str]
    updated_at: datetime | None


class Tombstones:
    """Commands on the ``heads`` collection that end conversations."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._heads = driver.collection(prefix + HEADS)

    async def find(self, scope: Mapping[str, str]) -> HeadKey | None:
        """The head of a whole scope; None if it has no conversation. One command."""
        async with driver_errors():
            document = await self._heads.find_one({"_id": head_id(scope)}, _KEY_FIELDS)
        return _key_from(document) if document else None

    async def page(self, partial_scope: Mapping[str, str], *, after: str, limit: int) -> list[HeadKey]:
        """Heads with these scope values behind a key, in the order of keys. One command."""
        query = _of_scope(partial_scope) | {"scope": {"$exists": True}, "_id": {"$gt": after}}
        async with driver_errors():
            documents = await self._heads.find(query, _KEY_FIELDS).sort("_id", 1).limit(limit).to_list(None)
        return [_key_from(document) for document in documents]

    async def idle(
        self,
        partial_scope: Mapping[str, str],
        *,
        at: datetime,
        before: datetime,
        after: HeadKey | None,
        limit: int,
    ) -> list[HeadKey]:
        """Closed heads with these scope values that were last told of a message before a time, oldest first.

        One command.

        Args:
            partial_scope: Values of some scope keys.
            at: The time now, by which a head is open or closed.
            before: The time.
            after: The last head of the page before.
            limit: At most this many heads.
        """
        query = _of_scope(partial_scope) | {"updated_at": {"$lt": before}, **_is_closed(at)}
        if after is not None:
            query["$or"] = [
                {"updated_at": {"$gt": after.updated_at}},
                {"updated_at": after.updated_at, "_id": {"$gt": after.key}},
            ]
        order = [("updated_at", 1), ("_id", 1)]
        async with driver_errors():
            documents = await self._heads.find(query, _KEY_FIELDS).sort(order).limit(limit).to_list(None)
        return [_key_from(document) for document in documents]

    async def write_tombstone(self, head: HeadKey, *, at: datetime, sweep_at: datetime, pruned: bool) -> bool:
        """Replace a head by a tombstone; from now on the scope has no conversation. Three commands.

        Args:
            head: As it was read.
            at: The time now, by which a head is open or closed.
            sweep_at: When nobody can be writing to the conversation any more.
            pruned: Only if nobody has opened the head or brought it up to date since. A writer that learns of it then
                begins a new conversation for what it has just written.

        Returns:
            Whether this call ended it; False if another did, or if it is in use.
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
        async with driver_errors():
            # First, so that nothing ended is without a tombstone; while the head stays it means nothing.
            await self._keep(tombstone)
            ended = bool((await self._heads.delete_one(query)).deleted_count)
            if ended:
                # Again: who sweeps may have found the head still there.
                await self._keep(tombstone)
        return ended

    async def _keep(self, tombstone: Mapping[str, Any]) -> None:
        key = _tombstone_id(tombstone["conversation"])
        await self._heads.update_one({"_id": key}, {"$set": dict(tombstone)}, upsert=True)

    async def was_pruned(self, conversation: str) -> bool:
        """Whether a conversation was ended by a policy, not by somebody who wanted it gone. One command."""
        async with driver_errors():
            tombstone = await self._heads.find_one({"_id": _tombstone_id(conversation)}, {"pruned": 1})
        return bool(tombstone and tombstone.get("pruned"))

    async def unswept(self, partial_scope: Mapping[str, str]) -> list[str]:
        """Ended conversations with these scope values that were not swept yet, in the order of keys. One command."""
        query: dict[str, Any] = {f"marks.{key}": _mark(key, value) for key, value in partial_scope.items()}
        query |= {"sweep_at": {"$exists": True}, "swept": {"$ne": True}}
        async with driver_errors():
            documents = await self._heads.find(query, {"_id": 1}).sort("_id", 1).to_list(None)
        return [_ended(document) for document in documents]

    async def due(self, *, at: datetime, limit: int) -> list[str]:
        """Ended conversations of which a sweep is due. One command."""
        async with driver_errors():
            found = await self._heads.find({"sweep_at": {"$lte": at}}, {"_id": 1}).limit(limit).to_list(None)
        return [_ended(document) for document in found]

    async def is_ended(self, conversation: str) -> bool:
        """Whether a conversation with a tombstone has no head any more; it has one if its end broke off."""
        async with driver_errors():
            tombstone = await self._heads.find_one({"_id": _tombstone_id(conversation)})
            if tombstone is None:
                return False
            head = await self._heads.find_one({"_id": tombstone.get("head"), "conversation": conversation}, {"_id": 1})
        return head is None

    async def swept(self, conversation: str, *, at: datetime, again: datetime) -> None:
        """Note that a conversation was swept, if that was still due; drops the tombstone the second time.

        Two commands, one the second time.
        """
        due = {"_id": _tombstone_id(conversation), "sweep_at": {"$lte": at}}
        async with driver_errors():
            if not (await self._heads.delete_one({**due, "swept": True})).deleted_count:
                await self._heads.update_one(due, {"$set": {"sweep_at": again, "swept": True}})


def _is_closed(at: datetime) -> dict[str, Any]:
    """Filters out the heads of conversations to which a store may append without a look at the head."""
    return {"open_until": {"$not": {"$gt": at}}}


_KEY_FIELDS = {"conversation": 1, "scope": 1, "updated_at": 1}


def _of_scope(partial_scope: Mapping[str, str]) -> dict[str, Any]:
    return {f"scope.{key}": value for key, value in partial_scope.items()}


def _tombstone_id(conversation: str) -> str:
    return f"deleted:{conversation}"


def _ended(tombstone: Mapping[str, Any]) -> str:
    return str(tombstone["_id"]).partition(":")[2]


def _mark(key: str, value: object) -> str:
    return hashlib.sha256(f"{key}={value}".encode("utf-8", "surrogatepass")).hexdigest()


def _key_from(document: Mapping[str, Any]) -> HeadKey:
    conversation, scope, updated_at = (document.get(name) for name in ("conversation", "scope", "updated_at"))
    return HeadKey(
        key=document["_id"],
        conversation=conversation if isinstance(conversation, str) else "",
        scope=dict(scope) if isinstance(scope, Mapping) else {},
        updated_at=utc(updated_at) if isinstance(updated_at, datetime) else None,
    )

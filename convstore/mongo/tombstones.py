"""Delete conversations in the ``heads`` collection and keep a tombstone until all their documents are swept.

A tombstone replaces the head and stays until late writes of appends in flight are swept. It has only hashes of the
scope values, so that an interrupted deletion can be found again.

A log that a repair replaced has a tombstone with a `successor`, which stays for 30 days. While the copy is written, its
tombstone has `copying`, and the head names it as its `copy`. The copy replaces the log only if the head still names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from convstore.mongo.collection import BY_KEY, Collection, Document, within
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.heads import EntryRef, Head, head_key, readable_head
from convstore.mongo.keys import (
    HEADS,
    OF_CONVERSATIONS,
    all_ids,
    first_id,
    head_id,
    root_id,
    scope_filter,
    tombstone_id,
)
from convstore.mongo.times import SWEEP_MARGIN

_KEY_FIELDS = {"conversation": 1, "scope": 1, "updated_at": 1, "written_at": 1, "has_children": 1}


class Tombstones:
    """Commands on the ``heads`` collection that delete conversations."""

    def __init__(self, driver: Driver) -> None:
        self._times = driver.times
        self._heads = Collection(driver, HEADS)
        self._others = [Collection(driver, name) for name in OF_CONVERSATIONS]

    async def find(self, scope: Mapping[str, str]) -> Head | None:
        """Return the readable part of the head of a complete scope, if it has a conversation. One command."""
        document = await self._heads.find_one(
            {"_id": await head_key(self._heads, scope)}, _KEY_FIELDS
        )
        return readable_head(document) if document else None

    async def find_by_conversation(self, conversation: str) -> Head | None:
        """Return the readable part of the head with a conversation id, if it exists. One command."""
        query = {"conversation": all_ids(conversation), "sweep_at": {"$exists": False}}
        document = await self._heads.find_one(query, _KEY_FIELDS)
        return readable_head(document) if document else None

    async def children(self, conversation: str) -> list[Head]:
        """Return the heads of the children of a conversation. One command for each thousand."""
        return await self._readable({"parent": first_id(conversation)})

    async def page(self, partial_scope: Mapping[str, str], *, after: str, limit: int) -> list[Head]:
        """Return heads with these scope values after a key, ordered by key; without values all heads. One command."""
        query = scope_filter(partial_scope) | {
            "sweep_at": {"$exists": False},
            "_id": {"$gt": after},
        }
        return await self._readable(query, order=BY_KEY, limit=limit)

    async def idle(
        self, partial_scope: Mapping[str, str], *, before: datetime, after: Head | None, limit: int
    ) -> list[Head]:
        """Return heads with these scope values that were neither used nor refreshed since a time, oldest first.

        `after` is the last head of the previous page. One command.
        """
        query = scope_filter(partial_scope) | {
            "updated_at": {"$lt": before},
            "written_at": {"$lt": before},
        }
        if after is not None:
            query["$or"] = [
                {"updated_at": {"$gt": after.updated_at}},
                {"updated_at": after.updated_at, "_id": {"$gt": after.key}},
            ]
        return await self._readable(query, order=[("updated_at", 1), ("_id", 1)], limit=limit)

    async def _readable(self, query: Document, **how: Any) -> list[Head]:
        return [*map(readable_head, await self._heads.find(query, _KEY_FIELDS, **how))]

    async def begin_copy(
        self, conversation: str, scope: Mapping[str, str], *, sweep_after: timedelta
    ) -> None:
        """Write a tombstone for a copy that has no head yet; it is swept after `sweep_after`. One command."""
        tombstone = _tombstone(conversation, head_id(scope), scope) | {"copying": True}
        await self._write(tombstone, sweep_after=sweep_after)

    async def begin_repair(self, head: Document, copy: str, *, sweep_after: timedelta) -> bool:
        """Register a copy that will replace the log of a head; False if the head has another log now. Two commands.

        The copy of an earlier repair that has not ended cannot replace the log any more.
        """
        tombstone = _tombstone(copy, head["_id"], head["scope"]) | {
            "copying": True,
            "of": head["conversation"],
        }
        await self._write(tombstone, sweep_after=sweep_after)
        query = {"_id": head["_id"], "conversation": head["conversation"]}
        return await self._heads.update(query, {"$set": {"copy": copy}})

    async def keep_copy(self, conversation: str, *, sweep_after: timedelta) -> bool:
        """Postpone the sweep of a copy that is being written; False if the sweep has begun. One command."""
        later = await self._times.setting({}, field="sweep_at", ahead=sweep_after)
        return await self._heads.update({"_id": tombstone_id(conversation), "copying": True}, later)

    async def end_copy(self, conversation: str) -> bool:
        """Delete the tombstone of a copy that has a head now; False if a sweep or an erasure has begun. One command."""
        return await self._heads.delete_one({"_id": tombstone_id(conversation), "copying": True})

    async def replace_log(
        self,
        head: Document,
        copy: str,
        *,
        entry: EntryRef,
        entries: int,
        at: datetime,
        sweep_after: timedelta,
    ) -> Document | None:
        """Replace the log of a head by its copy, which ends with `entry`; None if the head names another copy or log.

        Returns the tombstone of the log, with the number of entries that the log had. Four commands.
        """
        log = head["conversation"]
        tombstone = _tombstone(log, head["_id"], head["scope"]) | {"has_children": False}
        tombstone |= {"successor": copy, "entries": entries, "at": at}
        is_ours = {"_id": head["_id"], "conversation": log, "copy": copy}
        if await self._heads.find_one(is_ours, {"_id": 1}) is None:
            return None
        # Written before the head changes, so that a log without a head always has a tombstone, and again afterwards,
        # because a sweep may have deleted it in between.
        await self._write(tombstone, sweep_after=sweep_after)
        moved = {"$set": {"conversation": copy, "entry": list(entry)}, "$unset": {"copy": ""}}
        if not await self._heads.update(is_ours, moved):
            return None
        await self._write(tombstone, sweep_after=sweep_after)
        return tombstone

    async def current(self, tombstone: Document) -> str:
        """Return the current id of the conversation of a replaced log, "" if it was deleted. One command."""
        conversation = tombstone["conversation"]
        query = {"_id": tombstone["head"], "conversation": all_ids(conversation)}
        head = await self._heads.find_one(query, {"conversation": 1})
        return str(head["conversation"]) if head else ""

    async def replaced(self, key: str) -> list[str]:
        """Return the logs of a head that repairs replaced and that were not removed yet. One command."""
        return await self._ended(
            {"head": key, "sweep_at": {"$exists": True}, "successor": {"$gt": ""}}
        )

    async def end_replaced(
        self, conversation: str, *, sweep_after: timedelta, pruned: bool
    ) -> None:
        """Change the tombstone of a log that a repair replaced to that of a deletion. One command."""
        values = {"successor": "", "sweeps": 0, "pruned": pruned}
        ended = await self._times.setting(values, field="sweep_at", ahead=sweep_after)
        await self._heads.update({"_id": tombstone_id(conversation)}, ended)

    async def write_tombstone(self, head: Head, *, sweep_after: timedelta, pruned: bool) -> bool:
        """Replace a head by a tombstone, so that the scope has no conversation; False if it changed. Three commands.

        With `pruned`, the head is replaced only if it was not refreshed since it was read. A concurrent writer then
        starts a new conversation and writes its batch there. After `sweep_after`, no append can still be in flight.
        """
        query: dict[str, Any] = {"_id": head.key, "conversation": head.conversation}
        if pruned:
            query |= {"updated_at": head.updated_at, "written_at": head.written_at}
        tombstone = _tombstone(head.conversation, head.key, head.scope) | {
            "pruned": pruned,
            "copying": False,
        }
        # Written before the head is deleted, so that the tombstone is never missing; it has no effect before that.
        await self._write(tombstone, sweep_after=sweep_after)
        async with driver_errors():
            ended = await self._heads.driver_collection.find_one_and_delete(
                query, {"has_children": 1, "copy": 1}
            )
        if ended and (copy := ended.get("copy")):  # a repair is running, or was killed
            due = await self._times.setting({"copying": False}, field="sweep_at", ahead=timedelta())
            await self._heads.update({"_id": tombstone_id(copy)}, due)
        if ended:
            # Written again: a concurrent sweep may have deleted it, because it still found the head.
            tombstone["has_children"] = "has_children" in ended
            await self._write(tombstone, sweep_after=sweep_after)
        return bool(ended)

    async def _write(self, tombstone: Document, *, sweep_after: timedelta) -> None:
        key = {"_id": tombstone_id(tombstone["conversation"])}
        written = await self._times.setting(tombstone, field="sweep_at", ahead=sweep_after)
        await self._heads.update(key, written, upsert=True)

    async def may_write_again(self, conversation: str) -> bool:
        """Return True if a conversation or its root was pruned, or the log of either was replaced. One command.

        A writer then writes its batch to the scope's current conversation; after `delete` the batch is discarded.
        """
        ids = [tombstone_id(id_) for id_ in dict.fromkeys((conversation, root_id(conversation)))]
        found = await self._heads.find({"_id": {"$in": ids}}, {"pruned": 1, "successor": 1})
        return any(tombstone.get("pruned") or tombstone.get("successor") for tombstone in found)

    async def unswept(self, partial_scope: Mapping[str, str], *, copies: bool = True) -> list[str]:
        """Return deleted conversations with these scope values that were not swept yet, ordered by key. One command.

        If `copies` is false, copies that are being written and logs that a repair replaced are left out.
        """
        ended = {} if copies else {"copying": {"$ne": True}, "successor": ""}
        return await self._unswept(_marks_filter(partial_scope) | ended)

    async def unswept_lost(self) -> list[str]:
        """Return deleted conversations of unknown scope that were not swept yet, ordered by key. One command."""
        return await self._unswept({"marks": {}})

    async def _unswept(self, query: Document) -> list[str]:
        query = {"sweep_at": {"$exists": True}, "swept": {"$ne": True}, **query}
        return await self._ended(query, order=BY_KEY)

    async def due(self, partial_scope: Mapping[str, str], *, limit: int) -> list[str]:
        """Return deleted conversations with these scope values whose sweep is due. One command."""
        is_due = await self._times.is_past("sweep_at", margin=SWEEP_MARGIN)
        return await self._ended(is_due | _marks_filter(partial_scope), limit=limit)

    async def _ended(self, query: Document, **how: Any) -> list[str]:
        """Return the conversations of the tombstones that a filter matches."""
        found = await self._heads.find(query, {"_id": 1}, **how)
        return [str(tombstone["_id"]).partition(":")[2] for tombstone in found]

    async def take(self, conversation: str, *, time: timedelta) -> Document | None:
        """Claim a due sweep for `time`; None if another process holds it. One command."""
        query = {
            "_id": tombstone_id(conversation),
            **await self._times.is_past("sweep_at", margin=SWEEP_MARGIN),
        }
        update = await self._times.setting({"copying": False}, field="sweep_at", ahead=time)
        return await self._heads.find_and_update(query, update, after=True)

    async def is_ended(self, conversation: str, tombstone: Document | None = None) -> bool:
        """Return True if a conversation has a tombstone and no head; an interrupted deletion leaves both.

        A copy that is being written is abandoned.
        """
        if tombstone is None:
            key = {"_id": tombstone_id(conversation)}
            given_up = {"$set": {"copying": False}}
            tombstone = await self._heads.find_and_update(key, given_up)
        # the copy of a repair must not replace the log any more
        if tombstone and tombstone.get("of"):
            await self._heads.update(
                {"_id": tombstone["head"], "copy": conversation}, {"$unset": {"copy": ""}}
            )
        return await self._lacks_head(conversation, tombstone)

    async def has_ended(self, conversation: str) -> bool:
        """Return the result of `is_ended` without any change. At most two commands."""
        tombstone = await self._heads.find_one({"_id": tombstone_id(conversation)})
        return await self._lacks_head(conversation, tombstone)

    async def _lacks_head(self, conversation: str, tombstone: Document | None) -> bool:
        """Return True if a conversation has a tombstone and no head."""
        if tombstone is None:
            return False
        head = {"_id": tombstone.get("head"), "conversation": conversation}
        return await self._heads.find_one(head, {"_id": 1}) is None

    async def clear(self, conversation: str) -> None:
        """Delete documents that late writers added to a deleted conversation. One range delete in each collection."""
        for collection in self._others:
            await collection.delete_many(within(conversation))

    async def swept(
        self, tombstone: Document, *, again_after: timedelta | None, **values: Any
    ) -> None:
        """Record a claimed sweep, or delete the tombstone after the last one; no effect if it was written again."""
        taken = {"_id": tombstone["_id"], "sweep_at": tombstone["sweep_at"]}
        if again_after is None:
            await self._heads.delete_one(taken)
        else:
            await self._heads.update(
                taken, await self._times.setting(values, field="sweep_at", ahead=again_after)
            )


def _tombstone(conversation: str, key: str, scope: Mapping[str, str]) -> dict[str, Any]:
    return {
        "conversation": conversation,
        "head": key,
        "marks": {name: _mark(name, value) for name, value in scope.items()},
        "swept": False,
        "sweeps": 0,
        "successor": "",
        "has_children": True,  # until it is known
    }


def _marks_filter(partial_scope: Mapping[str, str]) -> dict[str, Any]:
    return {f"marks.{key}": _mark(key, value) for key, value in partial_scope.items()}


def _mark(key: str, value: object) -> str:
    return hashlib.sha256(f"{key}={value}".encode("utf-8", "surrogatepass")).hexdigest()

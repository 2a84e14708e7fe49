"""Query, count and delete a range of one conversation's keys.

Floor 2; the other modules of this room call it. Every collection except ``heads`` keeps a conversation in one range of
``_id``. Deletion goes in batches, as one command for millions of documents would exceed the command timeout.
"""

from __future__ import annotations

from typing import Any

from convstore.mongo.driver import driver_errors

__all__ = ["between", "count_range", "delete_range"]

_AT_ONCE = 5_000


def between(conversation: str, low: str, high: str) -> dict[str, Any]:
    """Return the filter for a key range; a sharded cluster routes it by conversation, a server searches by key."""
    return {"conversation": conversation, "_id": {"$gte": low, "$lt": high}}


async def delete_range(collection: Any, conversation: str, low: str, high: str) -> int:
    """Remove all documents of a range and return their number. Two commands for each 5,000 documents."""
    removed, is_last = 0, False
    while not is_last:
        async with driver_errors():
            found = collection.find(between(conversation, low, high), {"_id": 1}).sort("_id", 1).skip(_AT_ONCE)
            further = await found.limit(1).to_list(None)
        is_last = not further
        until = high if is_last else further[0]["_id"]
        async with driver_errors():
            removed += int((await collection.delete_many(between(conversation, low, until))).deleted_count)
    return removed


async def count_range(collection: Any, conversation: str, low: str, high: str) -> int:
    """Count the documents of a range. One command."""
    async with driver_errors():
        return int(await collection.count_documents(between(conversation, low, high)))

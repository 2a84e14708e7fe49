"""A range of keys of one conversation: counted, and removed piece by piece.

Layer 3. Every collection but ``heads`` keeps a conversation in one range of ``_id``. A removal of millions of documents
in one command would outlast the wait for its answer.
"""

from __future__ import annotations

from typing import Any

from convstore.mongo.driver import driver_errors

__all__ = ["between", "count_range", "delete_range"]

_AT_ONCE = 5_000


def between(conversation: str, low: str, high: str) -> dict[str, Any]:
    """A range of keys of one conversation, which a sharded cluster finds by name and one server by key."""
    return {"conversation": conversation, "_id": {"$gte": low, "$lt": high}}


async def delete_range(collection: Any, conversation: str, low: str, high: str) -> int:
    """Remove all documents of a range; gives their number. Two commands for each 5,000 documents."""
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
    """How many documents a range has. One command."""
    async with driver_errors():
        return int(await collection.count_documents(between(conversation, low, high)))

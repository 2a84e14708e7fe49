"""Create the collection search with its index."""

from __future__ import annotations

from convstore.mongo.migrator import Target


async def up(database: Target) -> None:
    """Create both; may be repeated."""
    await database.create("search")
    await database.index("search", "conversations", {"conversation": 1, "_id": 1})

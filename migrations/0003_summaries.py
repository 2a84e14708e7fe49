"""Create the collection summaries."""

from __future__ import annotations

from convstore.mongo.migrator import Target


async def up(database: Target) -> None:
    """Create the collection; may be repeated."""
    await database.create("summaries")

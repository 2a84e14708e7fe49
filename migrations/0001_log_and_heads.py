"""Create the collections log and heads with their indexes."""

from __future__ import annotations

from convstore.mongo.migrator import Target


async def up(database: Target) -> None:
    """Make sure of both collections; may be repeated."""
    await database.ensure("log", "heads")

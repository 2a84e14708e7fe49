"""Create the index that finds the conversations of sub-agents below another one."""

from __future__ import annotations

from convstore.mongo.migrator import Target


async def up(database: Target) -> None:
    """Make sure of the index; may be repeated."""
    await database.ensure("heads")

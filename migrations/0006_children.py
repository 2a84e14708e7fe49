"""Create the index that finds the conversations of sub-agents below another one."""

from __future__ import annotations

from convstore.mongo.migrator import Target


async def up(database: Target) -> None:
    """Create the index; may be repeated."""
    await database.index("heads", "children", {"parent": 1, "_id": 1}, present="parent")

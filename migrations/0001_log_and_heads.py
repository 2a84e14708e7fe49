"""Create the collections log and heads with their indexes."""

from __future__ import annotations

from convstore.mongo.migrator import Target


async def up(database: Target) -> None:
    """Create both collections and the indexes that do not depend on scope keys; may be repeated."""
    await database.create("log", clustered=True)
    message, source = {"conversation": 1, "messages.id": 1}, {"conversation": 1, "kept_source_ids": 1}
    await database.index("log", "message_ids", message, unique=True, present="messages.id")
    await database.index("log", "kept_source_ids", source, unique=True, present="kept_source_ids")
    await database.index("log", "lookup", {"conversation": 1, "lookup": 1, "_id": 1}, present="lookup")
    await database.index("log", "ordinals", {"conversation": 1, "first": 1, "_id": 1}, present="first")
    await database.index("log", "results", {"conversation": 1, "results_at": 1}, present="results_at")
    await database.index("log", "states", {"conversation": 1}, present="revision")
    await database.create("heads")
    await database.index("heads", "newest", {"updated_at": -1, "_id": -1}, present="updated_at")
    await database.index("heads", "conversation", {"conversation": 1})
    await database.index("heads", "due", {"sweep_at": 1}, present="sweep_at")

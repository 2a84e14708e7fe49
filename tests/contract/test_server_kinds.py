"""The emulations of servers are in effect, with both drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.errors import OperationFailure
from server_kinds import refusing, swapped_bounds

_BOUNDS = {"_id": {"$gte": 1, "$lt": 3}}
_DESCENDING = [("_id", -1)]


@pytest.fixture(params=["pymongo", "motor"])
async def log(
    request: pytest.FixtureRequest, own_database: Any, server_uri: str
) -> AsyncIterator[Any]:
    """A collection with the keys 1 to 3."""
    await own_database["log"].insert_many([{"_id": key} for key in (1, 2, 3)])
    if request.param == "pymongo":
        yield own_database["log"]
        return
    client: Any = AsyncIOMotorClient(server_uri)
    yield client[own_database.name]["log"]
    client.close()


async def test_bounds_of_descending_scans_are_swapped(log: Any) -> None:
    """The upper bound is included and the lower one excluded, at any depth; ascending scans stay as they are."""

    async def keys(query: Any, order: Any) -> tuple[list[int], list[int]]:
        found = await log.find(query).sort(order).to_list(None)
        stages = [{"$match": query}, {"$sort": dict(order)}]
        joined = log.aggregate(stages)
        if not hasattr(joined, "to_list"):
            joined = await joined
        return [row["_id"] for row in found], [row["_id"] for row in await joined.to_list(None)]

    with swapped_bounds():
        assert await keys(_BOUNDS, [("_id", 1)]) == ([1, 2], [1, 2])
        for query in (_BOUNDS, {"$or": [{"_id": 9}, {"$and": [_BOUNDS]}]}):
            assert await keys(query, _DESCENDING) == ([3, 2], [3, 2])
    assert await keys(_BOUNDS, _DESCENDING) == ([2, 1], [2, 1])


async def test_what_amazon_documentdb_lacks_is_refused(log: Any) -> None:
    """An update by a pipeline and a filter with `$$NOW`; other commands work."""
    with refusing():
        with pytest.raises(OperationFailure, match="'u' field must be a document"):
            await log.update_one({"_id": 1}, [{"$set": {"at": "$$NOW"}}])
        with pytest.raises(OperationFailure, match="undefined variable: NOW"):
            await log.find_one({"$expr": {"$lt": ["$at", "$$NOW"]}})
        assert await log.find_one({"_id": 1}) == {"_id": 1}

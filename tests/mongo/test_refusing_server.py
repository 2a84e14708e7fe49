"""The server that refuses commands in tests answers them as it says, and passes everything else on."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure
from refusing_server import RefusingServer, documentdb, forbidding, without_retries


async def test_what_the_rules_name_is_refused_and_nothing_else(
    server_uri: str, own_database: Any
) -> None:
    """By the code and the text of the rule; writes, reads and cursors of other commands work as on the real one."""
    rules = documentdb, forbidding("distinct"), without_retries
    with RefusingServer(server_uri, *rules) as server:
        async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
            letters = client[own_database.name]["letters"]
            await letters.insert_many(
                [{"_id": number, "text": "a" * 2_000} for number in range(50)]
            )
            assert len(await letters.find({}, batch_size=7).to_list(None)) == 50
            past = {"$expr": {"$lt": ["$at", "$$NOW"]}}
            join = {"$lookup": {"from": "letters", "let": {"x": 1}, "pipeline": [], "as": "found"}}
            size = {"$group": {"_id": None, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}}
            for code, refused in (
                (9, lambda: letters.update_one({}, [{"$set": {"x": 1}}])),
                (9, lambda: letters.find_one_and_update({}, [{"$set": {"x": 1}}])),
                (17276, lambda: letters.find_one(past)),
                (304, lambda: letters.aggregate([join])),
                (304, lambda: letters.aggregate([size])),
                (
                    303,
                    lambda: letters.database.create_collection(
                        "c", clusteredIndex={"key": {"_id": 1}}
                    ),
                ),
                (13, lambda: letters.distinct("text")),
            ):
                with pytest.raises(OperationFailure) as caught:
                    await refused()
                assert caught.value.code == code
            assert (
                sum(server.refused.values()),
                server.passed["insert"],
                server.passed["getMore"],
            ) == (7, 1, 7)
    with RefusingServer(server_uri, without_retries, options="retryWrites=true") as server:
        async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
            with pytest.raises(OperationFailure, match="Retryable writes"):
                await client[own_database.name]["letters"].insert_one({})

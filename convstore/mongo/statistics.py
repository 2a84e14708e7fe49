"""Measure the documents of the collections by kind and day, and the sizes of summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from convstore.exceptions import StoreError
from convstore.mongo.bson_values import reading, stored_number, stored_text
from convstore.mongo.collection import BY_KEY, Collection, Document
from convstore.mongo.driver import DOCUMENT_SIZE, Driver, bson_size, is_refusal
from convstore.mongo.keys import LOG, family

_DAY = "%Y-%m-%d"
_SUMMARY_FIELDS = {"conversation": 1, "summary.sizes": 1}
GROUP_BY_DAY = {
    "_id": {
        "day": {"$dateToString": {"date": "$at", "format": _DAY}},
        "is_payload": {"$ne": [{"$type": "$data"}, "missing"]},
    },
    "messages": {"$sum": "$count"},
    "size": {"$sum": {"$bsonSize": "$$ROOT"}},
}


@dataclass(frozen=True, slots=True)
class DailySize:
    """The size of the documents of one kind that were written on one day.

    Attributes:
        kind: "entries", "payloads", or the name of another collection.
        day: Such as "2026-11-22"; "" for documents without a date.
        messages: Number of messages in them.
        size: Their size in bytes, as BSON.
    """

    kind: str
    day: str
    messages: int
    size: int


class Statistics:
    """Commands that measure all documents, or those of some conversations."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def summaries(self, conversations: Sequence[str] | None) -> dict[str, tuple[int, int]]:
        """Return by conversation the size of the messages that its summary covers, and the summary's. One command."""
        wanted = {"$gte": ""} if conversations is None else {"$in": list(conversations)}
        # The index of states begins with the conversation, so the server uses it only if the filter has that field.
        query: dict[str, Any] = {"conversation": wanted, "revision": {"$exists": True}}
        pipeline: list[Document] = [{"$match": query}, {"$project": _SUMMARY_FIELDS}]
        documents = await Collection(self._driver, LOG).aggregate(pipeline, is_long=True)
        return dict(_summary_sizes(document) for document in documents if document.get("summary"))

    async def amounts(self, collection: str, conversation: str | None) -> list[DailySize]:
        """Measure the documents of a conversation and its children in a collection, or all of it. One command.

        The server reads only the documents that it measures. The filter is one key range, because an ``$or`` of ranges
        scans a clustered collection.
        """
        query: dict[str, Any] = {}
        if conversation is not None:
            query = {"conversation": family(conversation), "_id": family(conversation)}
        if self._driver.name == "memory" or DOCUMENT_SIZE in self._driver.refused:
            return await self._read(collection, query)
        pipeline = [{"$match": query}, {"$group": GROUP_BY_DAY}]
        try:
            rows = await Collection(self._driver, collection).aggregate(pipeline, is_long=True)
        except StoreError as error:
            if not is_refusal(error):
                raise
            amounts = await self._read(collection, query)
            self._driver.refused.add(DOCUMENT_SIZE)
            return amounts
        return [
            DailySize(
                _kind(collection, **row["_id"]),
                row["_id"]["day"] or "",
                row["messages"],
                row["size"],
            )
            for row in rows
        ]

    async def _read(self, collection: str, query: Document) -> list[DailySize]:
        """Read and measure documents, for servers that refuse ``$bsonSize``. One command or more."""
        sums = Counter[tuple[str, str, str]]()
        documents = Collection(self._driver, collection, raw=True).each(query, order=BY_KEY)
        async for document in documents:
            at = document.get("at")
            day = at.strftime(_DAY) if isinstance(at, datetime) else ""
            kind = _kind(collection, is_payload="data" in document)
            sums[kind, day, "messages"] += document.get("count", 0)
            sums[kind, day, "size"] += bson_size(document)
        kinds = dict.fromkeys((kind, day) for kind, day, _ in sums)
        return [
            DailySize(*found, sums[*found, "messages"], sums[*found, "size"]) for found in kinds
        ]


def _summary_sizes(document: Document) -> tuple[str, tuple[int, int]]:
    with reading(document):
        covered, own = map(stored_number, document["summary"]["sizes"])
        return stored_text(document["conversation"]), (covered, own)


def _kind(collection: str, *, is_payload: bool, **_: Any) -> str:
    if is_payload:
        return "payloads"
    return "entries" if collection == LOG else collection

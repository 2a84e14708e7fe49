"""Read the totals of heads, and measure the documents of the collections by kind and day.

Floor 2; `admin.statistics` calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import bson

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.bson_values import stored_number, stored_text, utc
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.keys import HEADS, LOG, conversation_range

__all__ = ["Amount", "HeadTotals", "Statistics"]

_BATCH = 1_000
_MAXIMUM_DAYS = 100_000
_DAY = "%Y-%m-%d"
_HEAD_FIELDS = (
    "conversation",
    "created_at",
    *(f"totals.{name}" for name in ("active", "turns", "tokens", "view_tokens")),
)
_SUMMARY_FIELDS = {"summary.totals": 1, "summary.tokens": 1}


@dataclass(frozen=True, slots=True)
class HeadTotals:
    """The totals of one head.

    Attributes:
        conversation: The id that the log uses.
        created_at: When its first message was appended.
        messages: Active messages.
        turns: Human messages.
        tokens: Size of all messages in full.
        view_tokens: Size of all messages in the default view of finished turns.
    """

    conversation: str
    created_at: datetime
    messages: int
    turns: int
    tokens: int
    view_tokens: int


@dataclass(frozen=True, slots=True)
class Amount:
    """Documents of one kind, "entries", "payloads", or those of another collection, that were written on one day.

    Attributes:
        kind: The kind.
        day: Such as "2026-11-22"; "" for documents without a date.
        messages: The messages in them.
        size: Their size in bytes, as BSON.
    """

    kind: str
    day: str
    messages: int
    size: int


class Statistics:
    """Commands that read all documents, or those of some conversations, without changing any."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._driver, self._prefix = driver, prefix

    async def heads(self, partial_scope: Mapping[str, str]) -> AsyncIterator[HeadTotals]:
        """Iterate over the totals of the heads with these scope values, without tombstones. One command a thousand.

        Raises:
            CorruptDocumentError: A head is damaged.
        """
        query: dict[str, Any] = {f"scope.{key}": value for key, value in partial_scope.items()}
        query["updated_at"] = {"$exists": True}
        heads, after = self._driver.collection(self._prefix + HEADS), ""
        while True:
            async with driver_errors():
                found = heads.find(query | {"_id": {"$gt": after}}, dict.fromkeys(_HEAD_FIELDS, 1))
                documents = await found.sort("_id", 1).limit(_BATCH).batch_size(_BATCH + 1).to_list(None)
            for document in documents:
                yield _head_totals(document)
            if len(documents) < _BATCH:
                return
            after = documents[-1]["_id"]

    async def summaries(self, conversations: Sequence[str] | None) -> list[tuple[int, int]]:
        """Return for each current summary the size of the messages that it covers, and its own. One command.

        Raises:
            CorruptDocumentError: A state is damaged.
        """
        query: dict[str, Any] = {"revision": {"$exists": True}}
        if conversations is not None:
            query["conversation"] = {"$in": list(conversations)}
        async with driver_errors(seconds=None):
            found = self._driver.collection(self._prefix + LOG).find(query, _SUMMARY_FIELDS)
            documents = await found.batch_size(_BATCH).to_list(None)
        return [_summary_sizes(document) for document in documents if document.get("summary")]

    async def amounts(self, collection: str, conversations: Sequence[str] | None) -> list[Amount]:
        """Measure the documents of a collection, of all conversations or of some. One command.

        The server reads all these documents and adds them up.
        """
        query: dict[str, Any] = {}
        if conversations is not None:
            ranges = [conversation_range(conversation) for conversation in conversations]
            query["$or"] = [{"_id": {"$gte": low, "$lt": high}} for low, high in ranges]
        if self._driver.name == "memory":  # it does not measure documents
            async with driver_errors():
                documents = await self._driver.collection(self._prefix + collection).find(query).to_list(None)
            return [_amount(collection, document) for document in documents]
        pipeline = [{"$match": query}, {"$group": _GROUP}]
        command = {"aggregate": self._prefix + collection, "pipeline": pipeline, "cursor": {"batchSize": _MAXIMUM_DAYS}}
        async with driver_errors(seconds=None):
            reply = await self._driver.database.command(command)
        return [
            Amount(_kind(collection, **one["_id"]), one["_id"]["day"] or "", *(one[name] for name in _SUMS))
            for one in reply["cursor"]["firstBatch"]
        ]


_SUMS = {
    "messages": {"$sum": "$count"},
    "size": {"$sum": {"$bsonSize": "$$ROOT"}},
}
_GROUP = {
    "_id": {
        "day": {"$dateToString": {"date": "$at", "format": _DAY}},
        "is_payload": {"$ne": [{"$type": "$data"}, "missing"]},
    },
    **_SUMS,
}


def _summary_sizes(document: Mapping[str, Any]) -> tuple[int, int]:
    try:
        summary = document["summary"]
        return stored_number(summary["totals"][2]), stored_number(summary["tokens"][1])
    except (KeyError, TypeError, IndexError) as error:
        raise CorruptDocumentError(str(document.get("_id")), repr(error)) from error


def _amount(collection: str, document: Mapping[str, Any]) -> Amount:
    at = document.get("at")
    day = at.strftime(_DAY) if isinstance(at, datetime) else ""
    kind = _kind(collection, is_payload="data" in document)
    return Amount(kind, day, document.get("count", 0), len(bson.encode(document)))


def _kind(collection: str, *, is_payload: bool, **_: Any) -> str:
    return "payloads" if is_payload else "entries" if collection == LOG else collection


def _head_totals(document: Mapping[str, Any]) -> HeadTotals:
    try:
        totals = document["totals"]
        return HeadTotals(
            conversation=stored_text(document["conversation"]),
            created_at=utc(document["created_at"]),
            messages=stored_number(totals["active"]),
            turns=stored_number(totals["turns"]),
            tokens=stored_number(totals["tokens"]),
            view_tokens=stored_number(totals["view_tokens"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CorruptDocumentError(str(document.get("_id")), repr(error), collection=HEADS) from error

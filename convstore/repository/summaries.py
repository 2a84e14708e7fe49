"""The ``summaries`` collection: every summary that was ever made.

Layer 3. A document is written before the head names it; one that no head ever named is passed over.
"""

from __future__ import annotations

from pymongo.errors import DuplicateKeyError

from convstore.driver import Driver, driver_errors
from convstore.schema import SUMMARIES, conversation_range, summary_document, summary_from, summary_id
from convstore.summaries import SummaryRecord

__all__ = ["Summaries"]


class Summaries:
    """Commands on the ``summaries`` collection."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._summaries = driver.collection(prefix + SUMMARIES)

    async def insert(self, conversation: str, record: SummaryRecord) -> None:
        """Keep a summary; again is as good as once. One command."""
        document = summary_document(record) | {
            "_id": summary_id(conversation, record.token),
            "conversation": conversation,
            "folded": [list(result) for result in record.folded],
        }
        async with driver_errors():
            try:
                await self._summaries.insert_one(document)
            except DuplicateKeyError:
                return

    async def all(self, conversation: str) -> dict[str, SummaryRecord]:
        """All summaries of a conversation by token, those that were never committed too. One command."""
        low, high = conversation_range(conversation)
        query = {"conversation": conversation, "_id": {"$gte": low, "$lt": high}}
        async with driver_errors():
            documents = await self._summaries.find(query).batch_size(1_000).to_list(None)
        return {record.token: record for record in map(summary_from, documents)}

    async def delete(self, conversation: str) -> None:
        """Remove all summaries of a conversation. One command."""
        low, high = conversation_range(conversation)
        async with driver_errors():
            await self._summaries.delete_many({"conversation": conversation, "_id": {"$gte": low, "$lt": high}})

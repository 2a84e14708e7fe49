"""Read and write the ``summaries`` collection: every summary that was ever made.

Floor 2; the `compaction` room calls it. A document is written before the state names it; one that no state ever named
is ignored.
"""

from __future__ import annotations

from pymongo.errors import DuplicateKeyError

from convstore.log.summary import SummaryRecord
from convstore.mongo.documents import summary_document, summary_from
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.key_ranges import count_range, delete_range
from convstore.mongo.keys import SUMMARIES, conversation_range, summary_id

__all__ = ["Summaries"]


class Summaries:
    """Commands on the ``summaries`` collection."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._summaries = driver.collection(prefix + SUMMARIES)

    async def insert(self, conversation: str, record: SummaryRecord) -> None:
        """Insert a summary; repeating it has no effect. One command."""
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

    async def find(self, conversation: str, token: str) -> SummaryRecord | None:
        """Return a summary, or None. One command."""
        query = {"_id": summary_id(conversation, token), "conversation": conversation}
        async with driver_errors():
            document = await self._summaries.find_one(query)
        return summary_from(document) if document else None

    async def all(self, conversation: str) -> dict[str, SummaryRecord]:
        """Return all summaries of a conversation by token, including uncommitted ones. One command."""
        low, high = conversation_range(conversation)
        query = {"conversation": conversation, "_id": {"$gte": low, "$lt": high}}
        async with driver_errors():
            documents = await self._summaries.find(query).batch_size(1_000).to_list(None)
        return {record.token: record for record in map(summary_from, documents)}

    async def drop(self, conversation: str, token: str) -> None:
        """Remove a summary that no state names. One command."""
        async with driver_errors():
            await self._summaries.delete_one({"_id": summary_id(conversation, token), "conversation": conversation})

    async def delete(self, conversation: str) -> int:
        """Remove all summaries of a conversation and return the number of documents."""
        return await delete_range(self._summaries, conversation, *conversation_range(conversation))

    async def count(self, conversation: str) -> int:
        """Count the summaries of a conversation, including uncommitted ones. One command."""
        return await count_range(self._summaries, conversation, *conversation_range(conversation))

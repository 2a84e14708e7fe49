"""Read and write the ``summaries`` collection: every summary that was ever made.

A document is written before the state names it; one that no state ever named is ignored.
"""

from __future__ import annotations

from convstore.log.summary import SummaryRecord
from convstore.mongo.collection import Collection, within
from convstore.mongo.driver import Driver
from convstore.mongo.keys import SUMMARIES, summary_id
from convstore.mongo.summary_documents import summary_document, summary_from
from convstore.mongo.versions import is_newer


class Summaries:
    """Commands on the ``summaries`` collection."""

    def __init__(self, driver: Driver) -> None:
        self._summaries = Collection(driver, SUMMARIES)

    async def insert(self, conversation: str, record: SummaryRecord) -> None:
        """Insert a summary; repeating it has no effect. One command."""
        document = summary_document(record) | {
            "_id": summary_id(conversation, record.token),
            "conversation": conversation,
            "folded": [list(result) for result in record.folded],
            "digest": record.whole_digest,
        }
        await self._summaries.insert(document)

    async def find(self, conversation: str, token: str) -> SummaryRecord | None:
        """Return a summary, or None. One command."""
        query = {"_id": summary_id(conversation, token), "conversation": conversation}
        document = await self._summaries.find_one(query)
        return summary_from(document) if document and not is_newer(document, "summary") else None

    async def all(self, conversation: str) -> dict[str, SummaryRecord]:
        """Return all summaries of a conversation by token, including uncommitted ones. One command."""
        documents = await self._summaries.find(within(conversation))
        records = (
            summary_from(document) for document in documents if not is_newer(document, "summary")
        )
        return {record.token: record for record in records}

    async def drop(self, conversation: str, token: str) -> None:
        """Remove a summary that no state names. One command."""
        await self._summaries.delete_one(
            {"_id": summary_id(conversation, token), "conversation": conversation}
        )

"""Convert summaries to documents and back, and read and write ``summaries``: every summary that was ever written.

A document has a summary as JSON, with its digest and the few numbers that queries need. A reader computes the document
from the JSON again and compares it. A document is written before the state refers to it; if no state does, the summary
is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.summary import SummaryRecord
from convstore.mongo.bson_values import from_stored, sealed, to_stored, unsealed, utc, wrong_with
from convstore.mongo.collection import Collection, within
from convstore.mongo.driver import Driver
from convstore.mongo.keys import LOG, SUMMARIES, summary_id
from convstore.mongo.versions import is_newer, stamped


def summary_document(record: SummaryRecord) -> dict[str, Any]:
    """Return a summary in the form that states store; its own document has more fields."""
    document = {
        "token": record.token,
        "entry": record.entry,
        "last": record.last,
        "sizes": [record.view_tokens, record.tokens_out],
        "digest": record.digest,
        "text": to_stored(record.written),
    }
    return stamped(document, "summary")


def own_document(conversation: str, record: SummaryRecord) -> dict[str, Any]:
    """Return the own document of a summary in a conversation."""
    return summary_document(record) | {
        "_id": summary_id(conversation, record.token),
        "conversation": conversation,
        "version": record.version,
        "at": record.at,
        "folded": sealed(json.dumps(record.folded), record.token),
    }


def summary_from(document: Mapping[str, Any], *, state: str = "") -> SummaryRecord:
    """Return the summary in a document, or the copy in the state with the key `state`.

    Raises:
        CorruptDocumentError: The document is damaged.
    """
    place = (state, LOG) if state else (str(document.get("_id")), SUMMARIES)
    try:
        written = from_stored(document["text"])
        if state:
            record = SummaryRecord.read(written, folded=(), place=place)
            is_same = document == summary_document(record)
        else:
            pairs = json.loads(unsealed(document["folded"], document["token"]))
            folded = tuple([(first, other) for first, other in pairs])
            record = SummaryRecord.read(written, folded=folded, place=place)
            expected = own_document(document["conversation"], record)
            is_same = {**document, "at": utc(document["at"])} == expected
        if not is_same:
            raise ValueError("its key, its digest or its numbers do not match its content")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        key, collection = place
        raise CorruptDocumentError(
            key, f"a summary: {wrong_with(error)}", collection=collection
        ) from error
    return record


class Summaries:
    """Commands on the ``summaries`` collection."""

    def __init__(self, driver: Driver) -> None:
        self._summaries = Collection(driver, SUMMARIES)

    async def insert(self, conversation: str, record: SummaryRecord) -> None:
        """Insert a summary; repeating it has no effect. One command."""
        await self._summaries.insert(own_document(conversation, record))

    async def find(self, conversation: str, token: str) -> SummaryRecord | None:
        """Return a summary, if it exists. One command."""
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
        """Remove a summary that was not committed. One command."""
        await self._summaries.delete_one(
            {"_id": summary_id(conversation, token), "conversation": conversation}
        )

"""Convert summaries to documents and back, and read and write ``summaries``: every summary that was ever made.

A document is written before the state names it; one that no state ever named is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.summary import SummaryRecord
from convstore.mongo.bson_values import (
    from_stored,
    stored_list,
    stored_number,
    stored_numbers,
    stored_text,
    to_stored,
    utc,
    wrong_with,
)
from convstore.mongo.collection import Collection, within
from convstore.mongo.driver import Driver
from convstore.mongo.keys import LOG, SUMMARIES, summary_id
from convstore.mongo.versions import is_newer, stamped

_SUMMARY = {
    "range": ("first", "last", "entry", "seen"),
    "totals": ("active", "turns", "view_tokens"),
    "tokens": ("tokens_in", "tokens_out"),
}


def summary_document(record: SummaryRecord) -> dict[str, Any]:
    """Return a summary in the form that states store; its own document has more fields."""
    document = {
        "token": record.token,
        "version": record.version,
        "parent": record.parent,
        "previous": record.previous,
        **{field: [getattr(record, name) for name in names] for field, names in _SUMMARY.items()},
        "counter": to_stored(record.counter),
        "rewound": [list(gap) for gap in record.gaps],
        "text": to_stored(record.text),
        "model": to_stored(record.model),
        "at": record.at,
        "results": [list(result) for result in record.results],
        "messages": [to_stored(body) for body in record.messages],
        "digest": record.digest,
    } | ({"reason": record.reason} if record.reason else {})
    return stamped(document, "summary")


def summary_from(document: Mapping[str, Any], *, state: str = "") -> SummaryRecord:
    """Return the summary that a document holds, or the copy in the state with the key `state`.

    A CorruptDocumentError is raised if it is damaged.
    """
    key, collection = (state, LOG) if state else (str(document.get("_id")), SUMMARIES)
    try:
        if not state and key != summary_id(
            stored_text(document["conversation"]), stored_text(document["token"])
        ):
            raise ValueError("the key does not match the conversation and the token")
        numbers = (
            zip(names, stored_numbers(document[field]), strict=True)
            for field, names in _SUMMARY.items()
        )
        record = SummaryRecord(
            token=stored_text(document["token"]),
            version=stored_number(document["version"]),
            parent=stored_text(document["parent"]),
            previous=stored_text(document["previous"]),
            counter=from_stored(document["counter"]),
            gaps=tuple(
                (stored_number(low), stored_number(high))
                for low, high in stored_list(document["rewound"])
            ),
            text=from_stored(document["text"]),
            model=from_stored(document["model"]),
            **dict(chain.from_iterable(numbers)),
            at=utc(document["at"]),
            results=_pairs(document["results"]),
            folded=_pairs(document.get("folded", ())),
            messages=tuple(from_stored(body) for body in stored_list(document["messages"])),
            reason=stored_text(document.get("reason", "")),
            place=(key, collection),
        )
        if document["digest"] != (record.digest if state else record.whole_digest):
            raise ValueError("the digest does not match the content")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDocumentError(
            key, f"a summary: {wrong_with(error)}", collection=collection
        ) from error
    return record


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((stored_text(first), stored_text(other)) for first, other in stored_list(value))


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

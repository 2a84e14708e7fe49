"""Copy the documents of a conversation under another id, up to an entry.

A copy cannot be found before it has a head. Until then it has a tombstone, so that the sweep of deleted conversations
removes a copy that was abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import aclosing
from datetime import datetime
from typing import Any

from pymongo.errors import BulkWriteError

from convstore.exceptions import BrokenLogError
from convstore.log.entry import Entry, Totals
from convstore.log.facts.branch import BRANCH
from convstore.mongo.bson_values import sealed, unsealed
from convstore.mongo.collection import BY_KEY, NEWEST_FIRST, Collection, Document, within
from convstore.mongo.documents import NO_MESSAGES, entry_document, entry_from
from convstore.mongo.driver import Driver, driver_errors, taken_keys
from convstore.mongo.facts import field_of
from convstore.mongo.keys import (
    ANNOTATIONS,
    LOG,
    annotation_id,
    application_state_id,
    chunk_id,
    entry_range,
)
from convstore.mongo.payloads import payloads_in

_MOST_DOCUMENTS = 1_000
_MOST_BYTES = 16_000_000


class Copies:
    """Commands that copy documents of one conversation: two for each thousand documents of a kind, or 16 MB."""

    def __init__(self, driver: Driver) -> None:
        self._log = Collection(driver, LOG)
        self._raw_log = Collection(driver, LOG, raw=True)
        self._annotations = Collection(driver, ANNOTATIONS)

    async def last_shown(self, conversation: str) -> Totals:
        """Return the totals of the last entry that does not belong to a hidden variant, or zeros. One command."""
        query = {
            **within(conversation, *entry_range(conversation)),
            field_of(BRANCH): {"$exists": False},
        }
        found = await self._log.find(query, NO_MESSAGES, order=NEWEST_FIRST, limit=1)
        return entry_from(found[0]).totals if found else Totals()

    async def entries(self, source: str, target: str, *, through: int) -> None:
        """Copy the entries up to a number with their chunks.

        Raises:
            BrokenLogError: An entry is missing.
        """
        keys: set[str] = set()

        def note_chunks(document: Document) -> dict[str, Any]:
            keys.update(_chunks_of(source, document))
            return {}

        query = within(source, *entry_range(source, before=through + 1))
        if (copied := await _copy(self._raw_log, query, target, note_chunks)) < through:
            raise BrokenLogError(
                source, f"{through - copied} of the first {through} entries are missing"
            )
        await self._chunks(source, target, keys)

    async def chunks(self, source: str, target: str, entries: Iterable[Entry]) -> None:
        """Copy the chunks of some entries; chunks that were copied before are kept."""
        documents = (entry_document(source, entry) for entry in entries)
        keys = {key for document in documents for key in _chunks_of(source, document)}
        await self._chunks(source, target, keys)

    async def _chunks(self, source: str, target: str, keys: Set[str]) -> None:
        if keys:  # the range has few other chunks, because tokens begin with the time
            chunks = within(source, min(keys), f"{max(keys)}$")
            await _copy(
                self._raw_log, chunks, target, lambda chunk: {} if chunk["_id"] in keys else None
            )

    async def annotations(self, source: str, target: str, *, through: int) -> None:
        """Copy the annotations of the messages up to an ordinal."""
        keys = annotation_id(source, 0), annotation_id(source, through + 1)
        await _copy(
            self._annotations,
            within(source, *keys),
            target,
            lambda document: _moved_annotation(document, target, document["ordinal"]),
        )

    async def has_annotations(self, source: str, *, since: datetime) -> bool:
        """Return True if a conversation has annotations, or a state of the application, since a date. One command."""
        query = within(source) | {"at": {"$gte": since}}
        return await self._annotations.find_one(query, {"_id": 1}) is not None

    async def move_annotations(
        self, source: str, target: str, ordinals: Mapping[int, int], *, since: datetime
    ) -> None:
        """Copy the annotations since a date of messages; `ordinals` has the ordinal in the copy for each ordinal.

        The state of the application is copied, too. If the copy has a document already, the later one is kept. Two
        commands for each document.
        """
        query = within(source) | {"at": {"$gte": since}}
        async with aclosing(self._annotations.each(query, order=BY_KEY)) as documents:
            async for document in documents:
                ordinal = ordinals.get(document.get("ordinal", 0), 0)
                if not ordinal and document["_id"] != application_state_id(source):
                    continue
                moved = {
                    **document,
                    "conversation": target,
                    **_moved_annotation(document, target, ordinal),
                }
                if not await self._annotations.insert(moved):
                    older = {
                        "_id": moved["_id"],
                        "conversation": target,
                        "at": {"$lt": moved["at"]},
                    }
                    await self._annotations.replace(older, moved)


def _moved_annotation(document: Document, target: str, ordinal: int) -> dict[str, Any]:
    """Return the changed fields of annotations or of the application's state, with checksums for the new key."""
    if "state" in document:
        key = application_state_id(target)
        revision = str(document["revision"])
        text = unsealed(document["state"], document["_id"], revision)
        return {"_id": key, "state": sealed(text, key, revision)}
    key = annotation_id(target, ordinal)
    values = {
        name: sealed(unsealed(text, document["_id"], name), key, name)
        for name, text in document.get("values", {}).items()
    }
    return {"_id": key, "ordinal": ordinal, "values": values}


def _chunks_of(source: str, entry: Document) -> Iterator[str]:
    """Return the keys of the chunks that an entry refers to."""
    refs = [message["payload"] for message in entry.get("messages", ()) if "payload" in message]
    for ref in (*refs, *payloads_in(entry.get("facts"))):
        for index in range(len(ref["ends"])):
            yield chunk_id(source, ref["token"], ref["chunk"] + index)


async def _copy(
    collection: Collection,
    query: Document,
    target: str,
    changes: Callable[[Document], dict[str, Any] | None],
) -> int:
    """Copy documents with `changes`, which returns None to skip one; return the number, including earlier copies."""
    batch: list[dict[str, Any]] = []
    size = 0
    copied = 0

    async def insert() -> None:
        async with driver_errors():
            try:
                await collection.driver_collection.insert_many(batch, ordered=False)
            except BulkWriteError as error:
                taken_keys(error)

    async with aclosing(collection.each(query, order=BY_KEY)) as documents:
        async for document in documents:
            key = f"{target}{str(document['_id'])[len(document['conversation']) :]}"
            if (changed := changes(document)) is not None:
                batch.append({**document, "_id": key, "conversation": target, **changed})
                copied += 1
                size += len(getattr(document, "raw", b""))
            if len(batch) == _MOST_DOCUMENTS or size > _MOST_BYTES:
                await insert()
                batch = []
                size = 0
    if batch:
        await insert()
    return copied

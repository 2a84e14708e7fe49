"""Read and write the ``log`` collection: entries and payload chunks.

An entry is inserted at the next number. A duplicate key means that another writer took the number, which is a result
(`SlotTaken`), not an error. All reads use ranges of ``_id`` or an index, because on a clustered collection any other
filter on ``_id`` scans the whole collection.

The module is long because it has all commands on entries and chunks.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, EntryMessage, EntrySource, PayloadRef, Totals
from convstore.log.facts.claim import CLAIM
from convstore.log.facts.items import key_of_item, key_of_items_after
from convstore.log.totals import SHOWN_ENTRIES
from convstore.messages.compression import Chunk
from convstore.messages.encoding import DIGEST_BYTES
from convstore.messages.sizes import packed
from convstore.mongo.bson_values import from_stored, reading, utc
from convstore.mongo.collection import BY_KEY, NEWEST_FIRST, Collection, Document, within
from convstore.mongo.documents import (
    ENTRY_BYTES,
    LEAN,
    NO_MESSAGES,
    entry_bytes,
    entry_from,
    messages_of_turn,
)
from convstore.mongo.driver import Driver, decoded, driver_errors, taken_keys
from convstore.mongo.facts import LEFT_OUT, fact_in, needed_for
from convstore.mongo.keys import (
    LOG,
    chunk_id,
    chunk_range,
    entry_id,
    entry_range,
    family,
    is_twin,
    log_ranges,
    root_id,
)
from convstore.mongo.parallel import in_parallel, together
from convstore.mongo.payloads import chunks_of, decompressed, piece_of
from convstore.mongo.places import Places
from convstore.mongo.source_columns import shown_in, source_filter, taken_ids
from convstore.mongo.state_documents import new_state
from convstore.sources.stub import RETRIEVAL_TOOL

LOG_END = 2**53
"""An ordinal after the last one of any log."""
_COMMAND_BYTES = 32_000_000
_LATEST_FIRST = (("first", -1), ("_id", -1))
_MOST_OF_CALLS = 200
_MAX_BEGUN = 20
_IN_MEMORY = threading.Lock()  # mongomock inserts at once, but two threads might take one key
_MANY = 150
_NEAR = 100
VIEW_FIELDS = {**LEAN, "messages.stamp": 0, "messages.content_digest": 0}
"""Projection that drops the fields of an entry that views do not use."""
SEARCHED = {"lookup": 0, "totals.preview": 0, **LEFT_OUT}
"""Projection that drops the fields of an entry that a search does not use."""
NO_CONTENT = {"sources": 0, "lookup": 0, "kept_source_ids": 0, **LEFT_OUT} | {
    f"messages.{name}": 0 for name in ("body", "digest", "arguments", "stub", "sources", "payload")
}
"""Projection with only the fields that compare messages: about 150 bytes for a message of any size."""
_NOT_DIGESTS = ("titles", "urls", "starts", "ends", "lengths", "texts", "pieces")
_ONLY_DIGESTS = {f"sources.{name}": 0 for name in _NOT_DIGESTS}


class SlotTaken(Exception):  # noqa: N818 - a result, caught by the writer and the rewinder
    """The entry's number, one of its message ids or one of its source ids is taken."""


@dataclass(frozen=True, slots=True)
class StoredMessageRow:
    """A message with its sources and its entry."""

    message: EntryMessage
    sources: tuple[EntrySource, ...]
    entry: Entry


class Log:
    """Commands on the ``log`` collection.

    Attributes:
        must_look_first: True if the database does not enforce unique ids, so that a writer has to look them up.
        places: Commands on the places of turns and on the entries of variants.
    """

    def __init__(self, driver: Driver) -> None:
        self._log = Collection(driver, LOG)
        # mongomock does not enforce unique indexes over arrays
        self.must_look_first = driver.name == "memory"
        self._gate = _IN_MEMORY if driver.name == "memory" else nullcontext()
        self.places = Places(self._log)
        # The entry is encoded only once, for its size and for the insert; mongomock accepts only dicts.
        self._document: Callable[[bytes], Any] = (
            RawBSONDocument if driver.name != "memory" else bson.decode
        )

    async def last_totals(self, conversation: str, *, shown: bool = False) -> Totals:
        """Return the totals of the last entry, or zeros; `shown` adds the newest distinct sources. One command."""
        sources = _ONLY_DIGESTS if shown else {"sources": 0}
        projection = {"messages": 0, "lookup": 0, **LEFT_OUT, **sources}
        query = within(conversation, *entry_range(conversation))
        documents = await self._log.find(
            query, projection, order=NEWEST_FIRST, limit=SHOWN_ENTRIES if shown else 1
        )
        if not documents:
            return Totals(shown={})
        totals = entry_from(documents[0]).totals
        return replace(totals, shown=shown_in(documents[::-1])) if shown else totals

    async def last_date(self, conversation: str) -> datetime | None:
        """Return the date of the last entry, of any version; None for an empty log. One command."""
        query = within(conversation, *entry_range(conversation))
        documents = await self._log.find(query, {"at": 1}, order=NEWEST_FIRST, limit=1)
        for document in documents:
            with reading(document):
                return utc(document["at"])
        return None

    async def entry(self, conversation: str, number: int) -> Entry:
        """Return one entry without its messages. One command.

        Raises:
            CorruptDocumentError: The entry is missing or damaged.
        """
        key = entry_id(conversation, number)
        query = {"_id": key, "conversation": conversation}
        document = await self._log.find_one(query, NO_MESSAGES)
        if document is None:
            raise CorruptDocumentError(key, "the entry is missing")
        return entry_from(document)

    async def entries_numbered(self, conversation: str, numbers: Iterable[int]) -> dict[int, Entry]:
        """Return entries without their messages, by their numbers. One command if they are near each other.

        On a clustered collection a list of keys examines all documents between the first and the last key. So entries
        that are far apart are read with one command each, in parallel.

        Raises:
            CorruptDocumentError: An entry is missing or damaged.
        """
        wanted = sorted(set(numbers))
        if not wanted or wanted[-1] - wanted[0] > _NEAR:
            entries = await together(*(self.entry(conversation, number) for number in wanted))
            return dict(zip(wanted, entries, strict=True))
        keys = [entry_id(conversation, number) for number in wanted]
        query = {
            "_id": {"$gte": keys[0], "$lte": keys[-1], "$in": keys},
            "conversation": conversation,
        }
        documents = await self._log.find(query, NO_MESSAGES)
        found = {entry.number: entry for entry in map(entry_from, documents)}
        for key, number in zip(keys, wanted, strict=True):
            if number not in found:
                raise CorruptDocumentError(key, "the entry is missing")
        return found

    def check_size(self, entry: Entry) -> None:
        """Raise the BatchTooLargeError of `insert` before the entry's conversation is created. No command."""
        entry_bytes("0" * 24, entry)

    async def insert(
        self,
        conversation: str,
        entries: Sequence[Entry],
        chunks: Sequence[Chunk] = (),
        *,
        token: str = "",
    ) -> None:
        """Write the chunks of an append and then its entries, which make them visible.

        The state is inserted with the first entry of a log. One command up to 32 MB.

        Raises:
            SlotTaken: Another writer took a number or an id; all documents before that entry are written.
            BatchTooLargeError: An entry is above 1 MB; no command was sent.
        """
        documents = [
            {
                "_id": chunk_id(conversation, token, chunk.number),
                "conversation": conversation,
                "data": chunk.data,
            }
            for chunk in chunks
        ]
        sizes = [len(chunk.data) + 200 for chunk in chunks]
        for entry in entries:
            data = entry_bytes(conversation, entry)
            documents.append(self._document(data))
            sizes.append(len(data))
        end = len(documents)
        documents += [new_state(conversation, entry) for entry in entries if entry.number == 1]
        sizes += [0] * (len(documents) - end)
        sent = 0
        async with driver_errors():
            for part in packed(range(len(documents)), limit=_COMMAND_BYTES, size=sizes.__getitem__):
                try:
                    with self._gate:
                        await self._log.driver_collection.insert_many(
                            documents[sent : sent + len(part)], ordered=True
                        )
                except BulkWriteError as error:
                    [taken] = taken_keys(error)
                    if sent + taken < len(chunks):
                        raise
                    if sent + taken < end:
                        raise SlotTaken from error
                    # Else the state exists: a reader that saw the entry earlier has restored it.
                sent += len(part)

    async def drop_chunks(self, conversation: str, token: str, numbers: Sequence[int]) -> None:
        """Remove chunks of one append that no entry refers to. One command."""
        low, high = chunk_range(conversation, token, min(numbers), max(numbers) - min(numbers) + 1)
        query = within(conversation, low, high)
        query["_id"]["$in"] = [chunk_id(conversation, token, number) for number in numbers]
        await self._log.delete_many(query)

    async def messages_by_id(
        self, conversation: str, ids: Iterable[str]
    ) -> dict[str, StoredMessageRow]:
        """Return the messages with some ids that are in the log, by id. One command."""
        wanted = set(ids)
        documents = await self._log.find(
            {"conversation": conversation, "messages.id": {"$in": sorted(wanted)}}
        )
        return {id_: row for id_, row in stored_rows_of(documents).items() if id_ in wanted}

    async def message_and_entries(
        self, conversation: str, id_: str, key: bytes
    ) -> tuple[StoredMessageRow | None, list[Entry]]:
        """Return a message by its id, and the entries with a key, in order. One command."""
        # Each part names the conversation, because the indexes are partial: else a server scans the log.
        own = {"conversation": conversation}
        query = {**own, "$or": [{**own, "messages.id": id_}, {**own, "lookup": key}]}
        documents = await self._log.find(query)
        found = [document for document in documents if key in document.get("lookup", ())]
        entries = sorted(map(entry_from, found), key=lambda entry: entry.number)
        return stored_rows_of(documents).get(id_), entries

    async def messages_by_call(
        self, conversation: str, calls: Iterable[str]
    ) -> list[StoredMessageRow]:
        """Return the results of some tool calls, in the order of the log. One command.

        Some models number their calls from 0 in each message. Of such repeated ids at most 200 entries are read, the
        newest ones.
        """
        wanted = set(calls)
        query = {"conversation": conversation, "lookup": {"$in": sorted(wanted)}}
        documents = await self._log.find(query, order=NEWEST_FIRST, limit=_MOST_OF_CALLS)
        rows = [row for row in stored_rows_of(documents).values() if row.message.call in wanted]
        return sorted(rows, key=lambda row: row.message.ordinal)

    async def entries_of_turns(
        self, conversation: str, questions: Iterable[int], *, known: Iterable[int] = ()
    ) -> list[Entry]:
        """Return the entries with messages of turns that are later than the next question. One command.

        Entries with numbers in `known` are left out.
        """
        query: dict[str, Any] = {
            "conversation": conversation,
            "lookup": {"$in": [*map(messages_of_turn, questions)]},
        }
        if numbers := [*known]:
            query["totals.entries"] = {"$nin": numbers}
        return await entries_from(await self._log.find(query, LEAN, order=BY_KEY))

    async def entries_with_items(
        self,
        conversation: str,
        ids: Iterable[str] | None = None,
        *,
        after: int = 0,
        before: int = LOG_END,
    ) -> list[Entry]:
        """Return the entries with some items, or with items of a range, without messages, in order. One command."""
        query = {
            "conversation": conversation,
            "lookup": _item_filter(ids, after=after, before=before),
        }
        found = await self._log.find(
            query, {"messages": 0, "sources": 0, "lookup": 0}, order=BY_KEY
        )
        return [entry_from(decoded(document)) for document in found]

    async def message_at(self, conversation: str, ordinal: int) -> StoredMessageRow | None:
        """Return the message with an ordinal, if it exists. One command."""
        query = {"conversation": conversation, "first": {"$lte": ordinal}}
        documents = await self._log.find(query, order=_LATEST_FIRST, limit=1)
        return next(
            (row for row in stored_rows_of(documents).values() if row.message.ordinal == ordinal),
            None,
        )

    async def ids_at(self, conversation: str, ordinals: Iterable[int]) -> dict[int, str]:
        """Return the ids of the messages with some ordinals. One command for each, in parallel."""
        ids: dict[int, str] = {}

        async def read(ordinal: int) -> None:
            query = {"conversation": conversation, "first": {"$lte": ordinal}}
            found = await self._log.find(
                query, {"first": 1, "messages.id": 1}, order=_LATEST_FIRST, limit=1
            )
            for document in found:
                with reading(document):
                    ids[ordinal] = from_stored(
                        document["messages"][ordinal - document["first"]]["id"]
                    )

        await in_parallel(read, list(ordinals))
        return ids

    async def sources_by_id(
        self, conversation: str, numbers: Iterable[int]
    ) -> dict[int, tuple[StoredMessageRow, EntrySource]]:
        """Return the sources with some ids of a conversation and its children, each with its message. One command."""
        wanted = set(numbers)
        found: dict[int, tuple[StoredMessageRow, EntrySource]] = {}
        for document in await self._log.find(
            {"conversation": family(conversation), **source_filter(wanted)}
        ):
            if is_twin(document["conversation"], conversation):
                continue
            for row in stored_rows_of([document]).values():
                if row.message.payload and document["conversation"] != conversation:
                    row.message.payload.child = document["conversation"]
                found |= {source.id: (row, source) for source in row.sources if source.id in wanted}
        return found

    async def taken_source_ids(self, conversation: str, numbers: Iterable[int]) -> list[int]:
        """Return the source ids among some that a conversation, its root or any of its children uses. One command.

        A number that another child claimed counts as used, because its source may be appended at this moment.
        """
        wanted = set(numbers)
        query = {"conversation": family(root_id(conversation)), **source_filter(wanted)}
        fields = {"sources.first": 1, "sources.last": 1, "kept_source_ids": 1}
        taken: set[int] = set()
        for document in await self._log.find(query, fields | needed_for(CLAIM)):
            with reading(document):
                claim = fact_in(document, CLAIM)
            if claim is None or claim.by != conversation:
                taken |= taken_ids(document, wanted)
        return sorted(taken)

    async def entries(
        self,
        conversation: str,
        *,
        start: int = 0,
        before: int | None = None,
        limit: int = 0,
        fields: Mapping[str, int] = LEAN,
    ) -> list[Entry]:
        """Return the entries with numbers from `start` to before `before`, or the last `limit` of them, in order.

        One command up to a thousand entries.
        """
        found = await self.documents(
            conversation, start=start, before=before, limit=limit, fields=fields
        )
        if fields is NO_CONTENT:
            found = [filled(document, body="", digest=bytes(DIGEST_BYTES)) for document in found]
        return await entries_from(found, many=0 if fields is SEARCHED else _MANY)

    async def documents(
        self,
        conversation: str,
        *,
        start: int = 0,
        before: int | None = None,
        limit: int = 0,
        fields: Mapping[str, int],
    ) -> list[Document]:
        """Return the documents that `entries` parses, for a caller that parses only some of them."""
        query = within(conversation, *entry_range(conversation, start=start, before=before))
        order = NEWEST_FIRST if limit else BY_KEY
        found = await self._log.find(query, fields, order=order, limit=limit)
        return found[::-1] if limit else found

    async def entries_around(self, conversation: str, *, before: int, limit: int) -> list[Entry]:
        """Return the last entries that begin before an ordinal, in order. One command."""
        query = {"conversation": conversation, "first": {"$lt": before}}
        documents = await self._log.find(query, LEAN, order=_LATEST_FIRST, limit=limit)
        return await entries_from(documents[::-1])

    async def newest_results(
        self,
        conversation: str,
        *,
        before: int,
        limit: int,
        tools_only: bool,
        without: Sequence[tuple[int, int]],
        fields: Mapping[str, int] = LEAN,
    ) -> list[Entry]:
        """Return the last entries with results or long messages before an ordinal, newest first, without bodies.

        Entries that begin in a range of ordinals in `without` are left out. With `tools_only` an entry needs a result
        that is not a page of the retrieval tool. One command.
        """
        query: dict[str, Any] = {"conversation": conversation, "results_at": {"$lt": before}}
        if tools_only:
            query["messages"] = {"$elemMatch": {"type": "tool", "tool": {"$ne": RETRIEVAL_TOOL}}}
        if without:
            query["$nor"] = [
                {"results_at": {"$gte": first, "$lte": last}} for first, last in without
            ]
        bodiless = {**fields, "messages.body": 0}
        documents = await self._log.find(query, bodiless, order=[("results_at", -1)], limit=limit)
        return await entries_from([filled(document, body="") for document in documents])

    async def messages_of_entries(
        self, conversation: str, firsts: Iterable[int]
    ) -> dict[int, StoredMessageRow]:
        """Return the messages of the entries that begin with some ordinals, by ordinal. One command."""
        if not firsts:
            return {}
        documents = await self._log.find(
            {"conversation": conversation, "first": {"$in": sorted(firsts)}}
        )
        return {row.message.ordinal: row for row in stored_rows_of(documents).values()}

    async def messages_by_beginning(
        self, conversation: str, beginnings: Sequence[str]
    ) -> dict[str, StoredMessageRow]:
        """Return the messages whose ids begin with one of some prefixes; empty if there are many. One command."""
        if not beginnings:
            return {}
        documents = await self._log.find(
            beginnings_filter(conversation, beginnings), limit=_MAX_BEGUN
        )
        return stored_rows_of(documents) if len(documents) < _MAX_BEGUN else {}

    async def questions(self, conversation: str, *, before: int, limit: int) -> list[Entry]:
        """Return the last entries before a number that have human messages, newest first. One command."""
        query = within(conversation, *entry_range(conversation, before=before)) | {
            "messages.type": "human"
        }
        found = await self._log.find(query, LEAN, order=NEWEST_FIRST, limit=limit)
        return [entry_from(document) for document in found]

    async def payload_ranges(
        self,
        conversation: str,
        wanted: Sequence[tuple[PayloadRef, int, int]],
        *,
        runs: Sequence[int] = (),
    ) -> list[str]:
        """Return ranges of characters of payloads; only the chunks that contain them are read.

        One command for all ranges of one append, in parallel for several. Chunks of successive appends are stored next
        to each other: ranges with the same number in `runs` are read with one command.

        Raises:
            CorruptDocumentError: A chunk is missing or damaged.
        """
        groups: dict[Any, dict[tuple[str, int], int]] = {}
        for place, (ref, start, end) in enumerate(wanted):
            bounds = dict(enumerate(pairwise([0, *ref.ends]), ref.chunk))
            group = ref.child or conversation, runs[place] if runs else ref.token
            for number in chunks_of(ref, start, end):
                first, last = bounds[number]
                groups.setdefault(group, {})[ref.token, number] = last - first
        chunks: dict[tuple[str, int], str] = {}

        async def read(group: tuple[str, object]) -> None:
            home, _ = group
            chunks.update(await self._chunks(home, groups[group]))

        if len(groups) == 1:  # creating a task would take longer than everything else here
            await read(*groups)
        else:
            await in_parallel(read, list(groups))
        return [piece_of(ref, start, end, chunks) for ref, start, end in wanted]

    async def _chunks(
        self, conversation: str, sizes: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], str]:
        """Return chunks of appends by token and number; `sizes` has the characters of each. One command."""
        keys = {place: chunk_id(conversation, *place) for place in sizes}
        (first, low) = min(keys)
        (last, high) = max(keys)
        query = within(
            conversation, chunk_id(conversation, first, low), chunk_id(conversation, last, high + 1)
        )
        if first != last or high - low >= len(keys):
            query["_id"]["$in"] = list(keys.values())
        found = await self._log.find(query, {"data": 1}, order=BY_KEY)
        documents = {document["_id"]: document for document in found}
        frames = []
        for place, key in keys.items():
            if key not in documents:
                raise CorruptDocumentError(key, "a chunk of a payload is missing")
            frames.append((key, documents[key].get("data"), sizes[place]))
        heavy = sum(size for *_, size in frames) > ENTRY_BYTES
        texts = await asyncio.to_thread(decompressed, frames) if heavy else decompressed(frames)
        return dict(zip(keys, texts, strict=True))

    async def delete(self, conversation: str) -> tuple[int, int]:
        """Remove a conversation from the log, after its state, and return the numbers of entries and chunks."""
        parts = log_ranges(conversation)
        entries, chunks = await together(*(self._log.delete(conversation, *part) for part in parts))
        return entries, chunks

    async def count(self, conversation: str) -> tuple[int, int]:
        """Count the entries and chunks of a conversation. Two commands."""
        parts = entry_range(conversation), log_ranges(conversation)[1]
        entries, chunks = await together(*(self._log.count(conversation, *part) for part in parts))
        return entries, chunks


async def entries_from(
    documents: Sequence[Document], known: Entry | None = None, *, many: int = _MANY
) -> list[Entry]:
    """Return the entries in documents; more than `many` are parsed in a thread, to keep the event loop free."""

    def made() -> list[Entry]:
        return [entry_from(decoded(document), known, has_messages=True) for document in documents]

    return await asyncio.to_thread(made) if len(documents) > many else made()


def _item_filter(ids: Iterable[str] | None, *, after: int, before: int) -> dict[str, Any]:
    """Return the filter on `lookup` for entries with some items, or with items that follow a range of messages."""
    if ids is None:
        return {
            "$elemMatch": {"$gte": key_of_items_after(after), "$lt": key_of_items_after(before)}
        }
    return {"$in": [key_of_item(id_) for id_ in ids]}


def beginnings_filter(conversation: str, beginnings: Sequence[str]) -> dict[str, Any]:
    """Return the filter for ids with one of some prefixes; a pattern with Python's flag "u" would scan the index."""
    patterns = [re.compile(f"^{re.escape(beginning)}", re.ASCII) for beginning in beginnings]
    return {"conversation": conversation, "messages.id": {"$in": patterns}}


def filled(document: Document, **values: object) -> Document:
    """Return a document in which its messages have values for fields that were not read; a damaged one is unchanged."""
    messages = document.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return document
    return {**document, "messages": [{**message, **values} for message in messages]}


def stored_rows_of(documents: Iterable[Document]) -> dict[str, StoredMessageRow]:
    """Return the messages of some entries by id, each with its sources."""
    rows = {}
    for entry in map(entry_from, documents):
        by_message: dict[str, list[EntrySource]] = {}
        for source in entry.sources:
            by_message.setdefault(source.message_id, []).append(source)
        for message in entry.messages:
            rows[message.id] = StoredMessageRow(
                message, tuple(by_message.get(message.id, ())), entry
            )
    return rows

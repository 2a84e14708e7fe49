"""Read and write the ``search`` collection: immutable segments of the search index.

A segment covers a range of entries and is stored under the first of them. So the insert of a segment decides between
two processes that seal the same entries, and a larger segment replaces the first of those that it covers in one write;
readers skip the others. Everything in it can be derived from the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from convstore.index.segment import SECTIONS, Segment
from convstore.index.words import ANALYZER_VERSION
from convstore.mongo.bson_values import stored_bytes, stored_number
from convstore.mongo.collection import Collection, Document, between
from convstore.mongo.driver import Driver
from convstore.mongo.keys import SEARCH, conversation_range, segment_id

_WITHOUT_SECTIONS = {"sections": 0, "digest": 0}


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment with the entries that it covers.

    Attributes:
        first: Number of the first entry.
        until: Number of the last entry.
        link: The link of that entry, by which a log that was restored from a backup is recognised.
        tokens: The running total of the log at that entry, to estimate how much was appended since.
        characters: Characters of the texts in it.
        sections: Its contents; empty if they were not read.
    """

    first: int
    until: int
    link: int
    tokens: int
    characters: int
    sections: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def part(self) -> Segment:
        """Return its contents."""
        return Segment(self.sections)


class Segments:
    """Commands on the ``search`` collection."""

    def __init__(self, driver: Driver) -> None:
        self._search = Collection(driver, SEARCH)

    async def chain(self, conversation: str, *, with_sections: bool = True) -> list[StoredSegment]:
        """Return the segments that cover a conversation from its first entry on without holes. One command.

        Damaged segments, those of another analyzer, and those after them are left out: the log has it all.
        """
        query = between(conversation, *conversation_range(conversation))
        fields = None if with_sections else _WITHOUT_SECTIONS
        documents = await self._search.find(query, fields, order=[("_id", 1)])
        return _chain_of(documents, with_sections=with_sections)

    async def chains(self, conversations: Sequence[str]) -> dict[str, list[StoredSegment]]:
        """Return the chains of some conversations by id. One command."""
        documents = await self._search.find({"conversation": {"$in": list(conversations)}})
        by_id: dict[str, list[Document]] = {}
        for document in sorted(documents, key=lambda one: str(one["_id"])):
            by_id.setdefault(str(document["conversation"]), []).append(document)
        return {conversation: _chain_of(found, with_sections=True) for conversation, found in by_id.items()}

    async def put(
        self, conversation: str, segment: StoredSegment, *, replaces: StoredSegment | None, at: datetime
    ) -> bool:
        """Insert a segment, or replace an unchanged one with the same first entry; False if another process was first.

        One command; two if one of another analyzer is replaced.
        """
        document = {
            "_id": segment_id(conversation, segment.first),
            "conversation": conversation,
            "version": ANALYZER_VERSION,
            "until": segment.until,
            "link": segment.link,
            "tokens": segment.tokens,
            "characters": segment.characters,
            "at": at,
            "sections": dict(segment.sections),
            "digest": _digest(segment.sections),
        }
        key = {"_id": document["_id"], "conversation": conversation}
        if replaces is not None:
            return await self._search.replace({**key, "until": replaces.until}, document)
        if await self._search.insert(document):
            return True
        return await self._search.replace({**key, "version": {"$ne": ANALYZER_VERSION}}, document)

    async def drop_covered(self, conversation: str, segment: StoredSegment) -> None:
        """Remove the segments that another one covers. One command."""
        low, high = segment_id(conversation, segment.first), segment_id(conversation, segment.until + 1)
        query = {"conversation": conversation, "_id": {"$gt": low, "$lt": high}, "until": {"$lte": segment.until}}
        await self._search.delete_many(query)

    async def delete(self, conversation: str) -> int:
        """Remove all segments of a conversation, which are few, and return their number. One command."""
        return await self._search.delete_many(between(conversation, *conversation_range(conversation)))

    async def count(self, conversation: str) -> int:
        """Count the segments of a conversation. One command."""
        return await self._search.count(conversation)


def segment_from(document: Document, *, with_sections: bool = True) -> StoredSegment:
    """Return the segment of a document; raise a ValueError if it is damaged, or made by another analyzer."""
    try:
        first = stored_number(int(str(document["_id"]).rpartition(":")[2]), minimum=1)
        if document["_id"] != segment_id(str(document["conversation"]), first):
            raise ValueError("the key does not match the conversation")
        if document["version"] != ANALYZER_VERSION:
            raise ValueError("it was made by another version of the analyzer")
        sections = {name: stored_bytes(document["sections"][name]) for name in SECTIONS} if with_sections else {}
        if with_sections and document["digest"] != _digest(sections):
            raise ValueError("its contents do not match their digest")
        until = stored_number(document["until"], minimum=first)
        link, tokens, characters = (stored_number(document[name]) for name in ("link", "tokens", "characters"))
        return StoredSegment(first, until, link, tokens, characters, sections)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(repr(error)) from error


def _chain_of(documents: Iterable[Document], *, with_sections: bool) -> list[StoredSegment]:
    chain: list[StoredSegment] = []
    for document in documents:
        start = chain[-1].until + 1 if chain else 1
        try:
            segment = segment_from(document, with_sections=with_sections)
        except ValueError:
            break  # the log is read instead; `verify` reports it
        if segment.until < start:
            continue
        if segment.first != start:
            break
        chain.append(segment)
    return chain


def _digest(sections: Mapping[str, bytes]) -> bytes:
    digest = hashlib.sha256()
    for name in SECTIONS:
        digest.update(hashlib.sha256(sections[name]).digest())
    return digest.digest()[:16]

"""Read and write the ``search`` collection: immutable segments of the search index.

A segment covers a range of entries and is stored under the number of the first entry and the name of its analyzer. So
only one of two processes that seal the same entries can insert its segment, a larger segment replaces the first of the
segments that it covers in one write, and processes with different analyzers do not disturb each other. The links of the
entry before the segment and of its last entry bind it to the log. All its data can be derived from the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from convstore.index.segment import SECTIONS, Segment
from convstore.index.words import analyzer
from convstore.log.entry import Totals
from convstore.mongo.bson_values import stored_bytes, stored_number, utc
from convstore.mongo.collection import BY_KEY, Collection, Document, within
from convstore.mongo.driver import Driver
from convstore.mongo.keys import SEARCH, segment_id

_NUMBERS = ("until", "after", "link", "tokens", "characters", "merges")
_UNREAD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment with the entries that it covers.

    Attributes:
        first: Number of the first entry.
        until: Number of the last entry.
        after: The link of the entry before the first one, 0 if the segment begins with the log.
        link: The link of the last entry; after a restore from a backup it differs from the log's.
        tokens: The running total of the log at that entry, to estimate how much was appended since.
        characters: Number of characters of its texts.
        merges: 1 if it was merged from smaller segments, else 0.
        read_at: When it was written, or last used by a search, to half a day; None for a new one.
        part: Its contents; empty if they were not read.
    """

    first: int
    until: int
    after: int
    link: int
    tokens: int
    characters: int
    merges: int = 0
    read_at: datetime | None = None
    part: Segment = field(default_factory=lambda: Segment({}))

    def followed_by(self, last: Totals, *, characters: int) -> StoredSegment:
        """Return the next segment, up to the entry with these totals, without contents."""
        return StoredSegment(
            self.until + 1, last.entries, self.link, last.link, last.tokens, characters
        )


_NOTHING = StoredSegment(first=0, until=0, after=0, link=0, tokens=0, characters=0)


class SegmentChain(list[StoredSegment]):
    """Adjacent segments that cover a log from its first entry on."""

    def add(
        self,
        document: Document,
        *,
        contents: bool = True,
        only: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        """Add the segment in a document, if it is the next one and not damaged; with `only` just some words of it."""
        with suppress(ValueError):  # `verify` reports it
            segment = segment_from(document, contents=contents)
            if self.is_followed_by(segment):
                self.append(
                    segment if only is None else replace(segment, part=segment.part.only(only))
                )

    @property
    def last(self) -> StoredSegment:
        """Return the last segment, or one that ends before the first entry."""
        return self[-1] if self else _NOTHING

    @property
    def parts(self) -> list[Segment]:
        """Return the contents of all segments."""
        return [segment.part for segment in self]

    def is_followed_by(self, segment: StoredSegment) -> bool:
        """Return True if a segment is the next one, and of the same log."""
        return (segment.first, segment.after) == (self.last.until + 1, self.last.link)

    def ends_with(self, totals: Totals) -> bool:
        """Return True if the last entry that they cover has these totals."""
        return (self.last.until, self.last.link) == (totals.entries, totals.link)

    def is_read_mark_due(self, now: datetime) -> bool:
        """Return True if the use by a search was last recorded more than half a day ago."""
        return any(
            segment.read_at is None or now - segment.read_at > _UNREAD / 2 for segment in self[:1]
        )


class Segments:
    """Commands on the ``search`` collection; segments of other analyzers are not read or replaced."""

    def __init__(self, driver: Driver) -> None:
        self._search = Collection(driver, SEARCH)

    async def documents(self, conversation: str, *, contents: bool = True) -> list[Document]:
        """Return the documents of a conversation's segments in order. One command."""
        fields = None if contents else {"sections": 0}
        return await self._search.find(_own(conversation), fields, order=BY_KEY)

    def documents_of_all(self, conversations: Iterable[str]) -> AsyncIterator[Document]:
        """Yield the documents of the segments of some conversations, of each in order. One command or more."""
        query = {"conversation": {"$in": list(conversations)}, "version": analyzer()}
        return self._search.each(query, order=[("conversation", 1), ("_id", 1)])

    async def put(
        self,
        conversation: str,
        segment: StoredSegment,
        *,
        read: Iterable[Document],
        kept: Iterable[StoredSegment],
        at: datetime,
    ) -> bool:
        """Store a segment, and remove those in `read` that are not in `kept`; False if another process was first.

        Segments that changed since they were read are not removed. At most two commands.
        """
        document: dict[str, object] = {
            "_id": segment_id(conversation, segment.first, analyzer()),
            "conversation": conversation,
            "version": analyzer(),
            **{name: getattr(segment, name) for name in _NUMBERS},
            "at": at,
            "read_at": at,
            "sections": dict(segment.part.sections),
        }
        document["digest"] = _digest(document)
        keys = {segment_id(conversation, part.first, analyzer()) for part in kept}
        old = {
            stored["_id"]: {"$eq": stored.get("digest")}
            for stored in read
            if stored["_id"] not in keys
        }
        if (replaced := old.pop(document["_id"], None)) is None:
            is_stored = await self._search.insert(document)
        else:
            query = {"_id": document["_id"], "conversation": conversation, "digest": replaced}
            is_stored = await self._search.replace(query, document)
        if is_stored and old:
            same = [{"_id": key, "digest": digest} for key, digest in old.items()]
            await self._search.delete_many({**within(conversation), "$or": same})
        return is_stored

    async def mark_read(self, conversation: str, at: datetime) -> None:
        """Record that a search read a conversation; delete its segments of other analyzers that are unused for a day.

        Two commands.
        """
        await self._search.update_many(_own(conversation), {"$set": {"read_at": at}})
        unread = {"version": {"$ne": analyzer()}, "read_at": {"$not": {"$gte": at - _UNREAD}}}
        await self._search.delete_many({**within(conversation), **unread})


def segment_from(document: Document, *, contents: bool = True) -> StoredSegment:
    """Return the segment in a document that was read with or without its contents.

    Raises:
        ValueError: The document is damaged.
    """
    try:
        first = stored_number(int(str(document["_id"]).split(":")[1]), minimum=1)
        if document["_id"] != segment_id(
            str(document["conversation"]), first, str(document["version"])
        ):
            raise ValueError("the key does not match the conversation and the analyzer")
        sections = {}
        if contents:
            sections = {name: stored_bytes(document["sections"][name]) for name in SECTIONS}
            if document["digest"] != _digest(document):
                raise ValueError("its contents do not match their digest")
        numbers = {name: stored_number(document[name]) for name in _NUMBERS}
        if numbers["until"] < first:
            raise ValueError("it ends before it begins")
        return StoredSegment(
            first, **numbers, read_at=utc(document["read_at"]), part=Segment(sections)
        )
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(repr(error)) from error


def is_foreign(document: Document) -> bool:
    """Return True if another analyzer made a segment, by its key and its version; its format may differ."""
    return document.get("version") != analyzer() and str(document["_id"]).endswith(
        f":{document.get('version')}"
    )


def segment_chain(documents: Iterable[Document], *, contents: bool = True) -> SegmentChain:
    """Return the segments in some documents up to the first damaged one; the log is read for the rest."""
    chain = SegmentChain()
    for document in documents:
        chain.add(document, contents=contents)
    return chain


def _own(conversation: str) -> dict[str, object]:
    return {**within(conversation), "version": analyzer()}


def _digest(document: Document) -> bytes:
    """Return the digest of all fields of a document that never change."""
    header = [str(document["_id"]).partition(":")[2], *(int(document[name]) for name in _NUMBERS)]
    digest = hashlib.sha256(repr(header).encode())
    for name in SECTIONS:
        digest.update(hashlib.sha256(document["sections"][name]).digest())
    return digest.digest()[:16]

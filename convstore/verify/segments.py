"""Checks the search segments of one conversation: each is built again from the log and compared whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Protocol

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.collection import Document
from convstore.mongo.keys import LOG, SEARCH, entry_id
from convstore.mongo.segments import StoredSegment, is_foreign, segment_from
from convstore.values.scope import Scope
from convstore.verify.findings import Subject


class SearchIndex(Protocol):
    """Interface that a verification needs of the room that makes segments; see `search.sealer`."""

    async def seal(self, scope: Scope) -> None:
        """Build the segments that a conversation lacks."""
        ...

    async def is_right(self, scope: Scope, segment: StoredSegment) -> bool:
        """Return True if the log gives this segment."""
        ...


async def check_segments(subject: Subject, scope: Scope, index: SearchIndex) -> None:
    """Report segments that are damaged or not what the log gives; remove them and build them again if asked to.

    Those of other analyzers, which other versions made, are passed over. What the log's own damage touches is neither
    compared with it nor built from it: searches read the log.
    """
    damaged = []
    wrong_entries = [
        item.document_id
        for item in subject.findings
        if item.collection == LOG and not item.repaired
    ]
    async with aclosing(subject.stored_in(SEARCH)) as documents:
        async for document in documents:
            subject.checked["search_segments"] += 1
            if is_foreign(document):
                continue
            if problem := await _problem(scope, document, index, wrong_entries):
                key = str(document["_id"])
                damaged.append(key)
                outcome = {"repairable": True, "repaired": subject.repair}
                subject.report("segment", SEARCH, key, problem, **outcome)
    if damaged and subject.repair:
        await subject.inspection.remove(SEARCH, damaged)
        if not wrong_entries:
            with suppress(CorruptDocumentError):  # of damage after the log was checked
                await index.seal(scope)


async def _problem(
    scope: Scope, document: Document, index: SearchIndex, wrong_entries: Sequence[str]
) -> str:
    try:
        segment = segment_from(document)
    except ValueError as error:
        return str(error)
    low, high = (
        entry_id(document["conversation"], number) for number in (segment.first - 1, segment.until)
    )
    is_comparable = scope and not any(low <= entry <= high for entry in wrong_entries)
    if not is_comparable or await index.is_right(scope, segment):
        return ""
    return "it is not what the log gives"

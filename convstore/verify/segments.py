"""Check the search segments of one conversation: rebuild each from the log and compare it."""

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
    """The methods of `search.sealer` that a verification needs; injected, because search is another use case."""

    async def seal(self, scope: Scope) -> None:
        """Build the segments that a conversation lacks."""
        ...

    async def is_right(self, scope: Scope, segment: StoredSegment) -> bool:
        """Return True if the segment rebuilt from the log equals this one."""
        ...


async def check_segments(subject: Subject, scope: Scope, index: SearchIndex) -> None:
    """Report segments that are damaged or differ from those rebuilt from the log; a repair rebuilds them.

    Segments of other analyzers, which other versions wrote, are skipped. Where the log itself is damaged, segments are
    neither compared nor rebuilt; searches read the log.
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
            with suppress(CorruptDocumentError):  # damage since the log was checked
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
    return "it differs from the segment rebuilt from the log"

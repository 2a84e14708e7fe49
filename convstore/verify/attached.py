"""Checks the annotations and the search segments of one conversation.

Floor 4. `conversation` calls it. Segments are derived from the log: damaged ones are removed and built again.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.bson_values import from_stored, stored_number, utc
from convstore.mongo.collection import Document
from convstore.mongo.keys import ANNOTATIONS, SEARCH, annotation_id, entry_id
from convstore.mongo.log import Log
from convstore.mongo.segments import segment_from
from convstore.verify.findings import Subject

__all__ = ["check_annotations", "check_segments"]


async def check_annotations(subject: Subject, log: Log, last: int) -> None:
    """Check that annotations can be read and belong to a message; `last` is the last ordinal of the log."""
    async for document in subject.documents(subject.inspection.documents_of, ANNOTATIONS, subject.conversation):
        subject.checked["annotations"] += 1
        key = str(document["_id"])
        problem, ordinal = _annotation_problem(subject, document)
        if ordinal > last:
            last = max(last, await _current_last(subject, log))
        if problem:
            subject.report("damaged", ANNOTATIONS, key, problem)
        elif not 1 <= ordinal <= last:
            subject.report("annotation", ANNOTATIONS, key, "there is no message with its ordinal")


def _annotation_problem(subject: Subject, document: Document) -> tuple[str, int]:
    """Return the problem of an annotation, "" if there is none, and its ordinal."""
    try:
        ordinal = stored_number(document["ordinal"])
        if document["_id"] != annotation_id(subject.conversation, ordinal):
            return "the key and the ordinal do not agree", 0
        if document["conversation"] != subject.conversation:
            return "the field `conversation` names another one", 0
        utc(document["at"])
        for text in document.get("values", {}).values():
            subject.codec.decode(from_stored(text))
    except Exception as error:  # noqa: BLE001 - damage may raise anything; continue with the next document
        return repr(error), 0
    return "", ordinal


async def _current_last(subject: Subject, log: Log) -> int:
    """Return the current last ordinal; the largest integer if it cannot be read, so that no ordinal is too high."""
    try:
        return (await log.last_totals(subject.conversation)).messages
    except CorruptDocumentError:
        return sys.maxsize


async def check_segments(subject: Subject, rebuild: Callable[[], Awaitable[None]]) -> None:
    """Check that segments can be read and were made from this log; build the others again if asked to."""
    damaged = []
    async for document in subject.documents(subject.inspection.documents_of, SEARCH, subject.conversation):
        subject.checked["search_segments"] += 1
        if problem := await _segment_problem(subject, document):
            damaged.append(str(document["_id"]))
            subject.report("segment", SEARCH, damaged[-1], problem, repairable=True, repaired=subject.repair)
    if damaged and subject.repair:
        await subject.inspection.remove(SEARCH, damaged)
        with suppress(CorruptDocumentError):  # damage in the log is reported by itself
            await rebuild()


async def _segment_problem(subject: Subject, document: Document) -> str:
    try:
        segment = segment_from(document)
    except ValueError as error:
        return str(error)
    entry = await subject.inspection.entry(entry_id(subject.conversation, segment.until))
    if entry is None:
        return "its last entry is missing"
    totals = entry.get("totals")
    link = totals.get("link") if isinstance(totals, Mapping) else None
    return "" if link == segment.link else "it was made from a log that a backup replaced"

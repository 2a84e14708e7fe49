"""Check the head of one conversation against its log.

A head that seems wrong is read again, because a writer may have refreshed it meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from convstore.exceptions import CorruptDocumentError, StoreError
from convstore.mongo.collection import Document
from convstore.mongo.heads import Head, creation, head_from
from convstore.mongo.keys import HEADS, first_id, head_id, parent_id
from convstore.runtime.head_refresh import REFRESH_AFTER
from convstore.values.scope import parent_scope
from convstore.verify.findings import CLOCKS_DIFFER, Subject, problem_of
from convstore.verify.log import LogCheck


def read_head(document: Document) -> tuple[Head | None, str]:
    """Return the head, or None and the reason why it cannot be read."""
    try:
        return head_from(document), ""
    except CorruptDocumentError as error:
        return None, error.problem


async def check_head(subject: Subject, document: Document, check: LogCheck) -> None:
    """Compare a head with the log, report differences, and repair fields that follow from the log."""
    head, problem = read_head(document)
    if head is None:
        await _repair(subject, document, "head", problem, _rebuilt(subject, document, check))
        return
    try:
        head.described(subject.codec)
    except StoreError as error:
        subject.report("damaged", HEADS, str(document["_id"]), problem_of(error))
    await _check_parent(subject, document, head)
    difference = _difference(subject, head, check)
    if difference and await subject.inspection.head(str(document["_id"])) == document:
        await _repair(subject, document, *difference)


def _difference(
    subject: Subject, head: Head, check: LogCheck
) -> tuple[str, str, dict[str, Any]] | None:
    """Return the kind of the first difference from the log, the problem in words, and the changes that repair it."""
    tail = check.tail
    if lost := _lost(subject, head, check):
        written = max(head.written_at, tail.updated_at or head.written_at)
        return "head_entry", lost, {"entry": [tail.entries, tail.link], "written_at": written}
    entry = check.kept.get(head.entry.number)
    if entry and head.written_at < entry.at - CLOCKS_DIFFER:
        problem = (
            "its date is before that of the entry that it names, so pruning may delete the "
            "conversation too early"
        )
        return "head_date", problem, {"written_at": max(subject.now, entry.at)}
    if ahead := _ahead(subject, head, check):
        problem = (
            "it has a date in the future, so listings show the conversation too far up, "
            "or pruning keeps it too long"
        )
        return "head_date", problem, ahead
    if _is_late(subject, head, check):
        problem = (
            "its date is older than the last entry, so listings show the conversation too far down"
        )
        return "head_behind", problem, {"updated_at": tail.updated_at}
    return None


async def _check_parent(subject: Subject, document: Document, head: Head) -> None:
    """Check that a child names its parent, and that the parent is marked: else it is deleted without its children."""
    parent = parent_id(head.conversation)
    if document.get("parent", "") != parent:
        problem = "it does not name its parent, so a deletion of the parent would not include it"
        await _repair(subject, document, "head", problem, {"parent": parent} if parent else None)
    if (outer := parent_scope(head.scope)) is None:
        return
    above = await subject.inspection.head(head_id(outer, parent_id(parent)))
    if above and first_id(str(above.get("conversation"))) == parent and "has_children" not in above:
        problem = "it is not marked as having a child, so its deletion would not include the child"
        await _repair(subject, above, "head", problem, {"has_children": True})


def _lost(subject: Subject, head: Head, check: LogCheck) -> str:
    """Return the problem if the log lacks the entry that the head names, else "".

    A recent head is not reported, because a writer may insert the entry at this moment. Damage of the log is reported
    separately.
    """
    if not subject.is_old(head.written_at) or check.is_damaged:
        return ""
    number, link = head.entry
    if lost := max(0, number - check.tail.entries):
        were = "entry that was" if lost == 1 else "entries that were"
        return (
            f"the log lacks {lost} {were} there at the last refresh of its head, "
            "and perhaps later ones"
        )
    entry = check.kept.get(number)
    if entry and entry.totals.link != link:
        return f"the log has another entry {number} than at the last refresh"
    return ""


def _is_late(subject: Subject, head: Head, check: LogCheck) -> bool:
    """Return True if the head was not refreshed after the last entry, because its writer ended before."""
    written = check.tail.updated_at
    return (
        written is not None
        and written - head.updated_at > REFRESH_AFTER
        and subject.is_old(written)
    )


def _ahead(subject: Subject, head: Head, check: LogCheck) -> dict[str, datetime]:
    """Return the corrected values of dates of a head that are later than now and than its last entry."""
    written = check.tail.updated_at or subject.now
    latest = max(subject.now, written) + CLOCKS_DIFFER
    dates = {"updated_at": (head.updated_at, written), "written_at": (head.written_at, subject.now)}
    return {name: right for name, (date, right) in dates.items() if date > latest}


async def _repair(
    subject: Subject, document: Document, kind: str, problem: str, changes: Mapping[str, Any] | None
) -> None:
    """Report a problem of the head; a repair changes it unless the head changed since it was read."""
    repaired = False
    if changes and subject.repair:
        repaired = await subject.inspection.set_head(document, changes)
    subject.report(
        kind, HEADS, str(document["_id"]), problem, repairable=bool(changes), repaired=repaired
    )


def _rebuilt(subject: Subject, document: Document, check: LogCheck) -> dict[str, Any] | None:
    """Return the fields of a damaged head that follow from the log; None if the head stays damaged with them."""
    written = max(subject.now, check.tail.updated_at or subject.now)
    changes: dict[str, Any] = {
        "entry": [check.tail.entries, check.tail.link],
        "written_at": written,
    }
    if check.tail.updated_at and not isinstance(document.get("updated_at"), datetime):
        changes["updated_at"] = check.tail.updated_at
    first = (
        {"created_at": creation(check.kept[1].at, subject.conversation)} if 1 in check.kept else {}
    )
    return next(
        (fields for fields in (changes, changes | first) if read_head({**document, **fields})[0]),
        None,
    )

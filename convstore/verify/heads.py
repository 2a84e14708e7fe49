"""Checks the head of one conversation against its log.

A head that only seems out of date is checked a second time, because a writer may be about to refresh it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from convstore.exceptions import CorruptDocumentError, StoreError
from convstore.log.entry import Totals
from convstore.log.state import NO_START
from convstore.mongo.collection import Document
from convstore.mongo.documents import totals_document
from convstore.mongo.heads import Head, head_from
from convstore.mongo.inspection import Inspection, log_fields
from convstore.mongo.keys import HEADS, entry_id
from convstore.mongo.state_documents import start_document
from convstore.verify.findings import Findings, Subject
from convstore.verify.log import LogCheck
from convstore.verify.state import is_wrong_start

BETWEEN_LOOKS = 15.0
"""Seconds between two looks at a suspicious head. A writer refreshes the head every 10 seconds."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """A suspected problem of a head, to be checked a second time.

    Attributes:
        head: The filter for the head as long as no append refreshes it.
        entries: Number of the last entry that could be read.
        changes: The fields that repair the head.
        closes: True if the stores that opened the head have ended.
    """

    kind: str
    problem: str
    head: Document
    entries: int
    changes: Mapping[str, Any]
    closes: bool

    async def run(self, inspection: Inspection, findings: Findings) -> None:
        """Report the problem and repair the head, if neither the head nor the log has changed."""
        key, conversation = str(self.head["_id"]), str(self.head["conversation"])
        if await inspection.lean_entries(conversation, after=entry_id(conversation, self.entries)):
            return
        repair = inspection.set_head(self.head, self.changes, closes=self.closes) if findings.repair else None
        if await (repair or inspection.is_same(self.head)):
            outcome = {"conversation": conversation, "repairable": True, "repaired": findings.repair}
            findings.report(self.kind, HEADS, key, self.problem, **outcome)


def read_head(document: Document) -> tuple[Head | None, str]:
    """Return the head, or None and why it cannot be read."""
    try:
        return head_from(document), ""
    except CorruptDocumentError as error:
        return None, str(error)


async def check_head(subject: Subject, document: Document, check: LogCheck) -> Recheck | None:
    """Compare a head with the log; return a suspected problem that a writer may be about to fix."""
    head, problem = read_head(document)
    if head is None:
        await _repair(subject, document, "head", problem, _rebuilt(document, check), closes=True)
        return None
    try:
        head.described(subject.codec)
    except StoreError as error:
        subject.report("damaged", HEADS, str(document["_id"]), str(error))
    if _has_wrong_start(head, check) and await subject.inspection.is_same(log_fields(document)):
        problem, start = "the stored start of the view does not match the log", {"start": start_document(NO_START)}
        if await _repair(subject, document, "head_start", problem, start):
            document = {**document, **start}
    outdated = _outdated_totals(subject, head, check)
    if outdated is None or check.doubts(head.totals.entries):
        return None
    tail = check.tail
    # Setting a title counts as an update, so the date never goes back.
    updated_at = max(head.updated_at, tail.updated_at or head.updated_at)
    changes = {"totals": totals_document(tail), "updated_at": updated_at}
    return Recheck(*outdated, log_fields(document), tail.entries, changes, subject.is_old(head.open_until))


async def _repair(
    subject: Subject,
    document: Document,
    kind: str,
    problem: str,
    changes: Mapping[str, Any] | None,
    *,
    closes: bool = False,
) -> bool:
    """Report a problem of the head; return True if it was repaired, because the head is as it was read."""
    repaired = False
    if changes and subject.repair:
        repaired = await subject.inspection.set_head(log_fields(document), changes, closes=closes)
    subject.report(kind, HEADS, str(document["_id"]), problem, repairable=bool(changes), repaired=repaired)
    return repaired


def _has_wrong_start(head: Head, check: LogCheck) -> bool:
    is_newer = head.start.rewind_entry > max(check.tail.rewind_entry, head.totals.rewind_entry)
    return is_newer or is_wrong_start(head.start, check.kept.get(head.start.entry), check.tail)


def _outdated_totals(subject: Subject, head: Head, check: LogCheck) -> tuple[str, str] | None:
    """Return kind and text of the head's problem, unless a writer may be about to refresh the head."""
    at_head = check.kept.get(head.totals.entries)
    then = at_head.totals if at_head else Totals()
    log_updated_at, ahead = head.totals.updated_at, head.totals.entries - check.tail.entries
    if ahead > 0 or head.totals != then or (log_updated_at and head.updated_at < log_updated_at):
        if check.is_damaged or not subject.is_old(head.updated_at):
            return None
        lost = f"; the log has {ahead} entries fewer than the head counts" if ahead > 0 else ""
        return "head_totals", f"its totals differ from those of the log{lost}"
    if ahead < 0 and subject.is_old(check.tail.updated_at):
        lists = "listings read them from the log each time" if head.open_until else "listings are out of date"
        return "head_behind", f"its totals lack the last {-ahead} entries; {lists}"
    return None


def _rebuilt(document: Document, check: LogCheck) -> dict[str, Any] | None:
    """Return the fields of a damaged head that follow from the log; None if they do not repair it."""
    if check.doubts(check.tail.entries):
        return None
    moments = {"updated_at": check.tail.updated_at, "created_at": check.first_at}
    missing = {name: at for name, at in moments.items() if at and not isinstance(document.get(name), datetime)}
    changes = {"totals": totals_document(check.tail), "start": start_document(NO_START), **missing}
    return changes if read_head({**document, **changes, "open_until": None})[0] else None

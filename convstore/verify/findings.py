"""Collect the findings of a verification, and read the documents to check page by page.

Every check takes a `Subject`, the conversation to check, and reports to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.messages.values import Codec
from convstore.mongo.collection import Document
from convstore.mongo.inspection import Inspection, all_of_pages
from convstore.values.reports import Finding, VerifyReport

_MAX_LISTED = 1_000
_IN_FLIGHT = timedelta(minutes=2)

ORPHAN_AGE = timedelta(hours=24)
"""Younger documents may belong to an append in flight, or to an administrator's investigation."""

CLOCKS_DIFFER = timedelta(hours=1)
"""Tolerated difference between the clocks of two writers, such as those of a head and of its last entry."""


def problem_of(error: Exception) -> str:
    """Return the problem in an error about a document, without its advice, which is to run this check."""
    return error.problem if isinstance(error, CorruptDocumentError) else str(error)


@dataclass(slots=True)
class Subject:
    """One conversation to check, and its findings; `codec` also decodes values of unknown types.

    `checked` counts documents under their names in a `VerifyReport`.
    """

    conversation: str
    inspection: Inspection
    codec: Codec
    now: datetime
    repair: bool
    checked: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def report(
        self, kind: str, collection: str, document_id: str, problem: str, **outcome: Any
    ) -> None:
        """Add a finding; `outcome` has its further fields, such as `repairable`, `repaired` and lost ids."""
        where: dict[str, Any] = {"collection": collection, "document_id": document_id, **outcome}
        self.findings.append(
            Finding(kind=kind, problem=problem, conversation=self.conversation, **where)
        )

    def is_old(self, moment: datetime | None) -> bool:
        """Return True if all appends that were in flight at a time must have ended."""
        return moment is None or self.now - moment > _IN_FLIGHT

    def stored_in(self, collection: str) -> AsyncGenerator[Document, None]:
        """Yield the conversation's documents in a collection other than the log."""
        return all_of_pages(self.inspection.documents_of, collection, self.conversation)


@dataclass(slots=True)
class Findings:
    """Findings of one run, in bounded memory: the first thousand, and the number of each kind."""

    repair: bool
    progress: Callable[[VerifyReport], None] | None = None
    _checked: Counter[str] = field(default_factory=Counter)
    _first: list[Finding] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _unrepaired: int = 0

    def report(
        self, kind: str, collection: str, document_id: str, problem: str, **more: Any
    ) -> None:
        """Add a finding; `more` has its further fields: `conversation`, `repairable` and `repaired`."""
        self._add(
            Finding(
                kind=kind, collection=collection, document_id=document_id, problem=problem, **more
            )
        )

    def add(self, subject: Subject) -> None:
        """Add a checked conversation, and report progress."""
        self._checked.update(subject.checked, conversations=1)
        for finding in subject.findings:
            self._add(finding)
        if self.progress:
            self.progress(self.result(listed=False))

    def _add(self, finding: Finding) -> None:
        self._counts[finding.kind] += 1
        self._unrepaired += not finding.repaired
        if len(self._first) < _MAX_LISTED:
            self._first.append(finding)

    def result(self, *, listed: bool = True) -> VerifyReport:
        """Return the report so far; if `listed` is false, without the findings themselves."""
        first = tuple(self._first) if listed else ()
        return VerifyReport(
            **self._checked, findings=first, counts=dict(self._counts), left=self._unrepaired
        )

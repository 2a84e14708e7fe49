"""Collects the findings of a verification: the first thousand, and the number of each kind.

Floor 4. `verifier` and the checks call it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import HEADS, entry_id
from convstore.values.reports import Finding, VerifyReport

__all__ = ["BETWEEN_LOOKS", "Checked", "Findings", "Recheck"]

_MAX_LISTED = 1_000


BETWEEN_LOOKS = 15.0
"""Seconds between two looks at a suspicious head. A writer refreshes the head every 10 seconds."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """A suspected problem of a head, to be checked a second time.

    Attributes:
        kind: Kind of the finding.
        problem: Description in the finding.
        head: The fields of the head that change when it is refreshed from the log.
        entries: Number of the last entry that could be read.
        changes: The fields that repair the head.
        closes: True if the stores that opened the head are gone.
    """

    kind: str
    problem: str
    head: Mapping[str, Any]
    entries: int
    changes: Mapping[str, Any]
    closes: bool

    async def settle(self, inspection: Inspection, findings: Findings) -> None:
        """Report the problem and repair the head, if neither the head nor the log has changed."""
        conversation = str(self.head["conversation"])
        if await inspection.lean_entries(conversation, after=entry_id(conversation, self.entries)):
            return
        repair = inspection.set_head(self.head, self.changes, closes=self.closes) if findings.repair else None
        if await (repair or inspection.is_same(self.head)):
            findings.add(
                Finding(
                    kind=self.kind,
                    collection=HEADS,
                    document_id=str(self.head["_id"]),
                    problem=self.problem,
                    conversation=conversation,
                    repairable=True,
                    repaired=findings.repair,
                )
            )


@dataclass(slots=True)
class Checked:
    """Numbers of documents checked."""

    conversations: int = 0
    entries: int = 0
    messages: int = 0
    payload_chunks: int = 0
    summaries: int = 0
    annotations: int = 0
    search_segments: int = 0


@dataclass(slots=True)
class Findings:
    """Findings of one run, in bounded memory.

    Attributes:
        repair: True to repair everything that can be derived from the log.
        progress: Called after each conversation.
        checked: Numbers of documents checked so far.
    """

    repair: bool
    progress: Callable[[VerifyReport], None] | None = None
    checked: Checked = field(default_factory=Checked)
    _first: list[Finding] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _unrepaired: int = 0

    def add(self, finding: Finding) -> None:
        """Count a finding, and store it if it is among the first."""
        self._counts[finding.kind] += 1
        self._unrepaired += not finding.repaired
        if len(self._first) < _MAX_LISTED:
            self._first.append(finding)

    def advance(self) -> None:
        """Count a conversation as checked, and report progress."""
        self.checked.conversations += 1
        if self.progress:
            self.progress(self.report(listed=False))

    def report(self, *, listed: bool = True) -> VerifyReport:
        """Return the report so far."""
        checked = {name: getattr(self.checked, name) for name in Checked.__slots__}
        first = tuple(self._first) if listed else ()
        return VerifyReport(**checked, findings=first, counts=dict(self._counts), left=self._unrepaired)

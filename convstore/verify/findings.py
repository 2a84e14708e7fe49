"""Collects what an inspection finds: the first thousand findings, and how many there are of each kind.

Layer 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import HEADS, entry_id
from convstore.values.models import Finding, VerifyReport

__all__ = ["BETWEEN_LOOKS", "Findings", "Looked", "Recheck"]

_MOST = 1_000


BETWEEN_LOOKS = 15.0
"""Seconds; a conversation that is written to is told of every 10."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """What seems wrong with a head.

    Attributes:
        kind: Of the finding.
        problem: Of the finding.
        head: What of it changes when it is told of the log.
        entries: Number of the last entry that could be read.
        changes: What sets the head right.
        closes: The stores that opened the head are gone.
    """

    kind: str
    problem: str
    head: Mapping[str, Any]
    entries: int
    changes: Mapping[str, Any]
    closes: bool

    async def settle(self, inspection: Inspection, findings: Findings) -> None:
        """Tell of it, and set the head right, if all is as it was."""
        conversation = str(self.head["conversation"])
        if await inspection.lean_entries(conversation, after=entry_id(conversation, self.entries)):
            return
        mend = inspection.set_head(self.head, self.changes, closes=self.closes) if findings.repair else None
        if await (mend or inspection.is_same(self.head)):
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
class Looked:
    """What was looked at, in documents."""

    conversations: int = 0
    entries: int = 0
    messages: int = 0
    payload_chunks: int = 0
    summaries: int = 0
    annotations: int = 0


@dataclass(slots=True)
class Findings:
    """Findings of one run, in bounded memory.

    Attributes:
        repair: Whether what can be mended is to be mended.
        progress: Called after each conversation.
        looked: What was looked at so far.
    """

    repair: bool
    progress: Callable[[VerifyReport], None] | None = None
    looked: Looked = field(default_factory=Looked)
    _first: list[Finding] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _unrepaired: int = 0

    def add(self, finding: Finding) -> None:
        """Keep a finding."""
        self._counts[finding.kind] += 1
        self._unrepaired += not finding.repaired
        if len(self._first) < _MOST:
            self._first.append(finding)

    def advance(self) -> None:
        """A conversation was read to its end."""
        self.looked.conversations += 1
        if self.progress:
            self.progress(self.report(listed=False))

    def report(self, *, listed: bool = True) -> VerifyReport:
        """What was found so far."""
        looked = {name: getattr(self.looked, name) for name in Looked.__slots__}
        first = tuple(self._first) if listed else ()
        return VerifyReport(**looked, findings=first, counts=dict(self._counts), left=self._unrepaired)

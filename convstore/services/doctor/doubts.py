"""Looks twice at what heads say of the log: a writer may be about to tell them.

Layer 4. A date does not say whether one is: an import writes entries of years ago, and clocks differ. So what seems
wrong is told, and mended, only if neither the head nor the end of the log has changed a while later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convstore.models import Finding
from convstore.repository import Inspection
from convstore.schema import HEADS, entry_id
from convstore.services.doctor.findings import Findings

__all__ = ["BETWEEN_LOOKS", "Doubt"]

BETWEEN_LOOKS = 15.0
"""Seconds; a conversation that is written to is told of every 10."""


@dataclass(frozen=True, slots=True)
class Doubt:
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

"""Collects what an inspection finds: the first thousand findings, and how many there are of each kind.

Layer 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from convstore.models import Finding, VerifyReport

__all__ = ["Findings", "Looked"]

_MOST = 1_000


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
    _left: int = 0

    def add(self, finding: Finding) -> None:
        """Keep a finding."""
        self._counts[finding.kind] += 1
        self._left += not finding.repaired
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
        return VerifyReport(**looked, findings=first, counts=dict(self._counts), left=self._left)

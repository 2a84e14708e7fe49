"""Reports of imports and exports: counts, and everything that was left out or changed.

Floor 7. Filled by ``importing`` and ``exporting``, printed by the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from convstore.transfer.records import Problem

__all__ = ["MAXIMUM_PROBLEMS", "ExportReport", "ImportReport"]

MAXIMUM_PROBLEMS = 1_000
"""Number of problems that a report keeps; `on_problem` receives all of them."""


@dataclass(slots=True, kw_only=True)
class _Report:
    """Fields that both reports have."""

    on_problem: Callable[[Problem], object] = field(default=lambda _: None, repr=False)
    problems: list[Problem] = field(default_factory=list)
    left_out: int = 0
    messages_left_out: int = 0
    changed: int = 0

    def note(self, problem: Problem) -> None:
        """Count a problem, pass it to `on_problem`, and keep it if there is room."""
        self.left_out += problem.what == "conversation"
        self.messages_left_out += problem.what == "message"
        self.changed += problem.what == "changed"
        if len(self.problems) < MAXIMUM_PROBLEMS:
            self.problems.append(problem)
        self.on_problem(problem)

    @property
    def is_complete(self) -> bool:
        """Return True if nothing was left out."""
        return not self.left_out and not self.messages_left_out

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts by name, without those of problems."""
        own = {one.name for one in fields(self)} - {one.name for one in fields(_Report)}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name in own}

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        problems = {name: getattr(self, name) for name in ("left_out", "messages_left_out", "changed")}
        more = sum(problems.values()) - len(self.problems)
        kept = {"problems": [asdict(problem) for problem in self.problems], "problems_not_listed": more}
        return {"ok": self.is_complete, **self.counts, **problems, **kept}


@dataclass(slots=True, kw_only=True)
class ImportReport(_Report):
    """Counts of an import, or with `dry_run` of what it would do.

    Attributes:
        conversations: Records read, including bad ones.
        imported: Conversations created by this import.
        extended: Conversations of which the missing rest was written.
        unchanged: Conversations that were complete already.
        messages: Messages written.
        known: Messages stored already.
        left_out: Conversations that were not imported, or not completed.
        messages_left_out: Messages left out of imported conversations (``skip_messages``).
        changed: Differences from the source, such as a message with a new id.
        problems: The first problems.
        on_problem: Called with each problem.
    """

    conversations: int = 0
    imported: int = 0
    extended: int = 0
    unchanged: int = 0
    messages: int = 0
    known: int = 0

    def settle(self, outcome: Literal["imported", "extended", "unchanged"]) -> None:
        """Count a finished conversation by its outcome."""
        setattr(self, outcome, getattr(self, outcome) + 1)

    def add(self, part: ImportReport) -> None:
        """Add the counts of another import; its problems are noted one by one."""
        for name, number in part.counts.items():
            setattr(self, name, getattr(self, name) + number)


@dataclass(slots=True, kw_only=True)
class ExportReport(_Report):
    """Counts of an export.

    Attributes:
        conversations: Conversations written.
        messages: Their messages.
        size: Bytes written.
        left_out: Conversations that could not be written.
        messages_left_out: Turns left out of conversations that were written ("fine-tuning").
        changed: Conversations that lost fields which the format cannot hold, such as artifacts.
        problems: The first problems.
        on_problem: Called with each problem.
    """

    conversations: int = 0
    messages: int = 0
    size: int = 0

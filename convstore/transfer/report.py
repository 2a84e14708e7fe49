"""What an import or an export did: counts, and everything that was not taken over as it was.

Layer 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from convstore.transfer.records import Problem

__all__ = ["MOST_PROBLEMS", "ExportReport", "ImportReport"]

MOST_PROBLEMS = 1_000
"""Problems that a report holds; `on_problem` is told all of them."""


@dataclass(slots=True, kw_only=True)
class _Report:
    """What both have."""

    on_problem: Callable[[Problem], object] = field(default=lambda _: None, repr=False)
    problems: list[Problem] = field(default_factory=list)
    left_out: int = 0
    messages_left_out: int = 0
    changed: int = 0

    def note(self, problem: Problem) -> None:
        """Count a problem, tell it, and keep it if there is room."""
        self.left_out += problem.what == "conversation"
        self.messages_left_out += problem.what == "message"
        self.changed += problem.what == "changed"
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        self.on_problem(problem)

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out."""
        return not self.left_out and not self.messages_left_out

    def _as_json(self, *names: str) -> dict[str, Any]:
        kept = [
            {"what": one.what, "where": one.where, "conversation": one.conversation, "reason": one.reason}
            for one in self.problems
        ]
        more = self.left_out + self.messages_left_out + self.changed - len(kept)
        counts = {name: getattr(self, name) for name in (*names, "left_out", "messages_left_out", "changed")}
        return {"ok": self.is_complete, **counts, "problems": kept, "problems_not_listed": more}


@dataclass(slots=True, kw_only=True)
class ImportReport(_Report):
    """What an import did, or with `dry_run` would do.

    Attributes:
        conversations: Records that were read, bad ones too.
        imported: Conversations that began with this import.
        extended: Conversations that were there in part and got the rest.
        unchanged: Conversations that were there already.
        messages: Messages written.
        known: Messages that were there already.
        left_out: Conversations of which nothing, or not the rest, was taken over.
        messages_left_out: Messages left out of conversations that were taken over (``skip_messages``).
        changed: What was taken over otherwise than it was, such as a message with a new id.
        problems: The first of what was left out or changed.
        on_problem: Told each of them.
    """

    conversations: int = 0
    imported: int = 0
    extended: int = 0
    unchanged: int = 0
    messages: int = 0
    known: int = 0

    def settle(self, outcome: Literal["imported", "extended", "unchanged"]) -> None:
        """Count a conversation that is through."""
        self.imported += outcome == "imported"
        self.extended += outcome == "extended"
        self.unchanged += outcome == "unchanged"

    def as_json(self) -> dict[str, Any]:
        """The report for a program."""
        return self._as_json("conversations", "imported", "extended", "unchanged", "messages", "known")


@dataclass(slots=True, kw_only=True)
class ExportReport(_Report):
    """What an export did.

    Attributes:
        conversations: Conversations written.
        messages: Their messages.
        size: Bytes written.
        left_out: Conversations that could not be written.
        messages_left_out: Turns left out of conversations that were written ("fine-tuning").
        changed: What the format cannot hold: artifacts, for example.
        problems: The first of what was left out or changed.
        on_problem: Told each of them.
    """

    conversations: int = 0
    messages: int = 0
    size: int = 0

    def as_json(self) -> dict[str, Any]:
        """The report for a program."""
        return self._as_json("conversations", "messages", "size")

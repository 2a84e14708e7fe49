"""Figures of a replay: summed over conversations, printed as a table or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.output import compact, new_table, plain
from convstore.values.plain import counted, percent

_SHOWN_PROBLEMS = 20
_LEGEND = """
tokens: over all loads, the whole log and what the view has of it
context saved: what views save of the results of earlier turns
stable: views that the view of the next turn begins with
ms: median and 95th percentile
"""


@dataclass(slots=True)
class FileReport:
    """Measurements over the conversations of one file.

    Attributes:
        size: Bytes of the file that were read.
        tokens_full: Over all loads, the log with every result in full.
        tokens_loaded: Over all loads, the view.
        context_full: Over all loads, characters of the results of earlier turns in the view, in full.
        context_shown: The same as the view shows them.
        prefixes: Views that another one followed in the same conversation.
        stable: Those that the next one began with.
        pages: Pages read back.
        sources: Sources read by number.
        unreachable: Characters that no page holds.
        append_ms: Time of each append.
        load_ms: Time of each load.
    """

    file: str
    size: int = 0
    conversations: int = 0
    messages: int = 0
    loads: int = 0
    tokens_full: int = 0
    tokens_loaded: int = 0
    context_full: int = 0
    context_shown: int = 0
    prefixes: int = 0
    stable: int = 0
    pages: int = 0
    sources: int = 0
    unreachable: int = 0
    append_ms: list[float] = field(default_factory=list)
    load_ms: list[float] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)

    def note(self, conversation: str, what: str) -> None:
        """Add a broken promise: its conversation and a description."""
        self.problems.append({"file": self.file, "conversation": conversation, "what": what})

    @property
    def reduction(self) -> float | None:
        """Return the share of tool context that the views save; None if no view had any."""
        return 1 - self.context_shown / self.context_full if self.context_full else None

    @property
    def stability(self) -> float | None:
        """Return the share of views that the next view starts with; None without a next view."""
        return self.stable / self.prefixes if self.prefixes else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures of one file as a JSON document."""
        same = ("file", "conversations", "messages", "loads", "tokens_full", "tokens_loaded")
        return {name: getattr(self, name) for name in same} | {
            "tool_context": {
                "characters_full": self.context_full,
                "characters_shown": self.context_shown,
                "reduction": self.reduction,
            },
            "prefix": {"stable": self.stable, "total": self.prefixes, "stability": self.stability},
            "read_back": {
                "pages": self.pages,
                "sources": self.sources,
                "unreachable_characters": self.unreachable,
            },
            "append_ms": _times(self.append_ms),
            "load_ms": _times(self.load_ms),
            "errors": len(self.problems),
        }


def print_report(console: Console, *, reports: Sequence[FileReport], kept: str) -> None:
    """Print the table of all files and the first problems, within 80 columns; `kept` is the user of what stays."""
    console.print(_table(reports))
    console.print(_LEGEND, style="dim")
    full, shown = (
        sum(getattr(report, name) for report in reports)
        for name in ("context_full", "context_shown")
    )
    if full:
        console.print(f"Tool context: saved {_percent(max(0.0, 1 - shown / full))}.")
    problems = [problem for report in reports for problem in report.problems]
    if not problems:
        pages, sources = (
            sum(getattr(report, name) for report in reports) for name in ("pages", "sources")
        )
        console.print(
            f"Read back: {counted(pages, 'page')} by message, {counted(sources, 'source')} by number."
        )
        console.print("Nothing lost, changed or unreachable; every view is valid.", style="green")
    for problem in problems[:_SHOWN_PROBLEMS]:
        console.print(Text(plain("{file}, {conversation}: {what}".format(**problem)), style="red"))
    if len(problems) > _SHOWN_PROBLEMS:
        console.print(
            f"… and {len(problems) - _SHOWN_PROBLEMS} more; --json names them all.", style="red"
        )
    if kept:
        console.print(
            f"The conversations stay in the database, with user_id {kept!r}.", soft_wrap=True
        )


def _percent(share: float | None) -> str:
    """Format a share with one decimal; a dash for None."""
    return "-" if share is None else f"{percent(share, decimals=1)}%"


def _table(reports: Sequence[FileReport]) -> Table:
    table = new_table(padding=(0, 1, 0, 0))
    table.add_column("file\n", overflow="fold", min_width=14)
    for heading in (
        *("convs\n", "msgs\n", "tokens\nfull", "\nview", "context\nsaved"),
        *("stable\n", "append\nms", "load\nms", "errors\n"),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for report in reports:
        table.add_row(*_row(report))
    return table


def _row(report: FileReport) -> list[str | Text]:
    errors = len(report.problems)
    return [
        plain(report.file.removesuffix(".gz").removesuffix(".jsonl")),
        str(report.conversations),
        str(report.messages),
        compact(report.tokens_full),
        compact(report.tokens_loaded),
        _percent(report.reduction),
        _percent(report.stability),
        _median_and_p95(report.append_ms),
        _median_and_p95(report.load_ms),
        Text(str(errors), style="red" if errors else "green"),
    ]


def _times(times: Sequence[float]) -> dict[str, float | None]:
    return {"median": _quantile(times, 0.5), "p95": _quantile(times, 0.95)}


def _median_and_p95(times: Sequence[float]) -> str:
    both = [_quantile(times, part) for part in (0.5, 0.95)]
    return "/".join(
        "-" if number is None else f"{number:.1f}" if number < 100 else f"{number:.0f}"
        for number in both
    )


def _quantile(times: Sequence[float], part: float) -> float | None:
    ordered = sorted(times)
    return round(ordered[math.ceil(part * len(ordered)) - 1], 3) if ordered else None

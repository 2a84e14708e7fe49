"""A progress bar for long work on a terminal, and the problems of an import or export."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich.table import Column
from rich.text import Text

from convstore.cli.output import plain, screen
from convstore.exceptions import CorruptDocumentError, InvalidInputError, NotSetUpError
from convstore.values.addresses import without_addresses
from convstore.values.plain import counted

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.transfer import ExportReport, ImportReport, Problem

Advance = Callable[[int, int, str], None]
"""Function that shows a position, the number of conversations so far, and counts in words."""

_SHOWN_PROBLEMS = 20
_COUNTED = re.compile(r" \([\d,]+ messages?\)")


async def totals_for(
    store: ConversationStore, *, quiet: bool = False, **scope: str
) -> tuple[int, int]:
    """Return the numbers of conversations and messages for a progress bar; 0 without a bar, or if they are unknown."""
    with suppress(NotSetUpError, CorruptDocumentError):  # the work itself reports them
        if not quiet and screen(stderr=True).is_terminal:
            stats = await store.stats(sizes=False, **scope)
            return stats.conversations, stats.messages
    return 0, 0


@contextmanager
def progress(name: str = "", total: int = 0, *, quiet: bool = False) -> Iterator[Advance]:
    """Show a bar with the remaining time and the rate if stderr is a terminal; `total` is 0 if it is not known."""
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _position, _conversations, _words: None
        return
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    rest = TextColumn(
        "{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    columns = (
        BarColumn(12),
        TaskProgressColumn(),
        TimeRemainingColumn(table_column=Column(min_width=7)),
        rest,
    )
    started = time.monotonic()
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task(plain(name), total=total or None)

        def advance(position: int, conversations: int, words: str) -> None:
            rate = conversations / max(time.monotonic() - started, 0.1)
            shown = f"{rate:,.1f}/s" if rate < 10 else f"{rate:,.0f}/s"
            bar.update(task, completed=position, description=f"{shown}, {plain(words)}")

        yield advance


@contextmanager
def problems_to(path: Path | None) -> Iterator[Callable[[Problem], None]]:
    """Yield a function that writes each problem to a file; without a file it does nothing."""
    if path is None:
        yield lambda _: None
        return
    try:
        file: IO[str] = path.open("w", encoding="utf-8")
    except OSError as error:
        name = without_addresses(str(path))
        raise InvalidInputError(f"{name} cannot be written: {error.strerror or error}") from error
    with file:
        yield lambda problem: print(json.dumps(asdict(problem)), file=file, flush=True)


def counts_of(report: ImportReport | ExportReport) -> str:
    """Return the numbers of conversations and messages in words."""
    return f"{counted(report.conversations, 'conversation')}, {counted(report.messages, 'message')}"


def print_problems(report: ImportReport | ExportReport, *, more: str, stderr: bool = False) -> None:
    """Print the first problems, those with the same reason in one line; counts of messages may differ."""
    console = screen(stderr=stderr)
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in report.problems:
        reason = _COUNTED.sub("", problem.reason)
        alike.setdefault((problem.what, reason), []).append(problem)
    shown = list(alike.values())[:_SHOWN_PROBLEMS]
    for problems in shown:
        style = "yellow" if problems[0].what == "changed" else "red"
        console.print(Text(plain(_line(problems)), style=style), soft_wrap=True)
    rest = report.left_out + report.messages_left_out + report.changed - sum(map(len, shown))
    if rest:
        console.print(f"… and {rest:,} more; {more}.", style="red", soft_wrap=True)


def _line(problems: Sequence[Problem]) -> str:
    first = problems[0]
    what = "changed" if first.what == "changed" else "left out"
    is_named = re.search(rf"(?<!\w){re.escape(first.conversation)}(?!\w)", first.where)
    name = "" if is_named else f" ({first.conversation[:80]})"
    others = ""
    if more := len(problems) - 1:
        others = f" and {counted(more, 'other')}"
    is_same = all(problem.reason == first.reason for problem in problems)
    reason = first.reason if is_same else _COUNTED.sub("", first.reason)
    return f"{what}: {first.where[:200]}{name}{others}: {reason[:400]}"

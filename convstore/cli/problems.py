"""Progress and problems of an import or export, as people see them on a terminal.

Floor 8. ``import_`` and ``export`` print with it; counts come from the reports of `convstore.transfer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from convstore.cli.output import plain, screen
from convstore.transfer import ExportReport, ImportReport, Problem

__all__ = ["print_problems", "progress"]

_SHOWN_PROBLEMS = 20


@contextmanager
def progress(name: str, total: int, *, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr, if a person looks at it; told how far it is and a few words."""
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _place, _words: None
        return
    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(plain(name), total=total or None)
        yield lambda place, words: bar.update(task, completed=place, description=plain(words))


def print_problems(report: ImportReport | ExportReport, *, more: str, stderr: bool = False) -> None:
    """The first things that were left out or changed, each on a line; those with the same reason on one."""
    console = screen(stderr=stderr)
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in report.problems:
        alike.setdefault((problem.what, problem.reason), []).append(problem)
    shown = list(alike.values())[:_SHOWN_PROBLEMS]
    for problems in shown:
        style = "yellow" if problems[0].what == "changed" else "red"
        console.print(Text(plain(_told(problems)), style=style), soft_wrap=True)
    rest = report.left_out + report.messages_left_out + report.changed - sum(map(len, shown))
    if rest:
        console.print(f"… and {rest:,} more; {more}.", style="red", soft_wrap=True)


def _told(problems: Sequence[Problem]) -> str:
    first = problems[0]
    what = {"conversation": "left out", "message": "message left out", "changed": "changed"}[first.what]
    name = f" ({first.conversation[:80]})" if first.conversation not in ("", first.where) else ""
    more = len(problems) - 1
    others = f" and {more:,} other{'' if more == 1 else 's'}" if more else ""
    return f"{what}: {first.where[:200]}{name}{others}: {first.reason[:400]}"

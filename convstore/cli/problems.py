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
    """Show a progress bar if stderr is a terminal; yield a function that takes position and description."""
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _position, _words: None
        return
    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(plain(name), total=total or None)
        yield lambda position, words: bar.update(task, completed=position, description=plain(words))


def print_problems(report: ImportReport | ExportReport, *, more: str, stderr: bool = False) -> None:
    """Print the first problems, one line for all with the same reason."""
    console = screen(stderr=stderr)
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in report.problems:
        alike.setdefault((problem.what, problem.reason), []).append(problem)
    shown = list(alike.values())[:_SHOWN_PROBLEMS]
    for problems in shown:
        style = "yellow" if problems[0].what == "changed" else "red"
        console.print(Text(plain(_line(problems)), style=style), soft_wrap=True)
    rest = report.left_out + report.messages_left_out + report.changed - sum(map(len, shown))
    if rest:
        console.print(f"… and {rest:,} more; {more}.", style="red", soft_wrap=True)


def _line(problems: Sequence[Problem]) -> str:
    first = problems[0]
    what = {"conversation": "left out", "message": "message left out", "changed": "changed"}[first.what]
    name = f" ({first.conversation[:80]})" if first.conversation not in ("", first.where) else ""
    more = len(problems) - 1
    others = f" and {more:,} other{'' if more == 1 else 's'}" if more else ""
    return f"{what}: {first.where[:200]}{name}{others}: {first.reason[:400]}"

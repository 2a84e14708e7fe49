"""The option ``--server`` of ``convstore doctor``: test a server and print the features that it lacks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from convstore.cli.options import wrong_usage
from convstore.cli.output import FOUND, Answer, plain
from convstore.values.environment import DEFAULT_DATABASE
from convstore.values.plain import counted

if TYPE_CHECKING:
    from convstore.values.reports import ProbedConstruct, ServerReport


_INDENT = 2
_HEADINGS = {
    "supported": ("supported", "green"),
    "replaced": ("replaced: a store works without these", "yellow"),
    "missing": ("missing", "red"),
    "not_tried": ("not tried", "yellow"),
}
_CLOCK_SECONDS = 1.0
"""Minimum difference of clocks for which a report advises to set them."""


async def server_answer(uri: str, address: str, *, seconds: float) -> Answer:
    """Test the server at `uri`; `address` is its printable form."""
    from convstore.integration import open_database, probe_server  # noqa: PLC0415 - loads the database driver

    async with AsyncExitStack() as stack:
        with wrong_usage():
            database = await stack.enter_async_context(open_database(uri, default=DEFAULT_DATABASE))
        report = await probe_server(database, seconds=seconds)
    code = 0
    if report.having("missing"):
        code = FOUND
    elif report.having("not_tried"):
        code = 1
    document = {"database": address, **report.model_dump(mode="json"), "ok": code == 0}
    return Answer(lambda: document, lambda console: _print(console, report), code)


def _print(console: Console, report: ServerReport) -> None:
    console.print(plain(_name_of(report)), soft_wrap=True)
    console.print(_clock_text(report.clock_ahead))
    for status, (heading, style) in _HEADINGS.items():
        constructs = report.having(status)
        if not constructs:
            continue
        console.print()
        console.print(heading, style=style)
        if status == "supported":
            names = ", ".join(construct.name for construct in constructs)
            console.print(Padding(Text(names), (0, 0, 0, _INDENT), expand=False))
        elif status == "not_tried":
            _print_open(console, constructs)
        else:
            _print_lacking(console, constructs)
    console.print()
    console.print(_verdict(report), style="dim")


def _name_of(report: ServerReport) -> str:
    if report.server == "MongoDB":
        return f"MongoDB {report.version}, {report.topology}"
    return f"{report.server}, as MongoDB {report.version}, {report.topology}"


def _clock_text(ahead: float) -> str:
    if abs(ahead) < _CLOCK_SECONDS:
        return f"The clocks of this machine and the server agree to {abs(ahead):.3f} s."
    side = "ahead of" if ahead > 0 else "behind"
    return (
        f"This machine's clock is {abs(ahead):,.1f} s {side} the server's: set both by the same "
        "time service. "
        "Leases and sweeps go by the server's clock, dates in listings by that of the writer."
    )


def _print_lacking(console: Console, constructs: list[ProbedConstruct]) -> None:
    for construct in constructs:
        _print_indented(console, construct.name, 1)
        label = "instead" if construct.status == "replaced" else "without it"
        _print_indented(console, f"{label}: {construct.without}", 2)
        code = "" if construct.code is None else f" {construct.code}"
        _print_indented(console, f"server{code}: {construct.reason}", 2, style="dim")


def _print_open(console: Console, constructs: list[ProbedConstruct]) -> None:
    """Print each reason once, with the names of all constructs that could not be tested because of it."""
    names_by_reason: dict[str, list[str]] = {}
    for construct in constructs:
        names_by_reason.setdefault(construct.reason, []).append(construct.name)
    for reason, names in names_by_reason.items():
        _print_indented(console, ", ".join(names), 1)
        _print_indented(console, reason, 2, style="dim")


def _print_indented(console: Console, text: str, depth: int, *, style: str = "") -> None:
    indented = Padding(Text(plain(text), style=style), (0, 0, 0, _INDENT * depth), expand=False)
    console.print(indented)


def _verdict(report: ServerReport) -> str:
    missing = len(report.having("missing"))
    replaced = len(report.having("replaced"))
    open_ones = len(report.having("not_tried"))
    if missing:
        lacking = counted(missing, "construct")
        return f"A store does not keep its promises here: {lacking} missing."
    if open_ones:
        return f"{counted(open_ones, 'construct')} could not be tried, so nothing is certain."
    if replaced:
        return f"A store works here; {counted(replaced, 'construct')} replaced."
    return "This server has everything that a store uses."

"""Everything that the command line says: to people on a terminal, to programs as JSON, and errors in one line.

Talks to all commands. Text of others (ids, contents, errors of the server) is made harmless before it is printed, and
addresses of databases, which may hold passwords, are left out of errors.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from convstore.exceptions import ConvstoreError, StoreUnavailableError
from convstore.values.addresses import without_addresses

__all__ = ["compact", "percent", "plain", "run", "screen", "short", "table_of", "write_json"]

_Result = TypeVar("_Result")

_UNAVAILABLE = "Check that the server runs and that the address is right"
_LONGEST_ERROR = 600


def screen(*, stderr: bool = False) -> Console:
    """A console that takes text as it is; without colours and 80 columns wide when it is not a terminal."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def run(work: Coroutine[Any, Any, _Result], *, as_document: bool = False) -> _Result:
    """Do the work of a command; an error of ours becomes one line on stderr and exit code 1.

    Args:
        work: What is to be done.
        as_document: Say the error in a JSON document on stdout, too.
    """
    try:
        return asyncio.run(work)
    except ConvstoreError as error:
        if as_document:
            write_json({"error": _line(error)})
        typer.echo(f"convstore: {_line(error)}", err=True)
        raise typer.Exit(1) from error


def table_of(headings: tuple[str, str], rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(headings[0])
    table.add_column(headings[1], justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def write_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout, in ASCII, so that any terminal and any program can read it."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def plain(text: str) -> str:
    r"""A text on one line, without what could steer a terminal or what it cannot show.

    >>> plain("a\x1b[31m\nb")
    'a [31m b'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def short(text: str, *, most: int) -> str:
    """The beginning of a text, on one line.

    >>> short("one two three", most=8)
    'one two…'
    """
    line = " ".join(plain(text[: most * 2]).split())
    return line if len(line) <= most and len(text) <= most * 2 else f"{line[: most - 1].rstrip()}…"


def compact(number: float) -> str:
    """A count in at most five characters.

    >>> compact(950), compact(13_071), compact(2_500_000)
    ('950', '13.1k', '2.50M')
    """
    for limit, unit in ((1_000, ""), (999_950, "k"), (999_950_000, "M")):
        if number < limit:
            size = number / (limit / 1_000 if unit else 1)
            return f"{size:.{0 if not unit else max(0, 3 - len(str(int(size))))}f}{unit}"
    return f"{number / 1e9:.1f}G"


def percent(part: float | None) -> str:
    """A part of one as percent, rounded down, so that only the whole is 100.0; a dash for none.

    >>> percent(0.97777), percent(0.99999), percent(None)
    ('97.7%', '99.9%', '-')
    """
    return "-" if part is None else f"{int(part * 1_000) / 10:.1f}%"


def _line(error: ConvstoreError) -> str:
    text = short(without_addresses(str(error)), most=_LONGEST_ERROR)
    return f"{text}. {_UNAVAILABLE}" if isinstance(error, StoreUnavailableError) else text

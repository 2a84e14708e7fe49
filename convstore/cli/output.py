"""Output of the command line: text for terminals, JSON for programs, and errors in one line.

Untrusted text (ids, contents, server errors) is escaped before it is printed. Addresses of databases, which may contain
passwords, are removed from errors.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from convstore.cli.invocation import pip_name
from convstore.exceptions import ConvstoreError, MissingExtraError
from convstore.values.addresses import without_addresses

FOUND = 3
"""Exit code of a complete check with findings that were not repaired; 1 means that the check failed."""

_LONGEST_ERROR = 600
_KINDS = {
    "entries": "log documents",
    "payloads": "large results",
    "payload_chunks": "pieces of large results",
    "search_segments": "search index documents",
    "sub_agents": "of these, of sub-agents",
}
_ESCAPES = dict.fromkeys("\n\t\r\v\f\u2028\u2029", " ")


def screen(*, stderr: bool = False) -> Console:
    """Return a console without markup; if it is not a terminal, it has 80 columns and does not print colours."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def is_terminal() -> bool:
    """Return True if stdout is a terminal; environment variables for colours have no effect."""
    return sys.stdout.isatty()


class Answer(NamedTuple):
    """Result of a command: functions for its JSON document and for printing it, the exit code, and if it is long."""

    document: Callable[[], Any]
    show: Callable[[Console], object]
    code: int = 0
    is_long: bool = False


def answer(
    work: Coroutine[Any, Any, Answer | None], *, as_document: bool, database: str = ""
) -> None:
    """Run the work of a command and print its answer, a long one in a pager.

    A line on stderr names the database, if one is given. A `ConvstoreError` becomes one line on stderr, with
    `as_document` also a JSON document, and exit code 1.
    """
    answers: list[Answer | None] = []

    async def keep_answer() -> None:
        answers.append(await work)

    try:
        # The task returns None, because asyncio would format a returned answer twice: a whole conversation.
        asyncio.run(keep_answer())
    except ConvstoreError as error:
        if as_document:
            write_json({"error": _line(error)})
        typer.echo(f"convstore: {_line(error)}", err=True)
        raise typer.Exit(1) from error
    [found] = answers
    if found and as_document:
        write_json(found.document())
    elif found:
        if database:
            screen(stderr=True).print(f"Database: {database}", style="dim", soft_wrap=True)
        console = screen()
        os.environ.setdefault("LESS", "-FRX")  # less exits at once if everything fits on the screen
        with console.pager(styles=True) if found.is_long and console.is_terminal else nullcontext():
            found.show(console)
    if found and found.code:
        raise typer.Exit(found.code)


def new_table(*columns: str, numbers: Iterable[str] = (), **options: Any) -> Table:
    """Return an empty table without lines; columns in `numbers` are aligned to the right and never cut."""
    table = Table(
        box=None, pad_edge=False, header_style="bold", **{"padding": (0, 2, 0, 0), **options}
    )
    for name in columns:
        is_number = name in numbers
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
        )
    return table


def table_of(headings: tuple[str, str], rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and numbers."""
    table = new_table(*headings, numbers=headings[1:])
    for row in rows:
        table.add_row(*row)
    return table


def kind_label(name: str) -> str:
    """Return the readable name of a kind of documents, from the name of a report's field.

    >>> kind_label("payload_chunks"), kind_label("summaries")
    ('pieces of large results', 'summaries')
    """
    return _KINDS.get(name, name.replace("_", " "))


def write_json(document: Any) -> None:
    """Print a document in the form of `json_values`.

    Only unprintable characters are escaped, and those that the encoding of stdout does not have.
    """
    from convstore.values.json_form import json_values  # noqa: PLC0415 - a command without --json does not need it

    text = json.dumps(json_values(document), indent=2, ensure_ascii=False)
    signs = {ord(sign): _in_json(sign) for sign in set(text) - {"\n"}}
    sys.stdout.write(text.translate(signs) + "\n")


def _in_json(character: str) -> str:
    r"""Return a character of a JSON document, escaped if it is unprintable or stdout cannot encode it.

    >>> print(_in_json("é"), _in_json("\u202e"), _in_json("\U000e0001"))
    é \u202e \udb40\udc01
    """
    is_kept = character.isprintable() and character.encode(sys.stdout.encoding or "utf-8", "ignore")
    return character if is_kept else json.dumps(character)[1:-1]


def plain(text: str, *, lines: bool = False) -> str:
    r"""Return a text in which control and other unprintable characters are escaped.

    Args:
        text: Any text; the result cannot control a terminal.
        lines: Keep its lines; otherwise they are joined.

    >>> print(plain("a\x1b[31m\nb\u202e"))
    a\x1b[31m b\u202e
    """
    if lines:
        return "\n".join(plain(line) for line in text.replace("\r\n", "\n").split("\n"))
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else _ESCAPES.get(char) or ascii(char)[1:-1] for char in text
    )


def short(text: str, *, maximum: int) -> str:
    """Return the beginning of a text, on one line.

    >>> short("one two three", maximum=8)
    'one two…'
    """
    line = " ".join(plain(text[: maximum * 2]).split())
    if len(line) <= maximum and len(text) <= maximum * 2:
        return line
    return f"{line[: maximum - 1].rstrip()}…"


def compact(number: float) -> str:
    """Format a count in at most five characters.

    >>> compact(950), compact(13_071), compact(2_500_000)
    ('950', '13.1k', '2.50M')
    """
    for limit, unit in ((1_000, ""), (999_950, "k"), (999_950_000, "M")):
        if number < limit:
            size = number / (limit / 1_000 if unit else 1)
            return f"{size:.{0 if not unit else max(0, 3 - len(str(int(size))))}f}{unit}"
    return f"{number / 1e9:.1f}G"


def _line(error: ConvstoreError) -> str:
    text = short(without_addresses(str(error)), maximum=_LONGEST_ERROR)
    is_extra = isinstance(error, MissingExtraError)
    return text.replace("run: pip ", f"run: {pip_name()} ") if is_extra else text

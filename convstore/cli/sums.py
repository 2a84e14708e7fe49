"""``convstore sums``: sum the stored tokens, calls and costs of conversations, by user, model, release and tool."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.options import PriceOptions, StoreTarget, on_database, read_age, read_prices
from convstore.cli.output import Answer, compact, is_terminal, new_table, plain, short
from convstore.cli.progress import progress, totals_for
from convstore.values.plain import counted, money

_ROWS = 20
"""Maximum number of rows in a table; --json has all of them."""
_NAME = 12
"""Minimum width of a name on a terminal; it is wider if the numbers leave space."""
_UNBOUNDED = 100_000
"""Width if stdout is not a terminal, so that names are not cut and lines are not broken."""
_COLUMNS = {
    "cost": "cost",
    "tokens_without_price": "no\nprice",
    "input_tokens": "input",
    "cache_read_tokens": "from\ncache",
    "cache_write_tokens": "to\ncache",
    "output_tokens": "output",
    "number": "number",
    "conversations": "conv.",
    "calls": "calls",
    "turns": "turns",
    "failed": "failed",
    "tokens": "tokens",
    "tokens_p50": "p50",
    "tokens_p95": "p95",
    "read_back": "read back",
}
"""Fields of the document that tables show, with the headings of their columns."""
_CACHE = ("cache_read_tokens", "cache_write_tokens")
_SIZES = ("tokens", "tokens_without_price", "input_tokens", "output_tokens", *_CACHE)
"""Fields that are printed in at most five characters."""


@on_database
async def sums_command(
    target: StoreTarget,
    *,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only conversations changed since: 1h, 7d.")
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Read the logs too: tools, replaced answers, summaries.")
    ] = False,
    price: PriceOptions = None,
) -> Answer:
    """Sum the stored tokens of conversations and the tokens that providers billed.

    \b
    In total, by model, and by each scope key and field of metadata whose values
    several conversations share. Conversations are summed completely, also with
    --since. Input, output and cost cover all model calls, as the providers
    counted them, including those of replaced answers. All sums include
    sub-agents, except the numbers of conversations and turns.

    \b
    --tools also reads each log, without large results: calls, failures and sizes
    of results by tool, answers that were regenerated or rewound, and summaries.
    Without it, the totals of each conversation are read, 200 with one command,
    and those of its sub-agents.

    \b
    Examples:
      convstore sums
      convstore sums --since 7d --tools
      convstore sums --price gpt-5=1.25,10,0.125 --scope user_id=ada
      convstore sums --json | jq '.by.user_id[] | [.name, .cost]'
    """
    from convstore.edges import each_conversation  # noqa: PLC0415 - loads the database driver
    from convstore.ext.sums import Sums  # noqa: PLC0415 - as above

    prices = read_prices(price)
    start = datetime.now(UTC) - read_age(since) if since else None
    quiet = target.as_document
    async with target.open() as store:
        sums = Sums([key for key in store.scope_keys if key not in target.chosen], prices)
        total, _ = await totals_for(store, quiet=quiet, **target.chosen)
        with progress("adding", total, quiet=quiet) as advance:
            found = each_conversation(store, target.chosen, since=start)
            async with aclosing(found) as conversations:
                async for info in conversations:
                    await sums.add_family(store, info)
                    if tools:
                        await sums.read(store, info)
                    number = sums.together.number
                    advance(number, number, counted(number, "conversation"))
    document = {"database": target.address, "since": start, **sums.document()}
    return Answer(lambda: document, lambda console: _show(console, document, prices), is_long=True)


def _show(console: Console, document: dict[str, Any], priced: Collection[str] = ()) -> None:
    """Print the tables, then notes on missing data, such as models without a price."""
    together = document["together"]
    if not together["conversations"]:
        console.print("There are no such conversations.", style="yellow")
        return
    if not is_terminal():
        console.width = _UNBOUNDED
    fields = _fields(together)
    # a scope key may be named "model" or "tool", too
    tables = [
        ("", [together]),
        *document["by"].items(),
        ("model", document["models"]),
        ("tool", document.get("tools")),
        ("of these, and apart", document["apart"]),
    ]
    for title, rows in tables:
        if rows:
            shown = [name for name in fields if name in rows[0]]
            console.print(_table(title, rows, shown, console.width))
            console.print()
    for line in (*_notes(document), *_notes_of_prices(document, priced)):
        console.print(Text(line, style="dim"))


def _fields(together: dict[str, Any]) -> list[str]:
    """Return the fields to print, without unknown ones of the cache and of costs."""
    hidden = {name for name in (*_CACHE, "tokens_without_price") if not together[name]}
    if together["cost"] is None:
        hidden |= {"cost", "tokens_without_price"}
    return [name for name in _COLUMNS if name not in hidden]


def _table(title: str, rows: Sequence[dict[str, Any]], fields: Sequence[str], width: int) -> Table:
    """Return a table of the first rows; names get the width that numbers leave, and a last row counts the others."""
    columns = [_COLUMNS[field] for field in fields]
    cells = [[_cell(field, row[field]) for field in fields] for row in rows[:_ROWS]]
    headings = [max(column.split(), key=len) for column in columns]
    taken = [2 + max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    room = max(_NAME, width - sum(taken) - 2)
    table = new_table(short(title, maximum=room), *columns, numbers=columns)
    for row, numbers in zip(rows, cells, strict=False):
        name = _cut(row["name"], room) or "(none)"
        table.add_row(Text(name), *numbers)
    if len(rows) > _ROWS:
        table.add_row(Text(f"… {len(rows) - _ROWS:,} more in --json", style="dim"))
    return table


def _cut(name: str, room: int) -> str:
    """Return a name on one line; a longer one is cut in the middle, because similar names often differ at the end.

    >>> _cut("customer-0001-north", 12)
    'custom…north'
    """
    line = " ".join(plain(name).split())
    if len(line) <= room:
        return line
    end = (room - 1) // 2
    return f"{line[: room - 1 - end]}…{line[-end:]}"


def _cell(field: str, value: float | None) -> str:
    if value is None:
        return "-"
    if field == "cost":
        return money(value)
    return compact(value) if field in _SIZES else f"{value:,}"


def _notes(document: dict[str, Any]) -> Iterator[str]:
    """Yield a note for each kind of data that could not be read."""
    if document["damaged"]:
        yield f"{counted(document['damaged'], 'conversation')} damaged; run convstore doctor."
    if document.get("logs_not_read"):
        unread = counted(document["logs_not_read"], "conversation")
        yield f"The logs of {unread}, or of their sub-agents, could not all be read."
    if document["without_sub_agents"]:
        number = counted(document["without_sub_agents"], "conversation")
        yield f"The sub-agents of {number} could not be read."


def _notes_of_prices(document: dict[str, Any], priced: Collection[str]) -> Iterator[str]:
    """Yield a note on models without a price, and one on prices of models without billed tokens."""
    billed = [model["name"] for model in document["models"]]
    unused = [name for name in priced if name not in billed]
    if unused:
        yield f"Nothing was billed for: {short(', '.join(unused), maximum=300)}."
    without = [name for name in billed if name not in priced]
    if priced and without:
        yield f"Without a price: {short(', '.join(without), maximum=300)}."

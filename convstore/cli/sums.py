"""``convstore sums``: what all conversations stored, called and cost, by user, model, release and tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.options import PriceOptions, Target, on_database, read_age, read_prices
from convstore.cli.output import Answer, compact, new_table, short
from convstore.cli.progress import progress, totals_for
from convstore.values.plain import counted

if TYPE_CHECKING:
    from convstore.ext.sums import GroupSum, LogSums, Sums, ToolSum

_ROWS = 20
"""Rows of a table; --json has all."""
_NAME = 40


@on_database
async def sums_command(
    target: Target,
    *,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only conversations changed since: 1h, 7d.")
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Read the logs too: tools, replaced answers, summaries.")
    ] = False,
    price: PriceOptions = None,
) -> Answer:
    """Sum what conversations stored and what providers billed.

    \b
    Together, by each scope key and field of metadata whose values several
    conversations share, and by model. Whole conversations are summed, also with
    --since. Those of sub-agents are left out. Billed are all calls of models, as
    the providers counted them, replaced answers included.

    \b
    --tools reads each log, without large results: calls, failures and sizes of
    results by tool, answers that were regenerated or rewound, summaries, and
    the conversations of sub-agents.
    Else it reads the totals of each conversation, 200 with one command.

    \b
    Examples:
      convstore sums
      convstore sums --since 7d --tools
      convstore sums --price gpt-5=1.25,10,0.125 --scope user_id=ada
      convstore sums --json | jq '.by.user_id[] | [.name, .cost]'
    """
    from convstore.edges import each_conversation  # noqa: PLC0415 - loads the database driver
    from convstore.ext.sums import LogSums, Sums  # noqa: PLC0415 - as above

    prices = read_prices(price)
    start = datetime.now(UTC) - read_age(since) if since else None
    quiet = target.as_document
    async with target.open() as store:
        sums = Sums([key for key in store.scope_keys if key not in target.chosen], prices)
        logs = LogSums(prices)
        total, _ = await totals_for(store, quiet=quiet, **target.chosen)
        with progress("adding", total, quiet=quiet) as advance:
            found = each_conversation(store, target.chosen, since=start)
            async with aclosing(found) as conversations:
                async for info in conversations:
                    sums.add(info)
                    if tools:
                        await logs.read(store, info)
                    number = sums.together.conversations
                    advance(number, number, counted(number, "conversation"))
    read = logs if tools else None
    head: dict[str, Any] = {"database": target.address, "since": start}
    return Answer(
        lambda: {**head, **sums.document(), **(read.document() if read else {})},
        lambda console: _show(console, sums, read),
        is_long=True,
    )


def _show(console: Console, sums: Sums, logs: LogSums | None) -> None:
    """Print the tables."""
    if not sums.together.conversations:
        console.print("There are no such conversations.", style="yellow")
        return
    columns = _Columns(sums)
    tables = [columns.table("", [sums.together])]
    tables += [columns.table(title, groups) for title, groups in sums.tables().items()]
    if sums.models:
        tables.append(columns.table("model", sums.by_model(), is_billed=True))
    if logs:
        tables += _tables_of_logs(columns, logs)
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)
    for line in _notes(sums, logs):
        console.print(Text(line, style="dim"))


class _Columns:
    """The columns that the tables have: those of a cache, and of the cost, only if they are known."""

    def __init__(self, sums: Sums) -> None:
        self._has_cache = any(sums.together.usage[3:])
        self._has_prices = bool(sums.prices)

    def table(self, title: str, groups: Sequence[GroupSum], *, is_billed: bool = False) -> Table:
        """Return the table of some groups; `is_billed` without what is stored."""
        rows = [self.cells(group, is_billed=is_billed) for group in groups[:_ROWS]]
        return _new_table(title, [group.name for group in groups], rows)

    def cells(self, group: GroupSum, *, is_billed: bool = False) -> dict[str, str]:
        """Return the cells of a group by their columns."""
        cells = {"conversations": f"{group.conversations:,}"}
        if not is_billed:
            cells |= {
                "turns": f"{group.turns:,}",
                "tokens": compact(group.tokens),
                "failed": f"{group.failed:,}",
            }
        return cells | self.billed(group)

    def billed(self, group: GroupSum) -> dict[str, str]:
        """Return the cells of what was billed; a dash for what is not known."""
        usage = group.usage
        counts = {"in": usage.input_tokens}
        if self._has_cache:
            counts |= {"from cache": usage.cache_read_tokens, "to cache": usage.cache_write_tokens}
        counts["out"] = usage.output_tokens
        cells = {name: compact(number) if group.billed else "-" for name, number in counts.items()}
        if self._has_prices:
            cells["cost"] = "-" if group.unpriced == group.billed else f"{group.cost:,.2f}"
        return cells


def _new_table(title: str, names: Sequence[str], rows: Sequence[dict[str, str]]) -> Table:
    """Return a table with a row for each of the first names, and a last one that counts the others."""
    columns = list(rows[0])
    table = new_table(title, *columns, numbers=columns)
    table.columns[0].min_width = 12
    for name, cells in zip(names, rows, strict=False):
        table.add_row(Text(short(name, maximum=_NAME) or "(none)"), *cells.values())
    if len(names) > len(rows):
        table.add_row(Text(f"… {len(names) - len(rows):,} more in --json", style="dim"))
    return table


def _tables_of_logs(columns: _Columns, logs: LogSums) -> Iterator[Table]:
    from convstore.ext.sums import by_tool  # noqa: PLC0415 - loads the database driver

    tools = by_tool((), logs.tools)
    if tools:
        rows = [_cells_of_tool(tool) for tool in tools[:_ROWS]]
        yield _new_table("tool", [tool.name for tool in tools], rows)
    if logs.answers:
        cells = {"answers": f"{logs.answers:,}", **columns.billed(logs.replaced)}
        yield _new_table("of the billed", ["replaced"], [cells])
    number, before, after = logs.summaries
    if number:
        sizes = {"number": f"{number:,}", "in": compact(before), "out": compact(after)}
        yield _new_table("not billed", ["summaries"], [sizes])
    if logs.children.conversations:
        yield columns.table("beside these", [logs.children])


def _cells_of_tool(tool: ToolSum) -> dict[str, str]:
    return {
        "calls": f"{tool.calls:,}",
        "failed": f"{tool.failed:,}",
        "tokens": compact(tool.tokens),
        "p50": f"{tool.percentile(50):,}",
        "p95": f"{tool.percentile(95):,}",
        "read back": f"{tool.read_back:,}",
    }


def _notes(sums: Sums, logs: LogSums | None) -> Iterator[str]:
    """Yield what the sums do not know."""
    if sums.damaged:
        yield f"{counted(sums.damaged, 'conversation')} damaged; run convstore doctor."
    if logs and logs.unread:
        yield f"{counted(logs.unread, 'log')} could not be read."
    if without := sums.unpriced():
        yield f"Without a price: {short(', '.join(without), maximum=300)}."

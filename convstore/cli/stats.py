"""``convstore stats``: how much is stored, how it grows, and what stubs and summaries save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.bar import Bar
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, compact, new_table, number_of, percent, table_of
from convstore.values.policy import HistoryPolicy

if TYPE_CHECKING:
    from convstore.types import Growth, StoreStats

_MOST_DAYS, _BAR = 14, 30


@on_database
async def stats_command(
    target: Target,
    *,
    max_tokens: Annotated[int, typer.Option(min=1, help="Budget of each view.")] = HistoryPolicy().max_tokens or 0,
) -> Answer:
    """Show how much is stored, how it grows, and what views save.

    \b
    Tokens are counted as by the stores that appended. "In views" is an estimate
    from these counts, for the next load of each conversation: tool results are
    stubs, what a summary covers is the summary, and a view that leaves turns out
    fills --max-tokens (it is often smaller). Sizes are those of the documents,
    before the server compresses them; the server reads all of them to measure
    them.

    \b
    Examples:
      convstore stats
      convstore stats --scope user_id=ada
      convstore stats --json | jq .bytes
    """
    async with target.open(policy=HistoryPolicy(max_tokens=max_tokens)) as store:
        stats = await store.stats(sizes=True, **target.chosen)
    return Answer(
        lambda: {"database": target.address, **stats.model_dump()}, lambda console: _print(console, stats, max_tokens)
    )


def _print(console: Console, stats: StoreStats, max_tokens: int) -> None:
    counts = {"conversations": stats.conversations, "turns": stats.turns, "messages": stats.messages}
    counts |= {"damaged, not counted; run doctor": stats.damaged} if stats.damaged else {}
    sizes = [(kind, decimal(number)) for kind, number in stats.bytes.items()]
    tables = [
        table_of(("stored", ""), [(name, f"{number:,}") for name, number in counts.items()]),
        table_of(("size", ""), [*sizes, ("together", decimal(sum(stats.bytes.values())))]),
        table_of(("tokens", ""), _tokens(stats, max_tokens)),
        *([_growth_table(stats.growth)] if stats.growth else []),
    ]
    console.print(*[part for table in tables for part in ("", table)][1:])


def _growth_table(growth: Sequence[Growth]) -> Table:
    """Return a row for each of the last days with messages, with a bar of their number, and one for all before."""
    names = ("conversations", "messages", "entries")
    table = new_table("written", *names, numbers=names)
    table.add_column(max_width=_BAR)
    earlier, days = growth[:-_MOST_DAYS], growth[-_MOST_DAYS:]
    most = max(day.messages for day in days)
    rows = ([("earlier", earlier)] if earlier else []) + [(f"{day.day}", [day]) for day in days]
    for name, group in rows:
        conversations, messages = sum(part.conversations for part in group), sum(part.messages for part in group)
        bar = "" if name == "earlier" else Bar(most, 0, messages)
        table.add_row(name, f"{conversations:,}", f"{messages:,}", decimal(sum(part.bytes for part in group)), bar)
    return table


def _tokens(stats: StoreStats, max_tokens: int) -> Iterator[tuple[str, str]]:
    saved = stats.saved_by_stubs + stats.saved_by_summaries + stats.saved_by_budget
    yield "in full", compact(stats.tokens)
    yield "saved by stubs", compact(stats.saved_by_stubs)
    yield f"saved by summaries of {number_of(stats.summarized, 'conversation')}", compact(stats.saved_by_summaries)
    yield "left out by the budget", compact(stats.saved_by_budget)
    yield f"in views of at most {max_tokens:,} each, about", compact(stats.tokens - saved)
    yield "saved, about", percent(saved / stats.tokens if stats.tokens else None)

"""``convstore stats``: how much is stored, how it grows, and what stubs and summaries save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, compact, new_table, number_of, percent, table_of
from convstore.values.policy import HistoryPolicy

if TYPE_CHECKING:
    from convstore.types import Growth, StoreStats

_MOST_DAYS = 14


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
      export CONVSTORE_URI=mongodb://localhost:27017/app
      convstore stats
      convstore stats --scope user_id=ada
      convstore stats --json | jq .bytes
    """
    async with target.open(policy=HistoryPolicy(max_tokens=max_tokens)) as store:
        stats = await store.stats(sizes=True, **target.chosen)
    return Answer(lambda: {"database": target.address, **stats.model_dump()}, lambda console: _print(console, stats))


def _print(console: Console, stats: StoreStats) -> None:
    counts = {"conversations": stats.conversations, "turns": stats.turns, "messages": stats.messages}
    counts |= {"damaged, not counted; run doctor": stats.damaged} if stats.damaged else {}
    console.print(table_of(("stored", ""), [(name, f"{number:,}") for name, number in counts.items()]))
    console.print()
    sizes = [(kind, decimal(number)) for kind, number in stats.bytes.items()]
    console.print(table_of(("size", ""), [*sizes, ("together", decimal(sum(stats.bytes.values())))]))
    console.print()
    console.print(table_of(("tokens", ""), _tokens(stats)))
    if stats.growth:
        console.print()
        table = new_table(
            "written", "conversations", "messages", "entries", numbers=("conversations", "messages", "entries")
        )
        for period, conversations, messages, size in _periods(stats.growth):
            table.add_row(period, f"{conversations:,}", f"{messages:,}", decimal(size))
        console.print(table)


def _tokens(stats: StoreStats) -> Iterator[tuple[str, str]]:
    saved = stats.saved_by_stubs + stats.saved_by_summaries + stats.saved_by_budget
    yield "in full", compact(stats.tokens)
    yield "saved by stubs", compact(stats.saved_by_stubs)
    yield f"saved by summaries of {number_of(stats.summarized, 'conversation')}", compact(stats.saved_by_summaries)
    yield "left out by the budget", compact(stats.saved_by_budget)
    yield "in views, about", compact(stats.tokens - saved)
    yield "saved, about", percent(saved / stats.tokens if stats.tokens else None)


def _periods(growth: Sequence[Growth]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the last days, or the last months if there are more days; each with its sums."""
    form = "%Y-%m-%d" if len(growth) <= _MOST_DAYS else "%Y-%m"
    sums: dict[str, tuple[int, int, int]] = {}
    for one in growth:
        period = f"{one.day:{form}}"
        conversations, messages, size = sums.get(period, (0, 0, 0))
        sums[period] = conversations + one.conversations, messages + one.messages, size + one.bytes
    for period in sorted(sums)[-_MOST_DAYS:]:
        yield period, *sums[period]

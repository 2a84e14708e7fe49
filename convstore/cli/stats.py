"""``convstore stats``: print the amount of stored data, its growth, and the savings by stubs and summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.bar import Bar
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from convstore.cli.options import StoreTarget, on_database
from convstore.cli.output import Answer, compact, kind_label, new_table, table_of
from convstore.values.plain import counted, percent
from convstore.values.policy import HistoryPolicy

if TYPE_CHECKING:
    from convstore.types import Growth, StoreStats

_MOST_DAYS = 14
_BAR = 30
_LOOKED_AT = 100
"""Number of newest conversations that are searched for an answer with a stamp."""

_ORIGINS = {
    "option": "",
    "environment": "The budget of a view is that of CONVSTORE_POLICY; --max-tokens sets another.",
    "stamp": (
        "The budget of a view is that of the newest answer with a stamp; --max-tokens sets another."
    ),
    "default": (
        "The newest conversations have no stamp, so the budget of a view is the default; "
        "set --max-tokens."
    ),
}
_WRITTEN = (
    "What was written includes rewound messages and those of sub-agents; "
    "the messages stored above do not."
)


@on_database
async def stats_command(
    target: StoreTarget,
    *,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Budget of each view; else as above.")
    ] = None,
) -> Answer:
    """Show how much is stored, how it grows, and what views save.

    \b
    Token counts are those of the stores that appended. "In views" is an estimate
    from these counts, for the next load of each conversation: tool results are
    stubs, a summary replaces the messages that it covers, and a view that leaves
    turns out fills its budget (it is often smaller). The budget is --max-tokens,
    else that of CONVSTORE_POLICY, else that of the newest answer with a stamp,
    else the default; the output says which. store.stats() uses its store's.

    \b
    Sizes are those of the documents, before the server compresses them; the
    server reads all documents to measure them. The amount written on a day
    includes rewound messages and those of sub-agents; the totals do not.

    \b
    Examples:
      convstore stats
      convstore stats --scope user_id=ada
      convstore stats --json | jq .bytes
    """
    budget, origin = (max_tokens, "option") if max_tokens else await _budget(target)
    async with target.open(policy=HistoryPolicy(max_tokens=budget)) as store:
        stats = await store.stats(sizes=True, **target.chosen)
    head = {"database": target.address, "max_tokens": budget, "max_tokens_from": origin}
    return Answer(
        lambda: {**head, **stats.model_dump()},
        lambda console: _print(console, stats, budget, _ORIGINS[origin]),
    )


async def _budget(target: StoreTarget) -> tuple[int | None, str]:
    """Return the budget of views, None if it is unlimited, and its origin."""
    if target.policy:
        return target.policy.max_tokens, "environment"
    async with target.open() as store:
        page = await store.list_conversations(
            limit=_LOOKED_AT, everything=not target.chosen, **target.chosen
        )
    calls = (info.last_call for info in page.conversations if info.last_call)
    if call := next(calls, None):
        return call.max_tokens, "stamp"
    return HistoryPolicy().max_tokens, "default"


def _print(console: Console, stats: StoreStats, max_tokens: int | None, origin: str) -> None:
    counts = {
        "conversations": stats.conversations,
        "turns": stats.turns,
        "messages": stats.messages,
    }
    counts |= {"damaged, not counted; run doctor": stats.damaged} if stats.damaged else {}
    sizes = [(kind_label(kind), decimal(number)) for kind, number in stats.bytes.items()]
    tables: list[Table | Text] = [
        table_of(("stored", ""), [(name, f"{number:,}") for name, number in counts.items()]),
        table_of(("size", ""), [*sizes, ("together", decimal(sum(stats.bytes.values())))]),
        table_of(("tokens", ""), _tokens(stats, max_tokens)),
        *([Text(origin, style="dim")] if origin else []),
        *([_growth_table(stats.growth)] if stats.growth else []),
    ]
    if sum(day.messages for day in stats.growth) != stats.messages:
        tables.append(Text(_WRITTEN, style="dim"))
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)


def _growth_table(growth: Sequence[Growth]) -> Table:
    """Return a table with a row for each of the last days with messages, with a bar, and one for all earlier days."""
    names = ("conversations", "messages", "size")
    table = new_table("written", *names, numbers=names)
    table.add_column(max_width=_BAR)
    earlier = growth[:-_MOST_DAYS]
    days = growth[-_MOST_DAYS:]
    most = max(day.messages for day in days)
    rows = ([("earlier", earlier)] if earlier else []) + [(f"{day.day}", [day]) for day in days]
    for name, group in rows:
        conversations = sum(part.conversations for part in group)
        messages = sum(part.messages for part in group)
        bar = "" if name == "earlier" else Bar(most, 0, messages)
        table.add_row(
            name,
            f"{conversations:,}",
            f"{messages:,}",
            decimal(sum(part.bytes for part in group)),
            bar,
        )
    return table


def _tokens(stats: StoreStats, max_tokens: int | None) -> Iterator[tuple[str, str]]:
    saved = stats.saved_by_stubs + stats.saved_by_summaries + stats.saved_by_budget
    yield "in full", compact(stats.tokens)
    yield "saved by stubs", compact(stats.saved_by_stubs)
    yield (
        f"saved by summaries of {counted(stats.summarized, 'conversation')}",
        compact(stats.saved_by_summaries),
    )
    yield "left out by the budget", compact(stats.saved_by_budget)
    views = "in views without a budget"
    if max_tokens is not None:
        views = f"in views of at most {max_tokens:,} each"
    yield f"{views}, about", compact(stats.tokens - saved)
    share = f"{percent(saved / stats.tokens, decimals=1)}%" if stats.tokens else "-"
    yield "saved, about", share

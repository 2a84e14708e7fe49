"""``convstore stats``: how much is stored, how it grows, and what stubs and summaries save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from convstore.cli.options import Json, Prefix, ScopeKeys, ScopeValues, Uri, open_store, read_pairs
from convstore.cli.output import compact, new_table, number_of, percent, run, screen, size_of, table_of, write_json
from convstore.values.addresses import safe_address
from convstore.values.policy import HistoryPolicy

if TYPE_CHECKING:
    from convstore.types import Growth, StoreStats

_MOST_DAYS = 14


def stats_command(
    *,
    uri: Uri,
    scope: ScopeValues = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Budget of each view.")] = HistoryPolicy().max_tokens or 0,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
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
      convstore stats --uri mongodb://localhost:27017/app
      convstore stats --uri mongodb://… --scope user_id=ada
      convstore stats --uri mongodb://… --json | jq .bytes
    """
    chosen = read_pairs("--scope", scope)

    async def work() -> StoreStats:
        policy = HistoryPolicy(max_tokens=max_tokens)
        async with open_store(uri, scope_key, collection_prefix, scope=chosen, policy=policy) as store:
            return await store.stats(sizes=True, **chosen)

    stats = run(work(), as_document=as_document)
    if as_document:
        write_json({"database": safe_address(uri), **stats.model_dump()})
    else:
        _print(stats)


def _print(stats: StoreStats) -> None:
    console = screen()
    counts = {"conversations": stats.conversations, "turns": stats.turns, "messages": stats.messages}
    counts |= {"damaged, not counted; run doctor": stats.damaged} if stats.damaged else {}
    console.print(table_of(("stored", ""), [(name, f"{number:,}") for name, number in counts.items()]))
    console.print()
    sizes = [(kind, size_of(number)) for kind, number in stats.bytes.items()]
    console.print(table_of(("size", ""), [*sizes, ("together", size_of(sum(stats.bytes.values())))]))
    console.print()
    console.print(table_of(("tokens", ""), _tokens(stats)))
    if stats.growth:
        console.print()
        table = new_table(
            "written", "conversations", "messages", "entries", numbers=("conversations", "messages", "entries")
        )
        for period, conversations, messages, size in _periods(stats.growth):
            table.add_row(period, f"{conversations:,}", f"{messages:,}", size_of(size))
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

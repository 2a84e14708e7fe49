"""``convstore search``: messages of many conversations that match some words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, number_of, plain, short

if TYPE_CHECKING:
    from convstore.types import SearchResult


@on_database
async def search_command(
    target: Target,
    *,
    text: Annotated[str, typer.Argument(metavar="WORDS", hidden=True)],
    everything: Annotated[bool, typer.Option("--everything", help="All conversations; not with --scope.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of messages.")] = 20,
) -> Answer:
    """Search the conversations of a user, or with other scope values.

    \b
    Prints the messages that match some words best, by conversation. Everything
    that was said is searched: messages, calls, results, sources.

    \b
    Examples:
      convstore search "deep diving whales" --scope user_id=ada
      convstore search refund --everything --json
    """
    if everything == bool(target.chosen):
        raise typer.BadParameter("name conversations with --scope KEY=VALUE, or say --everything for all")
    async with target.open() as store:
        result = await store.search(text, limit=limit, conversations=500, everything=everything, **target.chosen)
    return Answer(result.model_dump, lambda console: _print(console, result), is_long=True)


def _print(console: Console, result: SearchResult) -> None:
    for group in result.conversations:
        name = shlex.join(f"{key}={value}" for key, value in group.scope.items())
        console.print(Text(plain(f"{name}  {group.title or ''}"), style="bold"), soft_wrap=True)
        for hit in group.hits:
            facts = f"  {hit.created_at:%Y-%m-%d %H:%M}  {hit.ordinal:>6}  {hit.type:<6}  "
            console.print(facts + short(hit.snippet, maximum=max(1, console.width - len(facts))), soft_wrap=True)
    if not result.conversations:
        console.print("No message matches.", style="yellow")
    console.print(f"\nSearched {number_of(result.searched, 'conversation')}.", style="dim")
    if result.incomplete:
        text = (
            f"Not searched whole: {len(result.incomplete)} conversations, which are not indexed yet, or damaged. "
            "They are indexed now: search again."
        )
        console.print(text, style="yellow")

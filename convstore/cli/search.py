"""``convstore search``: messages of many conversations that match some words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.list_ import name_of
from convstore.cli.options import Everything, StoreTarget, on_database
from convstore.cli.output import Answer, is_terminal, plain, screen, short
from convstore.values.plain import counted, role_label

if TYPE_CHECKING:
    from convstore.types import SearchResult


@on_database
async def search_command(
    target: StoreTarget,
    *,
    text: Annotated[str, typer.Argument(metavar="WORDS", hidden=True)],
    everything: Everything = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of messages.")] = 20,
) -> Answer:
    """Search the conversations of a user, or with other scope values.

    \b
    Prints the messages that match the words best, by conversation. All texts are
    searched: messages, calls, results, sources.

    \b
    In a pipe each message is a row with tabs, not cut: id and scope of its
    conversation, date, number, type, and the part of it that matches.
    `convstore show` accepts the id and the scope.

    \b
    Examples:
      convstore search "deep diving whales" --scope user_id=ada
      convstore search refund --everything --json
    """
    if everything == bool(target.chosen):
        raise typer.BadParameter(
            "name conversations with --scope KEY=VALUE, or say --everything for all"
        )
    async with target.open() as store:
        result = await store.search(
            text, limit=limit, conversations=500, everything=everything, **target.chosen
        )
    return Answer(result.model_dump, lambda console: _print(console, result), is_long=True)


def _print(console: Console, result: SearchResult) -> None:
    """Print the hits, then the extent of the search; without a terminal, the latter is printed on stderr."""
    if is_terminal():
        _print_hits(console, result)
        console.print()
    else:
        for row in _rows(result):
            print("\t".join(row))  # noqa: T201 - a console would replace the tabs
        console = screen(stderr=True)
    if not result.conversations:
        console.print("No message matches.", style="yellow")
    console.print(f"Searched {counted(result.searched, 'conversation')}.", style="dim")
    if result.incomplete:
        number = counted(len(result.incomplete), "conversation")
        text = (
            f"Not searched whole: {number}, not indexed yet or damaged. Search again, "
            "as indexing has begun"
        )
        console.print(
            f"{text}; what stays is damaged: run `convstore doctor`.",
            style="yellow",
            soft_wrap=True,
        )
    if result.problems:
        number = counted(len(result.problems), "conversation")
        text = (
            f"Damaged: {number}, of which messages or a title are not shown. "
            "Run `convstore doctor`."
        )
        console.print(text, style="yellow", soft_wrap=True)


def _print_hits(console: Console, result: SearchResult) -> None:
    for group in result.conversations:
        heading = "  ".join(filter(None, (name_of(group.scope), plain(group.title or ""))))
        console.print(Text(heading, style="bold"), soft_wrap=True)
        for hit in group.hits:
            facts = (
                f"  {hit.created_at:%Y-%m-%d %H:%M}  {hit.ordinal:>6}  {role_label(hit.type):<6}  "
            )
            console.print(
                facts + short(hit.snippet, maximum=max(1, console.width - len(facts))),
                soft_wrap=True,
            )


def _rows(result: SearchResult) -> Iterator[list[str]]:
    for group in result.conversations:
        for hit in group.hits:
            facts = [f"{hit.created_at:%Y-%m-%dT%H:%M:%SZ}", str(hit.ordinal), hit.type]
            yield [group.conversation_id, name_of(group.scope), *facts, plain(hit.snippet)]

"""``convstore list``: conversations, newest first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, compact, plain, short

if TYPE_CHECKING:
    from convstore.types import ConversationInfo


@on_database
async def list_command(
    target: Target,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Conversations on a page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after a page; it names the cursor.")] = None,
) -> Answer:
    """List conversations, newest first.

    \b
    Each is named as `convstore show` takes it, with its last message's date,
    its size, and its title or the beginning of the last message. Counts and
    dates are exact, the order to 10 seconds. Those of sub-agents are indented
    below their caller's.

    \b
    Examples:
      convstore list --uri mongodb://localhost:27017/app
      convstore list --uri mongodb://… --scope user_id=ada --limit 200
      convstore list --uri mongodb://… --json | jq '.conversations[].title'
    """
    from convstore.integration import with_children  # noqa: PLC0415 - loads the database driver

    async with target.open() as store:
        page = await store.list_conversations(limit=limit, cursor=cursor, everything=not target.chosen, **target.chosen)
        families = [[one async for one in with_children(store, info)] for info in page.conversations]

    def document() -> dict[str, Any]:
        children = [one.model_dump() for family in families for one in family[1:]]
        return page.model_dump() | ({"children": children} if children else {})

    return Answer(document, lambda console: _print(console, families, page.next_cursor), is_long=True)


def _print(console: Console, families: Sequence[Sequence[ConversationInfo]], next_cursor: str | None) -> None:
    """Print two lines for each conversation: its scope, whole, so that it can be copied; and what is known of it.

    The conversations of sub-agents are below that of their caller.
    """
    if not families:
        console.print("There are no conversations with this scope.", style="yellow")
    for family in families:
        for info in family:
            print_row(console, info)
    if next_cursor:
        console.print(f"\nMore: --cursor {next_cursor}", style="dim", soft_wrap=True)


def print_row(console: Console, info: ConversationInfo) -> None:
    """Print a conversation in two lines; those of sub-agents are indented by their depth."""
    indent = "  " * (info.scope["path"].count("/") + 1 if "path" in info.scope else 0)
    name = shlex.join(f"{key}={value}" for key, value in info.scope.items())  # as `show` takes it
    console.print(Text(indent + plain(name or info.conversation_id), style="bold"), soft_wrap=True)
    at = f"{info.updated_at:%Y-%m-%d %H:%M}" if info.updated_at else "-"
    facts = f"{indent}  {at}  {info.message_count:>6,} messages  {compact(info.tokens):>5} tokens  "
    title = info.title or (info.last_message.text if info.last_message else "")
    console.print(facts + short(title, maximum=max(1, console.width - len(facts))), soft_wrap=True)
    if info.problem:
        console.print(f"{indent}  {plain(info.problem)}", style="yellow", soft_wrap=True)

"""``convstore list``: conversations, newest first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, compact, plain, short

if TYPE_CHECKING:
    from convstore.types import ConversationPage


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
    dates are exact, the order to 10 seconds.

    \b
    Examples:
      convstore list --uri mongodb://localhost:27017/app
      convstore list --uri mongodb://… --scope user_id=ada --limit 200
      convstore list --uri mongodb://… --json | jq '.conversations[].title'
    """
    async with target.open() as store:
        page = await store.list_conversations(limit=limit, cursor=cursor, everything=not target.chosen, **target.chosen)
    return Answer(page.model_dump, lambda console: _print(console, page), is_long=True)


def _print(console: Console, page: ConversationPage) -> None:
    """Print two lines for each conversation: its scope, whole, so that it can be copied; and what is known of it."""
    if not page.conversations:
        console.print("There are no conversations with this scope.", style="yellow")
    for info in page.conversations:
        name = shlex.join(f"{key}={value}" for key, value in info.scope.items())  # as `show` takes it
        console.print(Text(plain(name or info.conversation_id), style="bold"), soft_wrap=True)
        at = f"{info.updated_at:%Y-%m-%d %H:%M}" if info.updated_at else "-"
        facts = f"  {at}  {info.message_count:>6,} messages  {compact(info.tokens):>5} tokens  "
        title = info.title or (info.last_message.text if info.last_message else "")
        console.print(facts + short(title, maximum=max(1, console.width - len(facts))), soft_wrap=True)
        if info.problem:
            console.print(f"  {plain(info.problem)}", style="yellow", soft_wrap=True)
    if page.next_cursor:
        console.print(f"\nMore: --cursor {page.next_cursor}", style="dim", soft_wrap=True)

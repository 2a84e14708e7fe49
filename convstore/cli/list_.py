"""``convstore list``: conversations, newest first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import Json, Prefix, ScopeKeys, ScopeValues, Uri, open_store, read_pairs
from convstore.cli.output import compact, paged, plain, run, short, write_json

if TYPE_CHECKING:
    from convstore.types import ConversationPage


def list_command(
    *,
    uri: Uri,
    scope: ScopeValues = None,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Conversations on a page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after a page; it names the cursor.")] = None,
    as_document: Json = False,
) -> None:
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
    chosen = read_pairs("--scope", scope)

    async def work() -> ConversationPage:
        async with open_store(uri, scope_key, collection_prefix, scope=chosen) as store:
            return await store.list_conversations(limit=limit, cursor=cursor, everything=not chosen, **chosen)

    page = run(work(), as_document=as_document)
    if as_document:
        write_json(page.model_dump())
        return
    with paged() as console:
        _print(console, page)


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

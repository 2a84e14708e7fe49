"""``convstore list``: conversations, newest first."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, compact, is_terminal, new_table, plain, screen, short
from convstore.values.scope import PATH

if TYPE_CHECKING:
    from convstore.types import ConversationInfo

_NUMBERS = ("messages", "tokens")
_SHOWN = 500


@on_database
async def list_command(
    target: Target,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Conversations on a page.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after a page, which names it.")] = None,
) -> Answer:
    """List conversations, newest first, one in a row.

    \b
    `convstore show 3` shows the third one. Those of sub-agents are below their
    caller's, as 3.1 and 3.2. Counts and dates are exact, the order to 10 seconds.

    \b
    In a pipe the columns are separated by tabs, and whole: id, scope, date of
    the last change, messages, turns, tokens, and the title or else the
    beginning of the last message. `convstore show` takes the id and the scope.

    \b
    Examples:
      export CONVSTORE_URI=mongodb://localhost:27017/app
      convstore list
      convstore list --scope user_id=ada --limit 200
      convstore list | cut -f 1,7
      convstore list --json | jq '.conversations[].title'
    """
    from convstore.integration import with_children  # noqa: PLC0415 - loads the database driver

    async with target.open() as store:
        page = await store.list_conversations(limit=limit, cursor=cursor, everything=not target.chosen, **target.chosen)
        families = [[one async for one in with_children(store, info)] for info in page.conversations]
        keys = [key for key in store.scope_keys if key not in target.chosen]

    def document() -> dict[str, Any]:
        children = [one.model_dump() for family in families for one in family[1:]]
        return page.model_dump() | ({"children": children} if children else {})

    def show(console: Console) -> None:
        numbers = [] if cursor else range(1, len(families) + 1)  # rows after a cursor have none that `show` could know
        print_conversations(console, numbered(families, numbers), keys=keys)
        aside = console if is_terminal() else screen(stderr=True)
        if not families:
            aside.print("There are no conversations with this scope.", style="yellow")
        if page.next_cursor:
            aside.print(f"More: --cursor {page.next_cursor}", style="dim", soft_wrap=True)

    return Answer(document, show, is_long=True)


def numbered(
    families: Sequence[Sequence[ConversationInfo]], numbers: Sequence[int]
) -> Iterable[tuple[str, ConversationInfo]]:
    """Yield each conversation with the number of its row: 3, and 3.1 for the first below it; "" without numbers."""
    for index, family in enumerate(families):
        for place, info in enumerate(family):
            number = str(numbers[index]) if numbers else ""
            yield f"{number}.{place}" if number and place else number, info


def print_conversations(console: Console, rows: Iterable[tuple[str, ConversationInfo]], *, keys: Sequence[str]) -> None:
    """Print a table of conversations that fits the terminal, or lines of tab-separated values into a pipe."""
    if not is_terminal():
        for _, info in rows:
            print("\t".join(_values(info)))  # noqa: T201 - a console would replace the tabs
        return
    table = new_table("#", *keys, *_NUMBERS, "last", numbers=("#", *_NUMBERS, "last"), expand=True)
    room = (console.width - 32) // (len(keys) + 1)
    for column in table.columns[1 : len(keys) + 1]:
        column.no_wrap, column.overflow, column.max_width = True, "ellipsis", max(room, 4)
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for number, info in rows:
        at = f"{info.updated_at:%Y-%m-%d}" if info.updated_at else "-"
        scope = ("" if PATH in info.scope else plain(info.scope.get(key, "")) for key in keys)
        title = Text(f"{_indent(info)}{_title(info)}", style="yellow" if info.problem else "")
        table.add_row(number, *scope, f"{info.message_count:,}", compact(info.tokens), at, title)
    console.print(table)


def _values(info: ConversationInfo) -> list[str]:
    at = f"{info.updated_at:%Y-%m-%dT%H:%M:%SZ}" if info.updated_at else ""
    counts = (info.message_count, info.turns, info.tokens)
    return [info.conversation_id, name_of(info.scope), at, *map(str, counts), _title(info)]


def name_of(scope: Mapping[str, str]) -> str:
    """Return a scope as `convstore show` takes it, on one line."""
    return plain(shlex.join(f"{key}={value}" for key, value in scope.items()))


def _indent(info: ConversationInfo) -> str:
    return "  " * info.scope.get(PATH, "").count("/") + "↳ " if PATH in info.scope else ""


def _title(info: ConversationInfo) -> str:
    text = info.problem or info.title or (info.last_message.text if info.last_message else "")
    return short(text, maximum=_SHOWN)

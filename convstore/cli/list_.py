"""``convstore list``: conversations, newest first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.options import Target, on_database
from convstore.cli.output import Answer, compact, is_terminal, new_table, plain, screen, short
from convstore.values.scope import PATH

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.types import ConversationInfo, ConversationPage

_NUMBERS = ("messages", "tokens", "last")
_SHOWN = 500


@on_database
async def list_command(
    target: Target,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Conversations on a page.")] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="Continue after a page, which names it.")
    ] = None,
) -> Answer:
    """List conversations, newest first, one in a row.

    \b
    `convstore show 3` shows the third one. Those of sub-agents are below their
    caller's, as 3.1 and 3.2. After --cursor rows have ids instead of numbers.
    Counts and dates are exact, the order to 10 seconds.

    \b
    In a pipe the columns are separated by tabs, and whole: id, scope, date of
    the last change, messages, turns, tokens, and the title or else the first
    question. `convstore show` takes the id and the scope. With --json, "title"
    is only the title that was set.

    \b
    Examples:
      convstore list
      convstore list --scope user_id=ada --limit 200
      convstore list | cut -f 1,7
      convstore list --json | jq '.conversations[].scope'
    """
    async with target.open() as store:
        page = await store.list_conversations(
            limit=limit, cursor=cursor, everything=not target.chosen, **target.chosen
        )
        keys = [key for key in store.scope_keys if key not in target.chosen]
        listing = await _read_rows(store, page, keys, has_numbers=not cursor)
    return Answer(listing.document, listing.show, is_long=True)


@dataclass(frozen=True, slots=True)
class _Listing:
    """A page of conversations, each with those of its sub-agents.

    Attributes:
        page: The page, as the store lists it.
        children: The conversations of sub-agents, as the store lists them.
        rows: All of them by their row and their place below it, with the titles to print.
        keys: The scope keys to print.
        has_numbers: True if rows have numbers, not ids.
    """

    page: ConversationPage
    children: Sequence[ConversationInfo]
    rows: Mapping[tuple[int, int], ConversationInfo]
    keys: Sequence[str]
    has_numbers: bool

    def document(self) -> dict[str, Any]:
        """Return the page for `--json`."""
        document = self.page.model_dump()
        if self.children:
            document["children"] = [child.model_dump() for child in self.children]
        return document

    def show(self, console: Console) -> None:
        """Print a table to a terminal, or else rows with tabs."""
        aside = console
        if not is_terminal():
            aside = screen(stderr=True)
            for info in self.rows.values():
                print("\t".join(_values(info)))  # noqa: T201 - a console would replace the tabs
        elif self.rows:
            console.print(_table(self.rows, self.keys, console.width, has_numbers=self.has_numbers))
        if not self.rows:
            aside.print("There are no conversations with this scope.", style="yellow")
        if self.page.next_cursor:
            aside.print(f"More: --cursor {self.page.next_cursor}", style="dim", soft_wrap=True)


async def _read_rows(
    store: ConversationStore, page: ConversationPage, keys: Sequence[str], *, has_numbers: bool
) -> _Listing:
    """Return the listing of a page: read the conversations of sub-agents, and the first questions for titles."""
    from convstore.edges import with_children  # noqa: PLC0415 - loads the database driver
    from convstore.integration import host_of  # noqa: PLC0415 - as above

    places: list[tuple[int, int]] = []
    members: list[ConversationInfo] = []
    children: list[ConversationInfo] = []
    for row, info in enumerate(page.conversations, 1):
        family = [member async for member in with_children(store, info)]
        places += [(row, below) for below in range(len(family))]
        members += family
        children += family[1:]
    named = await host_of(store).titled(members)
    rows = dict(zip(places, named, strict=True))
    return _Listing(page, children, rows, keys, has_numbers)


def _table(
    rows: Mapping[tuple[int, int], ConversationInfo],
    keys: Sequence[str],
    width: int,
    *,
    has_numbers: bool,
) -> Table:
    """Return a table that fits the width: each conversation by its row and its place below it, or else by its id."""
    table = new_table("#", *keys, *_NUMBERS, "", numbers=("#", *_NUMBERS), expand=True)
    room = (width - (35 if has_numbers else 55)) // (len(keys) + 1)
    title = table.columns[-1]
    for column in (*table.columns[1 : len(keys) + 1], title):
        column.no_wrap = True
        column.overflow = "ellipsis"
        column.max_width = max(room, 4)
    title.ratio = 1
    title.max_width = None
    for (row, below), info in rows.items():
        name = _number(row, below) if has_numbers else _id(info, below)
        at = f"{info.updated_at:%Y-%m-%d}" if info.updated_at else "-"
        scope = [_scope_value(info, key) for key in keys]
        text = Text(_indented_title(info), style="yellow" if info.problem else "")
        table.add_row(name, *scope, f"{info.message_count:,}", compact(info.tokens), at, text)
    return table


def _number(row: int, below: int) -> str:
    return f"{row}.{below}" if below else str(row)


def _id(info: ConversationInfo, below: int) -> str:
    return "" if below else info.conversation_id


def _scope_value(info: ConversationInfo, key: str) -> str:
    """Return a scope value, which a sub-agent's conversation has from its caller's."""
    return "" if PATH in info.scope else plain(info.scope.get(key, ""))


def _indented_title(info: ConversationInfo) -> str:
    """Return the title, indented below the conversation of the caller."""
    if PATH not in info.scope:
        return _title(info)
    depth = f"{info.scope[PATH]}/".count("/")
    return f"{'  ' * (depth - 1)}↳ {_title(info)}"


def _values(info: ConversationInfo) -> list[str]:
    at = f"{info.updated_at:%Y-%m-%dT%H:%M:%SZ}" if info.updated_at else ""
    counts = (info.message_count, info.turns, info.tokens)
    return [info.conversation_id, name_of(info.scope), at, *map(str, counts), _title(info)]


def name_of(scope: Mapping[str, str]) -> str:
    """Return a scope as `convstore show` takes it, on one line."""
    return plain(shlex.join(f"{key}={value}" for key, value in scope.items()))


def _title(info: ConversationInfo) -> str:
    text = info.problem or info.title or (info.last_message.text if info.last_message else "")
    return short(text, maximum=_SHOWN)

"""``convstore list``: conversations, newest first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.options import PriceOptions, StoreTarget, on_database, read_age, read_prices
from convstore.cli.output import Answer, compact, is_terminal, new_table, plain, screen, short
from convstore.exceptions import InvalidInputError
from convstore.values.plain import age, counted, money
from convstore.values.scope import PATH

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.types import ConversationInfo
    from convstore.values.list_rows import ListRow
    from convstore.values.usage import Prices

MOST_ROWS = 1_000
"""Maximum number of rows with a number; `convstore show` searches a row among these."""

_PAGE = 50
_COVERED = 10_000
"""Number of conversations that a page with filters covers."""
_SHOWN = 500
_WIDTH = 32
"""Width of the columns with numbers, without that of failed results."""
_ID = 20
"""Additional width of an id, compared with the number of a row."""
_NUMBER = 8
"""Width of a column of numbers."""
_ROOM = 14
"""Minimum width of a column of texts; columns of numbers are left out for it."""


@on_database
async def list_command(
    target: StoreTarget,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only those in which a tool failed, or a sub-agent's.")
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Only those that need attention.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only those changed since: 1h, 7d.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, max=_COVERED, help="Conversations on a page; 50, or 10,000 with a filter."
        ),
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="The page; 1 has the newest.")] = 1,
    price: PriceOptions = None,
) -> Answer:
    """List conversations, newest first, one in a row.

    \b
    `convstore show 3` shows the third one. Those of sub-agents are below their
    caller's, as 3.1 and 3.2. The state shows if the newest turn is running or
    how it ended, with the tool it waits for or the error; it is empty if the
    turn is finished. It also shows if the last call took more than 80 % of its
    budget, and if a message was rated down. --attention keeps those that wait
    for a person, broke off, have no answer, were cut or refused, or are near
    their budget; "imported" means that this was so in the source.

    \b
    In a pipe the columns are separated by tabs, and not cut: id, scope, date of
    the last change, state, messages, turns, tokens, failed tool results, and
    the title or else the first question; with --price also the cost.
    `convstore show` accepts the id and the scope. With --json, "title" is the
    title that was set; without one, "first_question" has the question.

    \b
    --price adds the cost of each conversation, without its sub-agents; with "+"
    if some of its tokens are of a model without a price.

    \b
    Examples:
      convstore list
      convstore list --attention
      convstore list --failed --since 7d
      convstore list --scope user_id=ada --limit 200 --page 2
      convstore list --price gpt-5=1.25,10,0.125
      convstore list | cut -f 1,9
      convstore list --json | jq '.conversations[] | select(.state == "waits")'
    """
    age_limit = read_age(since) if since else None
    prices = read_prices(price)
    chips = ["attention"] * attention
    is_selection = failed or attention or age_limit is not None
    size = limit or (_COVERED if is_selection else _PAGE)
    async with target.open() as store:
        covered, has_older = await _read_page(store, target.chosen, size, page)
        first = (page - 1) * size + 1
        rows = await _selected(
            store, covered, chips=chips, age=age_limit, first=first, only_failed=failed
        )
        rows = _with_costs(rows, prices)
        listing = _ListPage(
            rows,
            covered=len(covered) if is_selection else None,
            next_page=page + 1 if has_older else None,
            keys=[key for key in store.scope_keys if key not in target.chosen],
        )
    return Answer(listing.document, listing.show, is_long=True)


@dataclass(frozen=True, slots=True)
class _Member:
    """A conversation in a list.

    Attributes:
        number: Number of its row, or of its caller's row.
        below: Its position below the row, from 1; 0 for the row itself.
        row: The conversation and its end.
        title: Its title, or else its first question.
        costs: Its cost; empty without prices.
    """

    number: int
    below: int
    row: ListRow
    title: str = ""
    costs: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the conversation for `--json`."""
        from convstore.values.list_rows import document_of  # noqa: PLC0415 - loads pydantic

        return document_of(self.row, self.title or None, self.costs)

    @property
    def cost(self) -> str:
        """The cost to print; with a plus if some of the tokens have no price."""
        if self.costs["cost"] is None:
            return "-"
        return f"{money(self.costs['cost'])}{'+' if self.costs['tokens_without_price'] else ''}"

    @property
    def text(self) -> str:
        """The line to print: the problem of a damaged conversation, else the title, else the last message."""
        info = self.row.info
        last = info.last_message.text if info.last_message else ""
        return short(info.problem or self.title or last, maximum=_SHOWN)


@dataclass(frozen=True, slots=True)
class _ListPage:
    """A page of conversations, each followed by those of its sub-agents.

    Attributes:
        members: The conversations.
        covered: The number of conversations to which the filters were applied; None without filters.
        next_page: The number of the page with older conversations; None if this is the last page.
        keys: The scope keys to print.
    """

    members: Sequence[_Member]
    covered: int | None
    next_page: int | None
    keys: Sequence[str]

    @property
    def has_numbers(self) -> bool:
        """True if `convstore show` accepts the numbers of all rows; otherwise the rows have ids."""
        return all(member.number <= MOST_ROWS for member in self.members)

    def document(self) -> dict[str, Any]:
        """Return the page for `--json`."""
        members = {
            "conversations": [each.document() for each in self.members if not each.below],
            "children": [each.document() for each in self.members if each.below],
        }
        found: dict[str, Any] = {
            name: rows for name, rows in members.items() if rows or name == "conversations"
        }
        if self.covered is not None:
            found["covered"] = self.covered
        return {**found, "next_page": self.next_page}

    def show(self, console: Console) -> None:
        """Print a table to a terminal, otherwise rows with tabs."""
        notes = console
        if not is_terminal():
            notes = screen(stderr=True)
            for member in self.members:
                print("\t".join(_values(member)))  # noqa: T201 - a console would replace the tabs
        elif self.members:
            console.print(_table(self, console.width))
        if self.covered:
            rows = sum(not member.below for member in self.members)
            notes.print(f"{rows:,} of {counted(self.covered, 'conversation')}.", style="dim")
        elif not self.members:
            notes.print("There are no conversations with this scope.", style="yellow")
        if self.next_page:
            notes.print(f"Older ones: --page {self.next_page}", style="dim")


async def _read_page(
    store: ConversationStore, chosen: Mapping[str, str], size: int, page: int
) -> tuple[list[ConversationInfo], bool]:
    """Read a page of the list; return it, and True if there are older pages. InvalidInputError after the last page."""
    shown: list[ConversationInfo] = []
    cursor = None
    for number in range(1, page + 1):
        if number > 1 and cursor is None:
            raise InvalidInputError(f"the list has {counted(number - 1, 'page')}, not {page}")
        shown = []
        while len(shown) < size:
            found = await store.list_conversations(
                limit=min(size - len(shown), MOST_ROWS),
                cursor=cursor,
                everything=not chosen,
                **chosen,
            )
            shown += found.conversations
            cursor = found.next_cursor
            if cursor is None:
                break
    return shown, cursor is not None


async def _selected(
    store: ConversationStore,
    covered: Sequence[ConversationInfo],
    *,
    chips: Sequence[str],
    age: timedelta | None,
    first: int,
    only_failed: bool,
) -> list[_Member]:
    """Return the rows that the filters select, each with its sub-agents' rows; `first` is the number of the first row.

    `only_failed` selects the conversations in which a tool failed, including those of sub-agents.
    """
    from convstore.integration import host_of  # noqa: PLC0415 - loads the database driver
    from convstore.values.list_rows import (  # noqa: PLC0415 - as above
        since,
        with_chip,
    )

    numbers = {info.conversation_id: at for at, info in enumerate(covered, first)}
    rows = since(await host_of(store).rows(covered), age, datetime.now(UTC))
    found: list[_Member] = []
    for row in reduce(with_chip, chips, rows):
        number = numbers[row.info.conversation_id]
        family = await _family(store, row, only_failed=only_failed)
        found += [_Member(number, below, member) for below, member in enumerate(family)]
    named = await host_of(store).titled([member.row.info for member in found])
    return [
        replace(member, title=info.title or "") for member, info in zip(found, named, strict=True)
    ]


async def _family(store: ConversationStore, row: ListRow, *, only_failed: bool) -> list[ListRow]:
    """Return a row and those of its sub-agents; with `only_failed` an empty list if all their tools succeeded."""
    from convstore.edges import with_children  # noqa: PLC0415 - loads the database driver
    from convstore.integration import host_of  # noqa: PLC0415 - as above

    family = [member async for member in with_children(store, row.info)]
    if only_failed and not any(member.failed for member in family):
        return []
    children = await host_of(store).rows(family[1:]) if family[1:] else []
    return [row, *children]


def _with_costs(members: Sequence[_Member], prices: Prices) -> list[_Member]:
    """Return conversations with their costs; without costs if there are no prices."""
    from convstore.ext.sums import cost_columns  # noqa: PLC0415 - loads the database driver

    return [replace(each, costs=cost_columns(each.row.info, prices)) for each in members]


def _table(listing: _ListPage, width: int) -> Table:
    """Return a table that fits the width; the first column has the numbers of rows, or ids.

    Columns that are empty in all rows are left out, and in a narrow terminal those of tokens and messages.
    """
    members = listing.members
    now = datetime.now(UTC)
    words = ["state"] if any(member.row.state_line() for member in members) else []
    keys = [*listing.keys, *words]
    fixed = _WIDTH if listing.has_numbers else _WIDTH + _ID
    numbers, room = _fitting(_numbers_of(members), width - fixed, texts=len(keys) + 1)
    table = new_table("#", *keys, *numbers, "", numbers=("#", *numbers), expand=True)
    title = table.columns[-1]
    for column in (*table.columns[1 : len(keys) + 1], title):
        column.no_wrap = True
        column.overflow = "ellipsis"
        column.max_width = max(room, 4)
    title.ratio = 1
    title.max_width = None
    for member in members:
        info = member.row.info
        cells = {
            **{key: _scope_value(info, key) for key in listing.keys},
            "state": plain(member.row.state_line()),
            "messages": f"{info.message_count:,}",
            "tokens": compact(info.tokens),
            "failed": f"{info.failed:,}" if info.failed else "",
            "cost": member.cost if member.costs else "",
            "age": age(info.updated_at, now) if info.updated_at else "-",
        }
        text = Text(_indented_title(member), style="yellow" if info.problem else "")
        name = _number(member) if listing.has_numbers else _id(member)
        table.add_row(name, *(cells[column] for column in (*keys, *numbers)), text)
    return table


def _fitting(numbers: Sequence[str], width: int, *, texts: int) -> tuple[list[str], int]:
    """Return the columns of numbers that leave space for the columns of texts, and the width of each text column."""
    kept = list(numbers)
    for name in ("", "tokens", "messages"):
        kept = [number for number in kept if number != name]
        room = (width - _NUMBER * (len(kept) - 3)) // texts
        if room >= _ROOM:
            break
    return kept, room


def _numbers_of(members: Sequence[_Member]) -> list[str]:
    """Return the columns of numbers that are not empty."""
    numbers = ["messages", "tokens"]
    if any(member.row.info.failed for member in members):
        numbers.append("failed")
    if any(member.costs for member in members):
        numbers.append("cost")
    return [*numbers, "age"]


def _number(member: _Member) -> str:
    return f"{member.number}.{member.below}" if member.below else str(member.number)


def _id(member: _Member) -> str:
    return "" if member.below else member.row.info.conversation_id


def _scope_value(info: ConversationInfo, key: str) -> str:
    """Return a scope value to print; "" for a sub-agent's conversation, which has the values of its caller's."""
    return "" if PATH in info.scope else plain(info.scope.get(key, ""))


def _indented_title(member: _Member) -> str:
    """Return the title; that of a sub-agent's conversation is indented below its caller's."""
    scope = member.row.info.scope
    if PATH not in scope:
        return member.text
    depth = f"{scope[PATH]}/".count("/")
    return f"{'  ' * (depth - 1)}↳ {member.text}"


def _values(member: _Member) -> list[str]:
    info = member.row.info
    at = f"{info.updated_at:%Y-%m-%dT%H:%M:%SZ}" if info.updated_at else ""
    counts = map(str, (info.message_count, info.turns, info.tokens, info.failed))
    state = plain(member.row.state_line())
    values = [info.conversation_id, name_of(info.scope), at, state, *counts, member.text]
    return [*values, member.cost] if member.costs else values


def name_of(scope: Mapping[str, str]) -> str:
    """Return a scope in the form that `convstore show` accepts, on one line."""
    return plain(shlex.join(f"{key}={value}" for key, value in scope.items()))

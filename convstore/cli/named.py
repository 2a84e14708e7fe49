"""Open the conversation that an argument of a command names: by its row in a list, its id, or its scope."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from convstore.cli.list_ import MOST_ROWS
from convstore.cli.options import StoreTarget, read_pairs, wrong_usage
from convstore.exceptions import InvalidInputError
from convstore.values.plain import counted
from convstore.values.scope import PATH, check_id

if TYPE_CHECKING:
    from convstore import Conversation, ConversationStore


@asynccontextmanager
async def opened_conversation(target: StoreTarget, words: list[str]) -> AsyncIterator[Conversation]:
    """Open the store, and yield the conversation that a row's number, an id, or a whole scope names.

    Raises:
        typer.BadParameter: The words are not one of these.
        InvalidInputError: The conversation does not exist.
    """
    pairs = read_pairs("CONVERSATION", words) if "=" in words[0] else {}
    is_ambiguous = bool(target.scope) if pairs else len(words) > 1
    if is_ambiguous:
        raise typer.BadParameter(
            "CONVERSATION is the number of a row, or an id, or KEY=VALUE for each scope key"
        )
    if not pairs:
        with wrong_usage("CONVERSATION"):
            check_id(words[0], name="an id")
    scope = [f"{key}={value}" for key, value in pairs.items() if key != PATH]
    async with replace(target, scope=scope or target.scope).open() as store:
        if pairs:
            yield await _with_scope(store, pairs)
        else:
            yield await _named(store, words[0], target.chosen)


async def _named(store: ConversationStore, name: str, chosen: dict[str, str]) -> Conversation:
    """Return the conversation in a row of the list, or with an id."""
    # longer numbers are ids, which have 24 digits or more
    row = re.fullmatch(r"([1-9]\d{0,17})(?:\.(\d{1,4}))?", name)
    if row:
        return await _in_row(store, int(row[1]), int(row[2] or 0), chosen)
    found = await store.find_conversation(name, **chosen)
    if found is None:
        raise InvalidInputError(
            f"no conversation has the id {name!r}; `convstore list --json` prints them"
        )
    return found


async def _with_scope(store: ConversationStore, scope: dict[str, str]) -> Conversation:
    known = {key: value for key, value in scope.items() if key != PATH}
    if known.keys() == set(store.scope_keys):
        chat = store.conversation(**scope)
        if (await chat.info()).created_at:
            return chat
    alike = await store.list_conversations(limit=1, everything=not known, **known)
    if not alike.conversations:
        raise InvalidInputError(
            "no conversation has these scope values (an argument each); `convstore list` has all"
        )
    values = shlex.join(
        part for key, value in known.items() for part in ("--scope", f"{key}={value}")
    )
    raise InvalidInputError(
        f"no conversation has this whole scope; `convstore list {values}` lists those that have it"
    )


async def _in_row(
    store: ConversationStore, row: int, below: int, chosen: dict[str, str]
) -> Conversation:
    """Return the conversation in a row of `convstore list`, or that of a sub-agent below the row."""
    from convstore.edges import with_children  # noqa: PLC0415 - loads the database driver

    limit = min(row, MOST_ROWS)
    page = await store.list_conversations(limit=limit, everything=not chosen, **chosen)
    rows = len(page.conversations)
    if rows < row and page.next_cursor:
        raise InvalidInputError(
            f"the list only numbers its first {counted(rows, 'row')}, not row {row}; "
            "name the conversation by its id, which `convstore list --json` prints"
        )
    if rows < row:
        raise InvalidInputError(f"the list has {counted(rows, 'row')}, not {row}")
    family = [member async for member in with_children(store, page.conversations[-1])]
    if below >= len(family):
        raise InvalidInputError(
            f"row {row} has {counted(len(family) - 1, 'sub-agent')}, not {below}"
        )
    return store.conversation(**family[below].scope)

"""Options that several commands share, and how their values are read.

Floor 8. Every command that opens a store declares its options with these types.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from convstore.store import ConversationStore
from convstore.values.scope import check_partial_scope, check_scope_keys

__all__ = [
    "DEFAULT_SCOPE_KEYS",
    "AnyUri",
    "Json",
    "Pairs",
    "Prefix",
    "ScopeKeys",
    "ScopeValues",
    "Uri",
    "connect",
    "opened",
    "read_pairs",
]

DEFAULT_SCOPE_KEYS = ("user_id", "thread_id")


Pairs = list[str] | None


Uri = Annotated[str, typer.Option("--uri", help="mongodb://host/database.", envvar="CONVSTORE_URI")]


AnyUri = Annotated[
    str, typer.Option("--uri", help="mongodb://host/database, or memory:// for none.", show_default=True)
]


ScopeKeys = Annotated[
    Pairs, typer.Option("--scope-key", metavar="KEY", help="A scope key of your store; once for each, in order.")
]


ScopeValues = Annotated[Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="Only those with this value.")]


Prefix = Annotated[str, typer.Option(help="The collection_prefix of your store.")]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


@asynccontextmanager
async def opened(uri: str, **options: Any) -> AsyncIterator[ConversationStore]:
    """Open a store with these options, set it up, and close it at the end.

    Raises:
        ConvstoreError: The address is invalid, or the server does not answer.
    """
    async with await ConversationStore.connect(uri, **options) as store:
        await store.setup()
        yield store


async def connect(uri: str, keys: Pairs, prefix: str, scope: Mapping[str, str]) -> ConversationStore:
    """Connect to a store without setting it up, after checking the scope values that a command was given.

    Raises:
        InvalidScopeError: A value is invalid, or its key is not one of the store's scope keys.
        ConvstoreError: The address is invalid, or the server does not answer.
    """
    names = check_scope_keys(keys or DEFAULT_SCOPE_KEYS)
    check_partial_scope(names, scope)
    return await ConversationStore.connect(uri, scope_keys=names, collection_prefix=prefix)


def read_pairs(option: str, given: Pairs, *, form: str = "KEY=VALUE") -> dict[str, str]:
    """Split each value of a repeatable option at its first ``=``.

    >>> read_pairs("--scope", ["user_id=ada", "thread_id=a=b"])
    {'user_id': 'ada', 'thread_id': 'a=b'}

    Raises:
        typer.BadParameter: A name or value is empty, a key is not a Python name, or a name occurs twice.
    """
    pairs: dict[str, str] = {}
    for text in given or []:
        name, sign, value = text.partition("=")
        if not sign or not name or not value or (form.startswith("KEY") and not name.isidentifier()):
            raise typer.BadParameter(f"{option} takes {form}, not {text!r}")
        if name in pairs:
            raise typer.BadParameter(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs

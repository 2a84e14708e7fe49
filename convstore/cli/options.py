"""The options that several commands have.

Talks to the commands that declare them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from convstore.store import ConversationStore

__all__ = ["DEFAULT_SCOPE_KEYS", "Json", "Pairs", "Prefix", "ScopeKeys", "Uri", "opened"]

DEFAULT_SCOPE_KEYS = ("user_id", "thread_id")


Pairs = list[str] | None


Uri = Annotated[str, typer.Option("--uri", help="mongodb://host/database.", envvar="CONVSTORE_URI")]


ScopeKeys = Annotated[
    Pairs, typer.Option("--scope-key", metavar="KEY", help="A scope key of your store; once for each, in order.")
]


Prefix = Annotated[str, typer.Option(help="The collection_prefix of your store.")]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


@asynccontextmanager
async def opened(uri: str, **options: Any) -> AsyncIterator[ConversationStore]:
    """A store with these options that is set up, closed at the end.

    Raises:
        ConvstoreError: The address cannot be used, or the server does not answer.
    """
    async with await ConversationStore.connect(uri, **options) as store:
        await store.setup()
        yield store

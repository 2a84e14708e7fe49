"""The options that several commands have.

Talks to the commands that declare them.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["DEFAULT_SCOPE_KEYS", "Json", "Pairs", "Prefix", "ScopeKeys", "Uri"]

DEFAULT_SCOPE_KEYS = ("user_id", "thread_id")

Pairs = list[str] | None
Uri = Annotated[str, typer.Option("--uri", help="mongodb://host/database.", envvar="CONVSTORE_URI")]
ScopeKeys = Annotated[
    Pairs, typer.Option("--scope-key", metavar="KEY", help="A scope key of your store; once for each, in order.")
]
Prefix = Annotated[str, typer.Option(help="The collection_prefix of your store.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]

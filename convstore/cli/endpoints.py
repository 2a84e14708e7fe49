"""Both ends of an import: the files and collections that it reads, and the store that it writes to.

Floor 8. ``import_`` opens them; ``export`` reads from a `Target` too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convstore import ConversationStore
from convstore.databases import estimated_count, open_database
from convstore.transfer import ImportReport, read_file, read_history_collection
from convstore.transfer.importing import Records
from convstore.values.addresses import is_address, safe_address

__all__ = ["Source", "Target", "open_records"]

_LANGCHAINS_DATABASE = "chat_history"


@dataclass(frozen=True, slots=True)
class Target:
    """Store of an import or export: its address, scope keys and prefix."""

    uri: str = field(repr=False)
    scope_keys: Sequence[str]
    prefix: str

    @asynccontextmanager
    async def opened(self, *, setup: bool) -> AsyncIterator[ConversationStore]:
        """Open the store; values of unknown application types pass through unchanged."""
        options: dict[str, Any] = {"scope_keys": self.scope_keys, "collection_prefix": self.prefix}
        async with await ConversationStore.connect(self.uri, **options) as store:
            store.codec.keep_unknown()
            if setup:
                await store.setup()
            yield store


@dataclass(frozen=True, slots=True)
class Source:
    """File, or address of a database with a collection and the names of its fields."""

    name: str = field(repr=False)
    collection: str
    session_key: str
    history_key: str

    @property
    def is_address(self) -> bool:
        """Return True for an address, also a malformed one, so that no error shows it as the name of a file."""
        return is_address(self.name) and not os.path.lexists(self.name)

    @property
    def shown(self) -> str:
        """Return the name to print, without user info and options."""
        return f"{safe_address(self.name)}, collection {self.collection}" if self.is_address else self.name


@asynccontextmanager
async def open_records(
    source: Source, store: ConversationStore
) -> AsyncIterator[tuple[Records, int, Callable[[ImportReport], int]]]:
    """Yield the records of a source, the length of its progress bar, and a function that returns the position."""
    if not source.is_address:
        path, read = Path(source.name), [0]
        size = await asyncio.to_thread(os.path.getsize, path)
        records = read_file(path, codec=store.codec, on_bytes=lambda position: read.__setitem__(0, position))
        yield records, size, lambda _: read[0]
        return
    async with open_database(source.name, default=_LANGCHAINS_DATABASE) as database:
        collection = database[source.collection]
        keys = {"session_key": source.session_key, "history_key": source.history_key}
        count = await estimated_count(collection)
        yield read_history_collection(collection, **keys), count, lambda report: report.messages + report.known

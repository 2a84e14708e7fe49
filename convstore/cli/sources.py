"""The sources of an import: files, and collections of other stores.

Floor 8. ``import_`` opens them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convstore.cli.progress import progress
from convstore.values.addresses import is_address, safe_address

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.messages.values import Codec
    from convstore.transfer import ImportReport
    from convstore.transfer.importing import Records

__all__ = ["Source"]

_LANGCHAINS_DATABASE = "chat_history"


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

    def check(self) -> None:
        """Raise an InvalidInputError if a file cannot be read."""
        from convstore.transfer.files import check_readable  # noqa: PLC0415 - loads the store

        if not self.is_address:
            check_readable(Path(self.name))

    async def read_into(self, store: ConversationStore, total: ImportReport, *, quiet: bool, **options: Any) -> None:
        """Import all conversations, add their counts to a report, and show the progress unless `quiet`."""
        from convstore.transfer import Problem, import_conversations  # noqa: PLC0415 - loads the store

        async with self._opened(store.codec) as (records, length, position):
            with progress(self.shown, length, quiet=quiet) as show:
                part = await import_conversations(
                    store,
                    records,
                    on_problem=total.note,
                    on_conversation=lambda so_far: show(position(so_far), so_far.conversations, _counts_of(so_far)),
                    **options,
                )
        total.add(part)
        if not part.conversations:
            total.note(Problem("conversation", self.shown, "", "there is no conversation in it"))

    @asynccontextmanager
    async def _opened(self, codec: Codec) -> AsyncIterator[tuple[Records, int, Callable[[ImportReport], int]]]:
        """Yield the records, the length of the progress bar, and a function that returns the position on it."""
        from convstore.store.databases import estimated_count, open_database  # noqa: PLC0415 - loads the database driver
        from convstore.transfer import read_file, read_history_collection  # noqa: PLC0415 - likewise

        if not self.is_address:
            read = [0]
            records = read_file(self.name, codec=codec, on_bytes=lambda position: read.__setitem__(0, position))
            yield records, os.path.getsize(self.name), lambda _: read[0]  # noqa: ASYNC240 - before any other work
            return
        async with open_database(self.name, default=_LANGCHAINS_DATABASE) as database:
            collection = database[self.collection]
            keys = {"session_key": self.session_key, "history_key": self.history_key}
            count = await estimated_count(collection)
            yield read_history_collection(collection, **keys), count, lambda report: report.messages + report.known


def _counts_of(report: ImportReport) -> str:
    return f"{report.conversations:,} conversations, {report.messages:,} messages, {report.left_out:,} left out"

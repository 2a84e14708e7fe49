"""The sources that ``convstore import`` reads: a file, or an address with the names of its collections and fields."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from convstore.cli.options import wrong_usage
from convstore.cli.progress import counts_of, progress
from convstore.values.addresses import check_address, is_address, safe_address

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.messages.values import Codec
    from convstore.transfer import ImportReport
    from convstore.transfer.importing import Records

Kind = Literal["langchain", "openai-agents", "google-adk", "step-store", "langgraph"]

Removed = Literal["rewind", "leave out"]

_DATABASES = {"langchain": "chat_history", "openai-agents": "agents"}
"""Default databases for addresses that do not name one."""
_COLLECTION = "message_store"
_COLLECTION_NAME = re.compile(r"(?!\.)(?:[^$.\0]|\.(?!\.|$))+")
_FIELD = re.compile(r"(?:(?!\$)[^.\0]+(?:\.(?=[^.])|$))+")


class SourceNames(NamedTuple):
    """Names of the collections and fields of a source; an empty one is the default for the kind of source."""

    collection: str
    writes_collection: str
    session_key: str
    history_key: str

    def check(self) -> None:
        """Raise a typer.BadParameter for a name that collections or fields of MongoDB cannot have."""
        for name, value in self._asdict().items():
            is_field = name.endswith("_key")
            if is_field and not _FIELD.fullmatch(value):
                raise typer.BadParameter(_refused(name, value, "a field"))
            if not is_field and value and not _COLLECTION_NAME.fullmatch(value):
                raise typer.BadParameter(_refused(name, value, "a collection"))


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A file, or the address of a database with the names of its collections and fields."""

    name: str = field(repr=False)
    names: SourceNames
    kind: Kind = "langchain"
    thread_ids: Path | None = None
    removed: Removed = "rewind"

    @property
    def is_address(self) -> bool:
        """True for an address, even a malformed one, so that errors do not print it as the name of a file."""
        return is_address(self.name) and not os.path.lexists(self.name)

    @property
    def shown(self) -> str:
        """The name to print, without user info and options."""
        what = f"collection {self._collection}" if self.kind == "langchain" else self.kind
        return f"{safe_address(self.name)}, {what}" if self.is_address else self.name

    @property
    def _collection(self) -> str:
        return self.names.collection or _COLLECTION

    def check(self) -> None:
        """Raise an InvalidInputError if a file cannot be read, and a typer.BadParameter for a malformed address."""
        from convstore.transfer.files import check_readable  # noqa: PLC0415 - loads the store

        if not self.is_address:
            check_readable(Path(self.name))
        elif self.kind != "langgraph":  # its checkpoints may be in PostgreSQL
            with wrong_usage():
                check_address(self.name)

    def scope_keys(self) -> tuple[str, ...]:
        """Return the scope keys of an export; () for any other source."""
        from convstore.transfer.files import scope_keys_of  # noqa: PLC0415 - loads the store

        is_export = not self.is_address and self.kind != "langgraph"
        return scope_keys_of(Path(self.name)) if is_export else ()

    def _empty_problem(self) -> str:
        """Return the problem of a source without conversations, with the options that name another source."""
        if self.is_address and self.kind == "langchain":
            return (
                "there is no conversation in it; name another collection (--collection) "
                "or format (--from)"
            )
        return "there is no conversation in it"

    async def read_into(
        self,
        store: ConversationStore,
        total: ImportReport,
        prepared: Callable[[Records], Records],
        *,
        quiet: bool,
        **options: Any,
    ) -> None:
        """Import all conversations, add their counts to a report, and show the progress unless `quiet`.

        `prepared` returns the records, and sets up the store before the first one is written.
        """
        from convstore.integration import host_of  # noqa: PLC0415 - loads the store
        from convstore.transfer import Problem, import_conversations  # noqa: PLC0415 - as above

        async with self._opened(host_of(store).codec) as (records, length, position):
            with progress(self.shown, length, quiet=quiet) as show:
                part = await import_conversations(
                    store,
                    prepared(records),
                    on_problem=total.note,
                    on_conversation=lambda so_far: show(
                        position(so_far), so_far.conversations, counts_of(so_far)
                    ),
                    **options,
                )
        total.add(part)
        if not part.conversations:
            total.note(Problem("conversation", self.shown, "", self._empty_problem()))

    @asynccontextmanager
    async def _opened(
        self, codec: Codec
    ) -> AsyncIterator[tuple[Records, int, Callable[[ImportReport], int]]]:
        """Yield the records, the length of the progress bar, and a function that returns the position on it."""
        from convstore import transfer  # noqa: PLC0415 - likewise
        from convstore.integration import driver_errors, open_database  # noqa: PLC0415 - loads the database driver

        if self.kind == "langgraph":
            async with self._checkpoints() as checkpoints:
                yield checkpoints, 0, lambda _: 0
            return
        if not self.is_address:
            read = [0]
            records = transfer.read_file(
                self.name, codec=codec, on_bytes=partial(read.__setitem__, 0)
            )
            size = os.path.getsize(self.name)  # noqa: ASYNC240 - before any other work
            yield records, size, lambda _: read[0]
            return
        readers = {
            "openai-agents": transfer.read_agents_sessions,
            "google-adk": transfer.read_adk_sessions,
            "step-store": transfer.read_step_store,
        }
        async with open_database(self.name, default=_DATABASES.get(self.kind, "")) as database:
            if self.kind in readers:
                yield readers[self.kind](database), 0, lambda _: 0
                return
            collection = database[self._collection]
            keys = {"session_key": self.names.session_key, "history_key": self.names.history_key}
            async with driver_errors():
                # read from the collection's metadata
                count = int(await collection.estimated_document_count())
            history = transfer.read_history_collection(collection, **keys)
            yield history, count, lambda report: report.messages + report.known

    @asynccontextmanager
    async def _checkpoints(self) -> AsyncIterator[Records]:
        """Open the checkpointer of a source, and yield the records of its threads."""
        from convstore.transfer.checkpoints import read_checkpoints, read_thread_ids  # noqa: PLC0415 - as above
        from convstore.transfer.savers import open_saver  # noqa: PLC0415 - as above

        thread_ids = read_thread_ids(self.thread_ids) if self.thread_ids else None
        given = {
            "collection": self.names.collection,
            "writes_collection": self.names.writes_collection,
        }
        named = {name: value for name, value in given.items() if value}
        async with open_saver(self.name, **named) as saver:
            yield read_checkpoints(saver, thread_ids, removed=self.removed)


def _refused(name: str, value: str, kind: str) -> str:
    option = f"--{name.replace('_', '-')}"
    return f"{option} must be a name that {kind} of MongoDB can have, not {value!r}"

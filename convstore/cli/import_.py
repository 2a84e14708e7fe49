"""What ``convstore import`` does: opens sources and store, shows how far it is, tells what became of everything.

Talks to ``transferring`` and to `import_conversations`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from convstore.cli.output import plain, screen
from convstore.exceptions import InvalidInputError
from convstore.mongo.driver import close_client, driver_errors, open_client
from convstore.store import ConversationStore
from convstore.transfer import (
    ImportReport,
    Problem,
    ScopeRule,
    import_conversations,
    read_file,
    read_history_collection,
)
from convstore.transfer.files import check_readable
from convstore.transfer.importing import Records
from convstore.values.addresses import is_address, safe_address

__all__ = ["ImportCommand", "Source", "Target", "print_import", "print_problems", "progress"]

_SHOWN_PROBLEMS = 20
_DATABASE_IN = re.compile(r"mongodb(\+srv)?://[^/]+/[^?]")
_LANGCHAINS_DATABASE = "chat_history"


@dataclass(frozen=True, slots=True)
class Target:
    """The store: its address, scope keys and prefix."""

    uri: str = field(repr=False)
    scope_keys: Sequence[str]
    prefix: str

    @asynccontextmanager
    async def opened(self, *, setup: bool) -> AsyncIterator[ConversationStore]:
        """The store; values of an application's own types go through it as they are."""
        options: dict[str, Any] = {"scope_keys": self.scope_keys, "collection_prefix": self.prefix}
        async with await ConversationStore.connect(self.uri, **options) as store:
            store.codec.keep_unknown()
            if setup:
                await store.setup()
            yield store


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or the address of a database with a collection and the names of its fields."""

    name: str = field(repr=False)
    collection: str
    session_key: str
    history_key: str

    @property
    def is_address(self) -> bool:
        """Whether it is a database; a malformed address is one too, so that no error takes it for a file's name."""
        return is_address(self.name) and not os.path.lexists(self.name)

    @property
    def shown(self) -> str:
        """Its name for people, without user info and options."""
        return f"{safe_address(self.name)}, collection {self.collection}" if self.is_address else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCommand:
    """One run of the command; fields as its options."""

    target: Target
    sources: list[Source]
    rule: ScopeRule
    jobs: int = 4
    limit: int | None = None
    dry_run: bool = False
    skip_messages: bool = False
    report_to: Path | None = None
    quiet: bool = False
    total: ImportReport = field(default_factory=ImportReport)

    async def run(self) -> ImportReport:
        """Import the sources one after the other.

        Raises:
            ConvstoreError: A source or the store cannot be opened, or the server does not answer.
        """
        for source in self.sources:
            if not source.is_address:
                check_readable(Path(source.name))
        with _lines_to(self.report_to) as tell:
            async with self.target.opened(setup=not self.dry_run) as store:
                for source in self.sources:
                    await self._source(store, source, tell)
        return self.total

    async def _source(self, store: ConversationStore, source: Source, tell: Callable[[Problem], None]) -> None:
        def note(problem: Problem) -> None:
            self.total.note(problem)
            tell(problem)

        async with _records(source, store) as (records, total, position):
            with progress(source.shown, total, quiet=self.quiet) as show:
                report = await import_conversations(
                    store,
                    records,
                    scope=self.rule,
                    jobs=self.jobs,
                    limit=self.limit,
                    dry_run=self.dry_run,
                    skip_messages=self.skip_messages,
                    on_problem=note,
                    on_conversation=lambda so_far: show(position(so_far), _so_far(so_far)),
                )
        for name in ("conversations", "imported", "extended", "unchanged", "messages", "known"):
            setattr(self.total, name, getattr(self.total, name) + getattr(report, name))
        if not report.conversations:
            note(Problem("conversation", source.shown, "", "there is no conversation in it"))


@asynccontextmanager
async def _records(
    source: Source, store: ConversationStore
) -> AsyncIterator[tuple[Records, int, Callable[[ImportReport], int]]]:
    """The records of a source, the length of the bar, and what tells how far it is."""
    if not source.is_address:
        path, read = Path(source.name), [0]
        size = await asyncio.to_thread(os.path.getsize, path)
        records = read_file(path, codec=store.codec, on_bytes=lambda place: read.__setitem__(0, place))
        yield records, size, lambda _: read[0]
        return
    client, database = open_client(source.name)
    try:
        if not _DATABASE_IN.match(source.name):
            database = client[_LANGCHAINS_DATABASE]
        collection = database[source.collection]
        async with driver_errors():
            documents = await collection.estimated_document_count()
        keys = {"session_key": source.session_key, "history_key": source.history_key}
        yield read_history_collection(collection, **keys), documents, lambda report: report.messages + report.known
    finally:
        await close_client(client)


@contextmanager
def _lines_to(path: Path | None) -> Iterator[Callable[[Problem], None]]:
    """What writes each problem to a file; nothing without one.

    Raises:
        InvalidInputError: It cannot be written.
    """
    if path is None:
        yield lambda _: None
        return
    try:
        file: IO[str] = path.open("w", encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror or error}") from error
    with file:
        yield lambda problem: print(json.dumps(asdict(problem)), file=file, flush=True)


@contextmanager
def progress(name: str, total: int, *, quiet: bool) -> Iterator[Callable[[int, str], None]]:
    """A bar on stderr, if a person looks at it; told how far it is and a few words."""
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _place, _words: None
        return
    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(plain(name), total=total or None)
        yield lambda place, words: bar.update(task, completed=place, description=plain(words))


def _so_far(report: ImportReport) -> str:
    return f"{report.conversations:,} conversations, {report.messages:,} messages, {report.left_out:,} left out"


def print_import(report: ImportReport, *, dry_run: bool, report_to: Path | None) -> None:
    """The report for eyes."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    will = "would be " if dry_run else ""
    rows = (
        (report.conversations, "conversations read"),
        (report.imported, f"{will}imported"),
        (report.extended, f"{will}completed: the first part was there"),
        (report.unchanged, "were there already"),
        (report.left_out, "left out"),
        (report.messages, f"messages {will}written"),
        (report.known, "messages were there already"),
        (report.messages_left_out, "messages left out"),
        (report.changed, "changes, named below"),
    )
    for number, what in rows:
        if number or what in ("conversations read", f"messages {will}written"):
            table.add_row(f"{number:,}", what)
    console = screen()
    console.print(table)
    print_problems(report, more=f"{report_to} has them all" if report_to else "--report FILE keeps them all")
    if report.is_complete:
        console.print("Nothing was left out." + (" Nothing was written: --dry-run." if dry_run else ""), style="green")


def print_problems(report: Any, *, more: str, stderr: bool = False) -> None:
    """The first things that were left out or changed, each on a line; those with the same reason on one."""
    console = screen(stderr=stderr)
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in report.problems:
        alike.setdefault((problem.what, problem.reason), []).append(problem)
    shown = list(alike.values())[:_SHOWN_PROBLEMS]
    for problems in shown:
        style = "yellow" if problems[0].what == "changed" else "red"
        console.print(Text(plain(_told(problems)), style=style), soft_wrap=True)
    rest = report.left_out + report.messages_left_out + report.changed - sum(map(len, shown))
    if rest:
        console.print(f"… and {rest:,} more; {more}.", style="red", soft_wrap=True)


def _told(problems: Sequence[Problem]) -> str:
    first = problems[0]
    what = {"conversation": "left out", "message": "message left out", "changed": "changed"}[first.what]
    name = f" ({first.conversation[:80]})" if first.conversation not in ("", first.where) else ""
    more = len(problems) - 1
    others = f" and {more:,} other{'' if more == 1 else 's'}" if more else ""
    return f"{what}: {first.where[:200]}{name}{others}: {first.reason[:400]}"

"""``convstore import``: conversations from files or from another store's collection."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console

from convstore.cli.options import (
    Pairs,
    Target,
    keys_option,
    on_database,
    open_store,
    read_pairs,
    set_up,
    stored_keys,
    warn_of_other_keys,
)
from convstore.cli.output import Answer, new_table, plain
from convstore.cli.progress import counts_of, print_problems, problems_to, progress
from convstore.exceptions import InvalidInputError, InvalidScopeError
from convstore.values.addresses import is_address, safe_address
from convstore.values.scope import PATH, check_scope_keys

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.messages.values import Codec
    from convstore.transfer import BadRecord, ConversationRecord, ImportReport, ScopeRule
    from convstore.transfer.importing import Records


Kind = Literal["langchain", "openai-agents", "google-adk", "step-store", "langgraph"]

Removed = Literal["rewind", "leave out"]

_DATABASES = {"langchain": "chat_history", "openai-agents": "agents"}
"""The databases that are read if an address names none."""
_COLLECTION = "message_store"
_SHOWN_SCOPES = 20


@on_database
async def import_command(
    target: Target,
    *,
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)],
    scope: Annotated[
        Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="The same value for all.")
    ] = None,
    scope_from: Annotated[
        Pairs, typer.Option("--scope-from", metavar="KEY=FIELD", help="A field's value.")
    ] = None,
    scope_match: Annotated[
        Pairs, typer.Option("--scope-match", metavar="FIELD=REGEX", help="Named groups.")
    ] = None,
    scope_key: Annotated[Pairs, keys_option("A scope key of your store; once for each.")] = None,
    kind: Annotated[
        Kind, typer.Option("--from", help="In a database: whose format.")
    ] = "langchain",
    collection: Annotated[
        str, typer.Option(help="In a database: the collection, or that of checkpoints.")
    ] = "",
    writes_collection: Annotated[
        str, typer.Option(help="Of MongoDBSaver: its collection of writes.")
    ] = "",
    session_key: Annotated[
        str, typer.Option(help="In a collection: its field of session ids.")
    ] = "SessionId",
    history_key: Annotated[
        str, typer.Option(help="In a collection: its field of messages.")
    ] = "History",
    thread_ids: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of checkpoints: one id a line.")
    ] = None,
    removed: Annotated[
        Removed, typer.Option(help="Messages that a graph removed from its state.")
    ] = "rewind",
    jobs: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 4,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Conversations of each source; all if not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and compare everything; write nothing.")
    ] = False,
    skip_messages: Annotated[
        bool, typer.Option("--skip-messages", help="Leave out single messages only.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Everything left out, as JSON lines.")
    ] = None,
) -> Answer:
    """Import conversations from files or from another store's collection.

    \b
    SOURCE is one or more of
      - JSON lines, plain or gzip: {"id": …, "messages": [OpenAI format]}, one
        conversation a line; messages may be LangChain's dicts too;
      - a file that `convstore export` wrote;
      - a file of SQLiteSession from OpenAI's Agents SDK;
      - mongodb://host/database: the collection that langchain-mongodb's
        MongoDBChatMessageHistory filled; with --from, the database of the
        MongoDBSession of OpenAI's Agents SDK (openai-agents), of Google ADK's
        MongoDbSessionService (google-adk), or of the MongoStepStore of
        pydantic-ai-harness (step-store). It is only read.
      - with --from langgraph the checkpoints of MongoDBSaver, PostgresSaver
        (postgresql://…) or SqliteSaver (a file): every message that the graph
        had. What it removed from its state is rewound, or left out with
        --removed "leave out". --thread-ids names the threads; else all.

    \b
    The scope of a conversation has a value for each scope key: that of --scope,
    else --scope-from, else --scope-match, else the one in an export. Without an
    export the last key defaults to the conversation's id. The keys are those of
    the stored conversations; in an empty database those of the export, else
    user_id and thread_id. --scope-key names others. An export with other keys
    is left out, unless the options name a value for each key.

    \b
    Run it again after it was stopped, or when the source has grown: stored
    messages are not written again. A conversation with a message that cannot be
    stored is left out and reported; --skip-messages leaves out the message only.
    Exit code 1 if anything was left out. A message without an id gets one made
    from the conversation's id and its position.

    \b
    Examples:
      convstore import chats.jsonl --scope user_id=ada
      convstore import chats.jsonl.gz --dry-run \\
          --scope-from user_id=meta.user --scope-from thread_id=id
      convstore import mongodb://old-host/chat_history \\
          --scope-match 'SessionId=(?P<user_id>[^:]+):(?P<thread_id>[^:]+)'
      convstore import mongodb://old-host/agents --from google-adk \\
          --scope-from user_id=user_id
      convstore import mongodb://old-host/checkpointing_db --from langgraph \\
          --scope-from user_id=metadata.user_id --dry-run
    """
    from convstore.transfer import ImportReport  # noqa: PLC0415 - loads the store

    named = {
        "constant": read_pairs("--scope", scope),
        "fields": read_pairs("--scope-from", scope_from, form="KEY=FIELD"),
        "match": read_pairs("--scope-match", scope_match, form="FIELD=REGEX"),
    }
    if scope_key:
        _scope_rule(scope_key, named)
    _check_checkpoint_options(
        kind, thread_ids=thread_ids, removed=removed, writes_collection=writes_collection
    )
    names = Names(collection, writes_collection, session_key, history_key)
    given = [Source(name, names, kind, thread_ids, removed) for name in sources]
    for source in given:
        source.check()
    exported = next(filter(None, (source.scope_keys() for source in given)), ())
    with problems_to(report) as write:
        total = ImportReport(on_problem=write)
        async with open_store(
            target.uri, scope_key, target.collection_prefix, exported_keys=exported
        ) as store:
            rule = _scope_rule(store.scope_keys, named)
            first = _FirstWrite(store, rule, dry_run=dry_run, is_named=bool(scope_key))
            options = {
                "jobs": jobs,
                "limit": limit,
                "dry_run": dry_run,
                "skip_messages": skip_messages,
            }
            for source in given:
                await source.read_into(
                    store, total, first, quiet=target.as_document, scope=rule, **options
                )
    return Answer(
        lambda: {"dry_run": dry_run, "scope_keys": list(rule.keys), **total.as_json()},
        lambda console: _print(console, total, rule.keys, dry_run=dry_run, report_to=report),
        0 if total.is_complete else 1,
    )


def _check_checkpoint_options(
    kind: Kind, *, thread_ids: Path | None, removed: Removed, writes_collection: str
) -> None:
    """Refuse options that choose what is read of checkpoints, if something else is read."""
    if kind == "langgraph":
        return
    given = {
        "--thread-ids": thread_ids is not None,
        "--removed": removed != "rewind",
        "--writes-collection": bool(writes_collection),
    }
    for option, is_given in given.items():
        if is_given:
            raise typer.BadParameter(
                f"{option} is an option of --from langgraph: add that, or leave {option} out"
            )


def _scope_rule(keys: Sequence[str], named: Mapping[str, Mapping[str, str]]) -> ScopeRule:
    from convstore.transfer import ScopeRule  # noqa: PLC0415 - loads the store

    try:
        return ScopeRule(keys=check_scope_keys(keys), **named)
    except InvalidScopeError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(slots=True)
class _FirstWrite:
    """Sets up the store before its first conversation is written, so that a refused import leaves no trace.

    A dry run writes nothing, and prints only what the setup would print.
    """

    store: ConversationStore
    rule: ScopeRule
    _: KW_ONLY
    dry_run: bool
    is_named: bool
    is_done: bool = False

    async def before(
        self, records: Records
    ) -> AsyncGenerator[ConversationRecord | BadRecord, None]:
        """Yield the records, and set up the store before the first one that has a scope."""
        from convstore.transfer.jobs import each_of  # noqa: PLC0415 - loads the store

        async with aclosing(each_of(records)) as each:
            async for record in each:
                if not self.is_done and self._has_scope(record):
                    await self._prepare()
                    self.is_done = True
                yield record

    def _has_scope(self, record: ConversationRecord | BadRecord) -> bool:
        from convstore.transfer import ConversationRecord  # noqa: PLC0415 - loads the store

        with suppress(InvalidScopeError):
            return isinstance(record, ConversationRecord) and bool(self.rule(record))
        return False

    async def _prepare(self) -> None:
        if self.dry_run:
            await warn_of_other_keys(self.store)
            return
        await set_up(self.store)
        # Before the setup, a pending migration can hide the stored conversations.
        stored = () if self.is_named else await stored_keys(self.store, {}, self.rule.keys)
        if stored and set(stored) != set(self.rule.keys):
            raise InvalidInputError(
                f"the stored conversations have the scope keys {', '.join(stored)}; import again"
            )


def _print(
    console: Console,
    report: ImportReport,
    keys: Sequence[str],
    *,
    dry_run: bool,
    report_to: Path | None,
) -> None:
    table = new_table("", " ", numbers=("",), show_header=False)
    will = "would be " if dry_run else ""
    rows = (
        (report.conversations, "conversations read"),
        (report.imported, f"{will}imported"),
        (report.extended, f"{will}completed: their first part was stored before"),
        (report.unchanged, "unchanged"),
        (report.left_out, "left out"),
        (report.messages, f"messages {will}written"),
        (report.known, "messages stored before"),
        (report.messages_left_out, "messages left out"),
        (report.changed, "changes, named below"),
    )
    for number, what in rows:
        if number or what in ("conversations read", f"messages {will}written"):
            table.add_row(f"{number:,}", what)
    console.print(table)
    console.print(f"Scope keys: {plain(', '.join(keys))}.", style="dim", soft_wrap=True)
    if report.scopes:
        _print_scopes(console, report, keys)
    print_problems(
        report, more=f"{report_to} has them all" if report_to else "--report FILE keeps them all"
    )
    if report.is_complete:
        what = "No conversation and no message" if report.changed else "Nothing"
        console.print(
            f"{what} was left out." + (" Nothing was written: --dry-run." if dry_run else ""),
            style="green",
        )


class Names(NamedTuple):
    """Names of collections, which depend on the kind of source if they are empty, and of fields."""

    collection: str
    writes_collection: str
    session_key: str
    history_key: str


def _print_scopes(console: Console, report: ImportReport, keys: Sequence[str]) -> None:
    """Print which conversation of the source would get which scope: the first ones."""
    shown = report.scopes[:_SHOWN_SCOPES]
    columns = [*keys, PATH] if any(PATH in assigned.scope for assigned in shown) else keys
    table = new_table("source", *columns)
    for assigned in shown:
        values = [plain(assigned.scope.get(key, "")) for key in columns]
        table.add_row(plain(assigned.where or assigned.conversation), *values)
    console.print(table)
    if (more := len(report.scopes) - _SHOWN_SCOPES) > 0:
        console.print(f"… and {more:,} more; --json has them all.", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Source:
    """File, or address of a database with the names of its collections and fields."""

    name: str = field(repr=False)
    names: Names
    kind: Kind = "langchain"
    thread_ids: Path | None = None
    removed: Removed = "rewind"

    @property
    def is_address(self) -> bool:
        """Return True for an address, also a malformed one, so that no error shows it as the name of a file."""
        return is_address(self.name) and not os.path.lexists(self.name)

    @property
    def shown(self) -> str:
        """Return the name to print, without user info and options."""
        what = f"collection {self._collection}" if self.kind == "langchain" else self.kind
        return f"{safe_address(self.name)}, {what}" if self.is_address else self.name

    @property
    def _collection(self) -> str:
        return self.names.collection or _COLLECTION

    def check(self) -> None:
        """Raise an InvalidInputError if a file cannot be read."""
        from convstore.transfer.files import check_readable  # noqa: PLC0415 - loads the store

        if not self.is_address:
            check_readable(Path(self.name))

    def scope_keys(self) -> tuple[str, ...]:
        """Return the scope keys of an export; none for any other source."""
        from convstore.transfer.files import scope_keys_of  # noqa: PLC0415 - loads the store

        is_export = not self.is_address and self.kind != "langgraph"
        return scope_keys_of(Path(self.name)) if is_export else ()

    def _empty(self) -> str:
        """Say that there is no conversation, and which options name another place."""
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
        first: _FirstWrite,
        *,
        quiet: bool,
        **options: Any,
    ) -> None:
        """Import all conversations, add their counts to a report, and show the progress unless `quiet`."""
        from convstore.integration import host_of  # noqa: PLC0415 - loads the store
        from convstore.transfer import Problem, import_conversations  # noqa: PLC0415 - as above

        async with self._opened(host_of(store).codec) as (records, length, position):
            with progress(self.shown, length, quiet=quiet) as show:
                part = await import_conversations(
                    store,
                    first.before(records),
                    on_problem=total.note,
                    on_conversation=lambda so_far: show(
                        position(so_far), so_far.conversations, counts_of(so_far)
                    ),
                    **options,
                )
        total.add(part)
        if not part.conversations:
            total.note(Problem("conversation", self.shown, "", self._empty()))

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
                count = int(await collection.estimated_document_count())  # from its metadata
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

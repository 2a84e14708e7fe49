"""``convstore import``: conversations from files or from another store's collection."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from convstore.cli.options import DEFAULT_SCOPE_KEYS, Pairs, Target, keys_option, on_database, open_store, read_pairs
from convstore.cli.output import Answer, new_table
from convstore.cli.progress import counts_of, print_problems, problems_to, progress
from convstore.exceptions import InvalidScopeError
from convstore.values.addresses import is_address, safe_address
from convstore.values.scope import check_scope_keys

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.messages.values import Codec
    from convstore.transfer import ImportReport, ScopeRule
    from convstore.transfer.importing import Records


Kind = Literal["langchain", "openai-agents", "google-adk", "step-store"]

_DATABASES = {"langchain": "chat_history", "openai-agents": "agents"}
"""The databases that are read if an address names none."""


@on_database
async def import_command(
    target: Target,
    *,
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", hidden=True)],
    scope: Annotated[Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="The same value for all.")] = None,
    scope_from: Annotated[Pairs, typer.Option("--scope-from", metavar="KEY=FIELD", help="A field's value.")] = None,
    scope_match: Annotated[Pairs, typer.Option("--scope-match", metavar="FIELD=REGEX", help="Named groups.")] = None,
    scope_key: Annotated[Pairs, keys_option("A scope key of your store. [default: user_id, thread_id]")] = None,
    kind: Annotated[Kind, typer.Option("--from", help="In a database: whose format.")] = "langchain",
    collection: Annotated[str, typer.Option(help="In a database: the collection.")] = "message_store",
    session_key: Annotated[str, typer.Option(help="In a collection: its field of session ids.")] = "SessionId",
    history_key: Annotated[str, typer.Option(help="In a collection: its field of messages.")] = "History",
    jobs: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 4,
    limit: Annotated[int | None, typer.Option(min=1, help="Conversations of each source; all if not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and compare everything; write nothing.")] = False,
    skip_messages: Annotated[bool, typer.Option("--skip-messages", help="Leave out single messages only.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Everything left out, as JSON lines.")] = None,
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

    \b
    The scope of a conversation has a value for each scope key: that of --scope,
    else --scope-from, else --scope-match, else the one in an export. The last
    key defaults to the conversation's id.

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
          --scope-match 'SessionId=(?P<user_id>[^:]+):(?P<thread_id>.+)'
      convstore import mongodb://old-host/agents --from google-adk \\
          --scope-from user_id=user_id
    """
    from convstore.transfer import ImportReport  # noqa: PLC0415 - loads the store

    keys = scope_key or DEFAULT_SCOPE_KEYS
    rule = _scope_rule(keys, constant=scope, fields=scope_from, match=scope_match)
    given = [Source(name, collection, session_key, history_key, kind) for name in sources]
    for source in given:
        source.check()
    with problems_to(report) as write:
        total = ImportReport(on_problem=write)
        async with open_store(target.uri, keys, target.collection_prefix, setup=not dry_run) as store:
            options = {"jobs": jobs, "limit": limit, "dry_run": dry_run, "skip_messages": skip_messages}
            for source in given:
                await source.read_into(store, total, quiet=target.as_document, scope=rule, **options)
    return Answer(
        lambda: {"dry_run": dry_run, **total.as_json()},
        lambda console: _print(console, total, dry_run=dry_run, report_to=report),
        0 if total.is_complete else 1,
    )


def _scope_rule(keys: Sequence[str], *, constant: Pairs, fields: Pairs, match: Pairs) -> ScopeRule:
    from convstore.transfer import ScopeRule  # noqa: PLC0415 - loads the store

    try:
        return ScopeRule(
            keys=check_scope_keys(keys),
            constant=read_pairs("--scope", constant),
            fields=read_pairs("--scope-from", fields, form="KEY=FIELD"),
            match=read_pairs("--scope-match", match, form="FIELD=REGEX"),
        )
    except InvalidScopeError as error:
        raise typer.BadParameter(str(error)) from error


def _print(console: Console, report: ImportReport, *, dry_run: bool, report_to: Path | None) -> None:
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
    print_problems(report, more=f"{report_to} has them all" if report_to else "--report FILE keeps them all")
    if report.is_complete:
        console.print("Nothing was left out." + (" Nothing was written: --dry-run." if dry_run else ""), style="green")


@dataclass(frozen=True, slots=True)
class Source:
    """File, or address of a database with a collection and the names of its fields."""

    name: str = field(repr=False)
    collection: str
    session_key: str
    history_key: str
    kind: Kind = "langchain"

    @property
    def is_address(self) -> bool:
        """Return True for an address, also a malformed one, so that no error shows it as the name of a file."""
        return is_address(self.name) and not os.path.lexists(self.name)

    @property
    def shown(self) -> str:
        """Return the name to print, without user info and options."""
        what = f"collection {self.collection}" if self.kind == "langchain" else self.kind
        return f"{safe_address(self.name)}, {what}" if self.is_address else self.name

    def check(self) -> None:
        """Raise an InvalidInputError if a file cannot be read."""
        from convstore.transfer.files import check_readable  # noqa: PLC0415 - loads the store

        if not self.is_address:
            check_readable(Path(self.name))

    async def read_into(self, store: ConversationStore, total: ImportReport, *, quiet: bool, **options: Any) -> None:
        """Import all conversations, add their counts to a report, and show the progress unless `quiet`."""
        from convstore.integration import host_of  # noqa: PLC0415 - loads the store
        from convstore.transfer import Problem, import_conversations  # noqa: PLC0415 - as above

        async with self._opened(host_of(store).codec) as (records, length, position):
            with progress(self.shown, length, quiet=quiet) as show:
                part = await import_conversations(
                    store,
                    records,
                    on_problem=total.note,
                    on_conversation=lambda so_far: show(position(so_far), so_far.conversations, counts_of(so_far)),
                    **options,
                )
        total.add(part)
        if not part.conversations:
            total.note(Problem("conversation", self.shown, "", "there is no conversation in it"))

    @asynccontextmanager
    async def _opened(self, codec: Codec) -> AsyncIterator[tuple[Records, int, Callable[[ImportReport], int]]]:
        """Yield the records, the length of the progress bar, and a function that returns the position on it."""
        from convstore import transfer  # noqa: PLC0415 - likewise
        from convstore.integration import estimated_count, open_database  # noqa: PLC0415 - loads the database driver

        if not self.is_address:
            read = [0]
            records = transfer.read_file(self.name, codec=codec, on_bytes=partial(read.__setitem__, 0))
            yield records, os.path.getsize(self.name), lambda _: read[0]  # noqa: ASYNC240 - before any other work
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
            collection = database[self.collection]
            keys = {"session_key": self.session_key, "history_key": self.history_key}
            count, position = await estimated_count(collection), lambda report: report.messages + report.known
            yield transfer.read_history_collection(collection, **keys), count, position

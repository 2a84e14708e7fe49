"""``convstore import``: conversations from files or from another store's collection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from convstore.cli.import_sources import ImportSource, Kind, Removed, SourceNames
from convstore.cli.options import (
    Pairs,
    StoreTarget,
    keys_option,
    on_database,
    open_store,
    read_pairs,
    set_up,
    stored_keys,
    warn_of_other_keys,
    wrong_usage,
)
from convstore.cli.output import Answer, new_table, plain
from convstore.cli.progress import print_problems, problems_to
from convstore.exceptions import InvalidInputError, InvalidScopeError
from convstore.values.scope import PATH, check_partial_scope, check_scope_keys

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.transfer import BadRecord, ConversationRecord, ImportReport, ScopeRule
    from convstore.transfer.importing import Records

_SHOWN_SCOPES = 20


@on_database
async def import_command(
    target: StoreTarget,
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
        had. Messages that it removed from its state are rewound, or left out
        with --removed "leave out". All threads, or those of --thread-ids.

    \b
    The scope of a conversation has a value for each scope key: that of --scope,
    else --scope-from, else --scope-match, else that of an export. For other
    sources the last key defaults to the conversation's id. The keys are those of
    the stored conversations; in an empty database those of the export, else
    user_id and thread_id. --scope-key names others. An export with other keys
    is left out, unless the options name a value for each key.

    \b
    Run it again after it was stopped, or when the source has grown: stored
    messages are not written again. A conversation with a message that cannot be
    stored is left out and reported; --skip-messages leaves out the message only.
    Exit code 1 if anything was left out. A message without an id gets one that
    is derived from the conversation's id and its position.

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
    names = SourceNames(collection, writes_collection, session_key, history_key)
    names.check()
    with wrong_usage("--scope"):
        check_partial_scope([*named["constant"]], named["constant"])
    given = [ImportSource(name, names, kind, thread_ids, removed) for name in sources]
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
                    store, total, first.before, quiet=target.as_document, scope=rule, **options
                )
    return Answer(
        lambda: {"dry_run": dry_run, "scope_keys": list(rule.keys), **total.as_json()},
        lambda console: _print(console, total, rule.keys, dry_run=dry_run, report_to=report),
        0 if total.is_complete else 1,
    )


def _check_checkpoint_options(
    kind: Kind, *, thread_ids: Path | None, removed: Removed, writes_collection: str
) -> None:
    """Refuse the options for checkpoints if the source is not one of checkpoints."""
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

    with wrong_usage():
        return ScopeRule(keys=check_scope_keys(keys), **named)


@dataclass(slots=True)
class _FirstWrite:
    """Sets up the store before its first conversation is written, so that a refused import does not change anything.

    A dry run does not write; it only prints the warning that the setup would print.
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


def _print_scopes(console: Console, report: ImportReport, keys: Sequence[str]) -> None:
    """Print the scopes that the first conversations of the source would get."""
    shown = report.scopes[:_SHOWN_SCOPES]
    columns = [*keys, PATH] if any(PATH in assigned.scope for assigned in shown) else keys
    table = new_table("source", *columns)
    for assigned in shown:
        values = [plain(assigned.scope.get(key, "")) for key in columns]
        table.add_row(plain(assigned.where or assigned.conversation), *values)
    console.print(table)
    if (more := len(report.scopes) - _SHOWN_SCOPES) > 0:
        console.print(f"… and {more:,} more; --json has them all.", soft_wrap=True)

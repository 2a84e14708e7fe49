"""The commands ``import`` and ``export``: their options and help.

Talks to people; ``taking_over`` and ``writing_out`` do the work. Added to the application by ``commands``.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from convstore.cli.export import ExportCommand, print_export
from convstore.cli.import_ import ImportCommand, Source, Target, print_import
from convstore.cli.options import DEFAULT_SCOPE_KEYS, Json, Pairs, Prefix, ScopeKeys, Uri
from convstore.cli.output import run, write_json
from convstore.exceptions import InvalidScopeError
from convstore.transfer import ScopeRule
from convstore.values.scope import check_scope_keys

__all__ = ["EXPORT", "IMPORT", "export_command", "import_command"]

IMPORT = """Take conversations over from files or from another store's collection.

\b
SOURCE is one or more of
  - JSON lines, plain or gzip: {"id": …, "messages": [OpenAI format]}, one
    conversation a line; messages may be LangChain's dicts too;
  - a file that `convstore export` wrote;
  - mongodb://host/database: the collection that langchain-mongodb's
    MongoDBChatMessageHistory filled. It is only read.

\b
Whose a conversation is, its scope, has a value for each scope key: what
--scope says, else --scope-from, else --scope-match, else what an export
says. The last key takes the conversation's id if nothing else is said.

\b
Run it again after it was stopped, or when the source has grown: what is
there already is not written again. A conversation with a message that can
not be stored is left out and named; --skip-messages takes the rest of it.
Exit code 1 if anything was left out. Ids of messages without one are made
from the conversation's id and the message's place.

\b
Examples:
  convstore import chats.jsonl --uri mongodb://localhost:27017/app \\
      --scope user_id=ada
  convstore import chats.jsonl.gz --uri mongodb://… --dry-run \\
      --scope-from user_id=meta.user --scope-from thread_id=id
  convstore import mongodb://old-host/chat_history --uri mongodb://… \\
      --scope-match 'SessionId=(?P<user_id>[^:]+):(?P<thread_id>.+)'
"""

EXPORT = """Write conversations to a file, one after the other.

\b
--format convstore    everything, for `convstore import`: messages with ids
                      and artifacts, dates, numbers of sources, titles,
                      metadata, annotations, rewound messages
         openai       {"id": …, "scope": …, "messages": [OpenAI format]}, one
                      conversation a line, without rewound messages
         fine-tuning  {"messages": […]} as OpenAI's fine-tuning takes it:
                      finished turns alone, and none that breaks its rules

\b
The file is there when it is whole, and only its owner can read it; one that
ends in .gz is compressed. What the format cannot hold, such as artifacts
in fine-tuning, is said at the end. Exit code 1 if anything was left out.

\b
Examples:
  convstore export --uri mongodb://localhost:27017/app -o backup.jsonl.gz
  convstore export --uri mongodb://… --scope user_id=ada --format openai
  convstore export --uri mongodb://… --format fine-tuning -o train.jsonl
"""


class _Format(StrEnum):
    CONVSTORE = "convstore"
    OPENAI = "openai"
    FINE_TUNING = "fine-tuning"


def import_command(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Files, or the address of a collection.")],
    *,
    uri: Uri,
    scope: Annotated[Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="The same value for all.")] = None,
    scope_from: Annotated[
        Pairs, typer.Option("--scope-from", metavar="KEY=FIELD", help="The value of a field.")
    ] = None,
    scope_match: Annotated[
        Pairs, typer.Option("--scope-match", metavar="FIELD=REGEX", help="Named groups of a field.")
    ] = None,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    collection: Annotated[str, typer.Option(help="In a database: the collection.")] = "message_store",
    session_key: Annotated[str, typer.Option(help="In a collection: the field with the session id.")] = "SessionId",
    history_key: Annotated[str, typer.Option(help="In a collection: the field with the message.")] = "History",
    jobs: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 4,
    limit: Annotated[int | None, typer.Option(min=1, help="Conversations of each source; all if not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and compare everything; write nothing.")] = False,
    skip_messages: Annotated[bool, typer.Option("--skip-messages", help="Leave out single messages only.")] = False,
    report: Annotated[Path | None, typer.Option(help="A file for all that was left out, as JSON lines.")] = None,
    as_document: Json = False,
) -> None:
    """See `IMPORT`."""
    keys = scope_key or DEFAULT_SCOPE_KEYS
    try:
        rule = ScopeRule(
            keys=check_scope_keys(keys),
            constant=_pairs("--scope", scope),
            fields=_pairs("--scope-from", scope_from, form="KEY=FIELD"),
            match=_pairs("--scope-match", scope_match, form="FIELD=REGEX"),
        )
    except InvalidScopeError as error:
        raise typer.BadParameter(str(error)) from error
    work = ImportCommand(
        target=Target(uri, keys, collection_prefix),
        sources=[Source(name, collection, session_key, history_key) for name in sources],
        rule=rule,
        jobs=jobs,
        limit=limit,
        dry_run=dry_run,
        skip_messages=skip_messages,
        report_to=report,
        quiet=as_document,
    )
    outcome = run(work.run(), as_document=as_document)
    if as_document:
        write_json({"dry_run": dry_run, **outcome.as_json()})
    else:
        print_import(outcome, dry_run=dry_run, report_to=report)
    if not outcome.is_complete:
        raise typer.Exit(1)


def export_command(
    *,
    uri: Uri,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; else it is printed.")] = None,
    format_: Annotated[_Format, typer.Option("--format", help="What is written.")] = _Format.CONVSTORE,
    scope: Annotated[Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="Only those with this value.")] = None,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Conversations, newest first; all if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_document: Json = False,
) -> None:
    """See `EXPORT`."""
    if as_document and output is None:
        raise typer.BadParameter("give --output too; without it the conversations are what is printed")
    work = ExportCommand(
        target=Target(uri, scope_key or DEFAULT_SCOPE_KEYS, collection_prefix),
        output=output,
        format=format_.value,
        scope=_pairs("--scope", scope),
        limit=limit,
        force=force,
        quiet=as_document,
    )
    outcome = run(work.run(), as_document=as_document)
    if as_document:
        write_json(outcome.as_json())
    else:
        print_export(outcome, output)
    if not outcome.is_complete:
        raise typer.Exit(1)


def _pairs(option: str, given: list[str] | None, *, form: str = "KEY=VALUE") -> dict[str, str]:
    """What stands left and right of the first ``=``."""
    pairs: dict[str, str] = {}
    for text in given or []:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise typer.BadParameter(f"{option} takes {form}, not {text!r}")
        if name in pairs:
            raise typer.BadParameter(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs

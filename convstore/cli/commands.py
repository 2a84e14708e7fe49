"""The commands: what can be asked of ``convstore`` on a command line, with its options and help.

Talks to people; each command hands its work to a module of its own, and errors to ``output``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from convstore import __version__
from convstore.cli.demo.demo import demo_as_json, print_demo, run_demo
from convstore.cli.migrate import migrate, outcome_as_json, print_outcome
from convstore.cli.options import DEFAULT_SCOPE_KEYS, Json, Prefix, ScopeKeys, Uri
from convstore.cli.output import run, screen, write_json
from convstore.cli.recordings import check_readable, count_lines
from convstore.cli.replay.replay import Replay
from convstore.cli.replay.report import FileReport, as_json, print_report
from convstore.cli.transferring import EXPORT, IMPORT, export_command, import_command
from convstore.cli.upkeep import DOCTOR, ERASE, PRUNE, doctor_command, erase_command, prune_command
from convstore.values.addresses import safe_address, without_addresses

__all__ = ["app"]


class _Commands(TyperGroup):
    """The commands. An error in the command line is said without addresses, which may hold passwords."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments up to the name of the command."""
        with _without_addresses():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of the command, and run it."""
        with _without_addresses():
            return super().invoke(ctx)


@contextmanager
def _without_addresses() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # An error in the command line has a message, whatever its class; nothing else that is raised here has.
        if isinstance(message := getattr(error, "message", None), str):
            error.message = without_addresses(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="convstore",
    cls=_Commands,
    help="The conversation store for agent backends on MongoDB, from the command line.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_DEMO = """Show what convstore does with a conversation about two questions.

\b
A small agent is asked two questions and finds ten passages for each.
You see what is stored, what the model gets at the third question, how it
reads an old result back, and what that saves. Works in memory, without a
server; what it writes to a server it removes again.

\b
Examples:
  convstore demo
  convstore demo --uri mongodb://localhost:27017/app
  convstore demo --json | jq .tokens
"""

_REPLAY = """Replay recorded conversations and check that nothing is lost.

\b
FILE holds one conversation a line, {"id": …, "messages": [OpenAI format]},
as plain JSON lines or gzip. A tool message may carry "sources", a list of
what was retrieved. Each conversation is appended turn by turn, and loaded
before each turn as an agent would; at its end a question is added. Then:

\b
  - the log must equal the file, message by message;
  - every view must be one that any provider accepts (calls and results);
  - every tool result must come back through the retrieval tool, to its end;
  - each view must begin with the view of the turn before (prompt caches),
    unless the token budget cut it.

\b
Exit code 1 if anything is lost, changed or unreachable, or a view is wrong.
Conversations get a user_id of their own and are deleted at the end. Times
are those of one caller among --jobs; use --jobs 1 for those of a single one.

\b
Examples:
  convstore replay chats.jsonl
  convstore replay --uri mongodb://localhost:27017/app data/*.jsonl.gz
  convstore replay --limit 20 --json chats.jsonl.gz > figures.json
"""

_MIGRATE = """Bring a database to the shape that this convstore expects.

\b
Shows which migrations were applied and runs those that are pending, one
process at a time. Safe to run twice: the second run changes nothing. It
is what `await store.setup()` does, for deployments that do it ahead.

\b
Examples:
  convstore migrate --uri mongodb://localhost:27017/app --dry-run
  convstore migrate --uri mongodb://localhost:27017/app
  convstore migrate --uri mongodb://… --scope-key team --scope-key room
"""

_AnyUri = Annotated[
    str, typer.Option("--uri", help="mongodb://host/database, or memory:// for none.", show_default=True)
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convstore {__version__}")
        raise typer.Exit


@app.callback()
def _convstore(
    *,
    _version_wanted: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before the command."""


@app.command("demo", help=_DEMO)
def _demo(*, uri: _AnyUri = "memory://", as_document: Json = False) -> None:
    demo = run(run_demo(uri), as_document=as_document)
    if as_document:
        write_json(demo_as_json(demo))
    else:
        print_demo(screen(), demo)


@app.command("replay", help=_REPLAY)
def _replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="JSON lines, plain or gzip.")],
    *,
    uri: _AnyUri = "memory://",
    jobs: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 4,
    limit: Annotated[int | None, typer.Option(min=1, help="Conversations of each file; all if not given.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the conversations in the database.")] = False,
    as_document: Json = False,
) -> None:
    user_id = Replay.new_user_id()
    work = _replayed(files, limit, quiet=as_document, uri=uri, jobs=jobs, keep=keep, user_id=user_id)
    reports = run(work, as_document=as_document)
    problems = [problem for report in reports for problem in report.problems]
    if as_document:
        write_json(_document(uri, user_id, reports))
    else:
        print_report(screen(), reports)
        if keep:
            typer.echo(f"The conversations stay in the database, with user_id {user_id!r}.")
    if problems:
        raise typer.Exit(1)


@app.command("migrate", help=_MIGRATE)
def _migrate(
    *,
    uri: Uri,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show; change nothing.")] = False,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
    work = migrate(uri, scope_keys=scope_key or DEFAULT_SCOPE_KEYS, prefix=collection_prefix, dry_run=dry_run)
    outcome = run(work, as_document=as_document)
    if as_document:
        write_json({"database": safe_address(uri), "dry_run": dry_run, **outcome_as_json(outcome)})
    else:
        print_outcome(screen(), outcome)


app.command("import", help=IMPORT)(import_command)
app.command("export", help=EXPORT)(export_command)
app.command("erase", help=ERASE)(erase_command)
app.command("prune", help=PRUNE)(prune_command)
app.command("doctor", help=DOCTOR)(doctor_command)


async def _replayed(files: list[Path], limit: int | None, *, quiet: bool, **options: Any) -> list[FileReport]:
    for path in files:
        check_readable(path)
    with _progress(files, limit, quiet=quiet) as advance:
        return await Replay(limit=limit, on_conversation=advance, **options).files(files)


@contextmanager
def _progress(files: list[Path], limit: int | None, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr, if a person looks at it."""
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = sum(min(count_lines(path), limit or sys.maxsize) for path in files)
        task = progress.add_task("conversations", total=total)
        yield lambda: progress.advance(task)


def _document(uri: str, user_id: str, reports: list[FileReport]) -> dict[str, Any]:
    problems = [asdict(problem) for report in reports for problem in report.problems]
    return {
        "version": __version__,
        "database": safe_address(uri),
        "user_id": user_id,
        "ok": not problems,
        "files": [as_json(report) for report in reports],
        "errors": problems,
    }

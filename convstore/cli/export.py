"""``convstore export``: write conversations to a file or to stdout.

A file gets its name only when it is complete.
"""

from __future__ import annotations

import glob
import gzip
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from convstore.cli.named import opened_conversation
from convstore.cli.options import StoreTarget, on_database
from convstore.cli.output import Answer, plain, screen
from convstore.cli.progress import counts_of, print_problems, progress, totals_for
from convstore.exceptions import InvalidInputError
from convstore.values.addresses import without_addresses
from convstore.values.plain import counted
from convstore.values.scope import PATH

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.transfer import ExportReport


_ABANDONED_SECONDS = 3_600
"""Age after which the unfinished file of a killed export is removed; a file in use was written to more recently."""


class _Format(StrEnum):
    CONVSTORE = "convstore"
    OPENAI = "openai"
    FINE_TUNING = "fine-tuning"


@on_database
async def export_command(
    target: StoreTarget,
    *,
    conversation: Annotated[
        list[str] | None, typer.Argument(metavar="CONVERSATION", hidden=True)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="stdout if not given.")
    ] = None,
    format_: Annotated[_Format, typer.Option("--format", help="See above.")] = _Format.CONVSTORE,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Conversations, newest first; all if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> Answer:
    """Write conversations to a file or to stdout.

    \b
    CONVERSATION names a single one, with its sub-agents, as for `convstore show`:
    the number of its row, its id, or its scope. Otherwise --scope selects some,
    or all are written.

    \b
    --format convstore    everything, for `convstore import`: messages with ids
                          and artifacts, dates, numbers of sources, titles,
                          metadata, state, items, annotations, rewound messages;
                          summaries too, which an import leaves out
             openai       {"id": …, "scope": …, "messages": [OpenAI format]}, one
                          conversation a line, without rewound messages
             fine-tuning  {"messages": […]} for OpenAI's fine-tuning: only
                          finished turns, and only those that follow its rules

    \b
    The file appears when it is complete, and only its owner can read it; a name
    that ends in .gz compresses it. Fields that a format cannot store, such as
    artifacts in fine-tuning, are reported at the end. Exit code 1 if anything
    was left out.

    \b
    Examples:
      convstore export -o backup.jsonl.gz
      convstore export -o nightly.jsonl.gz --force
      convstore export 3 --format openai
      convstore export --scope user_id=ada --format openai
      convstore export --format fine-tuning -o train.jsonl
    """
    if target.as_document and output is None:
        raise typer.BadParameter("pass --output too: without it stdout has the conversations")
    quiet = target.as_document or output is None
    with _open_output(output, force=force) as write:
        async with _selected(target, conversation or []) as (store, scope):
            report = await _export(
                store, write, scope, quiet=quiet, format=format_.value, limit=limit
            )
    return Answer(report.as_json, lambda _: _print(report, output), 0 if report.is_complete else 1)


@asynccontextmanager
async def _selected(
    target: StoreTarget, words: list[str]
) -> AsyncIterator[tuple[ConversationStore, dict[str, str]]]:
    """Open the store, and yield it with the scope values of the named conversation, or those of --scope."""
    if not words:
        async with target.open() as store:
            yield store, target.chosen
        return
    async with opened_conversation(target, words) as chat:
        scope = dict(chat.scope)
        if PATH in scope:
            raise InvalidInputError(
                "the conversation of a sub-agent is exported with that of its caller; name the "
                "caller's conversation"
            )
        yield chat.store, scope


async def _export(
    store: ConversationStore,
    write: Callable[[bytes], object],
    chosen: dict[str, str],
    *,
    quiet: bool,
    limit: int | None,
    **options: Any,
) -> ExportReport:
    """Export with a progress bar; raise an error if all conversations were left out, so that no file is replaced."""
    from convstore.transfer import export_conversations  # noqa: PLC0415 - loads the store

    conversations, messages = await totals_for(store, quiet=quiet, **chosen)
    share = min(1, limit / conversations) if limit and conversations else 1
    with progress("", int(messages * share), quiet=quiet) as show:
        report = await export_conversations(
            store,
            write,
            scope=chosen,
            limit=limit,
            on_conversation=lambda so_far: show(
                so_far.messages, so_far.conversations, counts_of(so_far)
            ),
            **options,
        )
    if report.left_out and not report.conversations:
        first = report.problems[0]
        number = counted(report.left_out, "conversation")
        raise InvalidInputError(
            f"none of {number} could be written, such as {first.where}: {first.reason}"
        )
    return report


def _print(report: ExportReport, output: Path | None) -> None:
    """Print the report on stderr, because stdout may be the export."""
    console = screen(stderr=True)
    name = plain(str(output)) if output else "stdout"
    console.print(f"{counts_of(report)}, {report.size:,} bytes, to {name}.", soft_wrap=True)
    if number := report.sub_agents:
        are = "is" if number == 1 else "are"
        console.print(f"Of these conversations {number:,} {are} of sub-agents.", soft_wrap=True)
    print_problems(report, more="--json lists more of them", stderr=True)
    if not report.conversations and report.is_complete:
        console.print("There are no conversations with this scope.", style="yellow")


@contextmanager
def _open_output(path: Path | None, *, force: bool) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes bytes; a file gets its name only on success.

    Raises:
        InvalidInputError: The file exists and `force` is False, or it cannot be written.
    """
    name = without_addresses(str(path or "stdout"))
    try:
        if path is None:
            yield sys.stdout.buffer.write
            sys.stdout.buffer.flush()
        elif path.exists() and not force:
            raise InvalidInputError(
                f"{name} already exists; choose another file, or replace it with --force"
            )
        else:
            with _whole_file(path) as write:
                yield write
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be written: {error.strerror or error}") from error


@contextmanager
def _whole_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):  # a concurrent export renamed it, or it belongs to another user
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as raw:
            is_gzip = path.suffix == ".gz"
            # The header has neither name nor date, so that equal exports are equal files.
            file = (
                cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if is_gzip else raw
            )
            yield file.write
            if is_gzip:
                file.close()
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

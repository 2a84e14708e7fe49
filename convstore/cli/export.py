"""What ``convstore export`` does: writes a file that is there when it is whole, or prints.

Talks to ``transferring`` and to `export_conversations`.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from convstore.cli.import_ import Target, print_problems, progress
from convstore.cli.output import plain, screen
from convstore.exceptions import InvalidInputError
from convstore.transfer import ExportReport, export_conversations
from convstore.transfer.exporting import ExportFormat

__all__ = ["ExportCommand", "print_export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCommand:
    """One run of the command; fields as its options."""

    target: Target
    output: Path | None
    format: str
    scope: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    force: bool = False
    quiet: bool = False

    async def run(self) -> ExportReport:
        """Write the conversations.

        Raises:
            ConvstoreError: The store cannot be opened, the server does not answer, the file cannot be written, or no
                conversation can; a file that is there stays then.
        """
        with _output(self.output, force=self.force) as write:
            async with self.target.opened(setup=False) as store:
                with progress("", 0, quiet=self.quiet or self.output is None) as show:
                    report = await export_conversations(
                        store,
                        write,
                        format=cast(ExportFormat, self.format),
                        scope=self.scope,
                        limit=self.limit,
                        on_conversation=lambda so_far: show(so_far.conversations, _so_far(so_far)),
                    )
            if report.left_out and not report.conversations:
                first = report.problems[0]
                raise InvalidInputError(
                    f"none of {report.left_out} conversations could be written, such as {first.where}: {first.reason}"
                )
            return report


def print_export(report: ExportReport, output: Path | None) -> None:
    """The report for eyes, on stderr: stdout may be the export."""
    console = screen(stderr=True)
    name = plain(str(output)) if output else "stdout"
    console.print(f"{_so_far(report)}, {report.size:,} bytes, to {name}.", soft_wrap=True)
    print_problems(report, more="--json lists more of them", stderr=True)
    if not report.conversations and report.is_complete:
        console.print("There are no conversations with this scope.", style="yellow")


def _so_far(report: ExportReport) -> str:
    return f"{report.conversations:,} conversations, {report.messages:,} messages"


@contextmanager
def _output(path: Path | None, *, force: bool) -> Iterator[Callable[[bytes], object]]:
    """What takes bytes; a file gets its name when all went well.

    Raises:
        InvalidInputError: It cannot be written, or is there already.
    """
    try:
        if path is None:
            yield sys.stdout.buffer.write
            sys.stdout.buffer.flush()
        elif path.exists() and not force:
            raise InvalidInputError(f"{path} is there already; name another file, or replace it with --force")
        else:
            with _whole_file(path) as write:
                yield write
    except OSError as error:
        raise InvalidInputError(f"{path or 'stdout'} cannot be written: {error.strerror or error}") from error


@contextmanager
def _whole_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as raw:
            is_gzip = path.suffix == ".gz"
            # Without a name and a date, the same conversations give the same file.
            file = cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if is_gzip else raw
            yield file.write
            if is_gzip:
                file.close()
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

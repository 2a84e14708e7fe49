"""Replay recorded conversations of your own through a store, and print every broken promise.

Run: ``python benchmarks/replay.py FILE...``; it needs the extra ``cli``. ``--help`` has the options.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from replay_conversations import Replay
from replay_report import FileReport, print_report

from convstore import __version__
from convstore.cli.options import AnyUri, Json
from convstore.cli.output import Answer, answer
from convstore.cli.progress import progress
from convstore.transfer.files import check_readable
from convstore.values.addresses import safe_address
from convstore.values.plain import counted

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", hidden=True)],
    *,
    uri: AnyUri = "memory://",
    jobs: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 4,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Conversations of each file; all if not given.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the conversations in the database.")
    ] = False,
    as_document: Json = False,
) -> None:
    """Replay recorded conversations and check that nothing is lost.

    \b
    FILE holds one conversation a line, {"id": …, "messages": [OpenAI format]},
    as plain JSON lines or gzip, or is an export. A tool message may carry
    "sources", a list of what was retrieved. Each conversation is appended turn
    by turn, and loaded before each turn as an agent would; at its end a
    question is added. Then:

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
      python benchmarks/replay.py chats.jsonl
      python benchmarks/replay.py --uri "$CONVSTORE_URI" data/*.jsonl.gz
      python benchmarks/replay.py --limit 20 --json chats.jsonl.gz > figures.json
    """  # noqa: D301 - typer reads the marks
    replaying = Replay(uri=uri, jobs=jobs, limit=limit, keep=keep)

    async def work() -> Answer:
        for path in files:
            check_readable(path)
        with progress("", sum(map(os.path.getsize, files)), quiet=as_document) as show:
            reports = await replaying.files(
                files,
                on_progress=lambda size, number: show(
                    size, number, counted(number, "conversation")
                ),
            )
        has_problems = any(report.problems for report in reports)
        document = partial(_document, uri, replaying.user_id, reports)
        return Answer(
            document,
            partial(print_report, reports=reports, kept=replaying.user_id if keep else ""),
            has_problems,
        )

    answer(work(), as_document=as_document)


def _document(uri: str, user_id: str, reports: list[FileReport]) -> dict[str, Any]:
    problems = [problem for report in reports for problem in report.problems]
    return {
        "version": __version__,
        "database": safe_address(uri),
        "user_id": user_id,
        "ok": not problems,
        "files": [report.as_json() for report in reports],
        "errors": problems,
    }


if __name__ == "__main__":
    app()

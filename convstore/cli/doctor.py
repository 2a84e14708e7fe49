"""``convstore doctor``: check all stored data for damage and repair derived data, or test the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import StoreTarget, on_database
from convstore.cli.output import FOUND, Answer, kind_label, plain, table_of
from convstore.cli.progress import progress, totals_for
from convstore.cli.server import server_answer
from convstore.exceptions import NotSetUpError
from convstore.values.plain import counted

if TYPE_CHECKING:
    from convstore import ConversationStore
    from convstore.types import Finding, VerifyReport


_SHOWN = 50
_SECONDS = 60
_LOSSES = frozenset({"annotation", "head_entry", "hole"})
"""Kinds of findings whose repair gives up lost messages."""


@on_database
async def doctor_command(
    target: StoreTarget,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be rebuilt.")] = False,
    server: Annotated[
        bool,
        typer.Option("--server", help="Test if the server supports everything that a store needs."),
    ] = False,
    seconds: Annotated[
        int | None,
        typer.Option("--timeout", min=1, max=600, help="Time limit of --server. Default: 60."),
    ] = None,
) -> Answer:
    """Check all stored data for damage, and repair data that can be rebuilt.

    \b
    Reads every message and result, compares them with their checksums and
    with each other, and checks scopes, summaries, annotations, indexes,
    options and migrations. Writers may keep running. Findings name collection
    and document; docs/reference/findings.md explains each kind.

    \b
    --repair rebuilds data that is derived from the log, missing indexes and
    migrations. It removes leftovers of failed appends and deletions older than
    24 hours. A log that lost messages is replaced by a copy of the others:
    restore them from a backup first if you can. Messages are never changed.
    Exit code 3 if a finding was not repaired, 1 if the check could not be
    completed, 2 if the command line is invalid.

    \b
    --server tests everything that a store uses of a server, without reading a
    store: run it before you move to a server that is not MongoDB's own. It
    writes to collections convstore_probe_* of the database, and removes them,
    also those of a killed run. Exit code 3 if something is missing, 1 if
    something could not be tested.

    \b
    Examples:
      convstore doctor
      convstore doctor --server
      convstore doctor --scope user_id=ada --json
      convstore doctor --repair
    """
    if server:
        if repair or target.chosen:
            raise typer.BadParameter(
                "--server only tests the server: leave out --repair and --scope"
            )
        return await server_answer(target.uri, target.address, seconds=seconds or _SECONDS)
    if seconds is not None:
        raise typer.BadParameter(
            "--timeout is the limit of --server: add it, or leave --timeout out"
        )
    async with target.open() as store:
        await _check_set_up(store, target.chosen)
        _, messages = await totals_for(store, quiet=False, **target.chosen)
        with progress("checking", messages) as show:
            report = await store.verify(
                repair=repair,
                progress=lambda so_far: show(
                    so_far.messages, so_far.conversations, _counts_of(so_far)
                ),
                **target.chosen,
            )
    head = {"database": target.address, "repair": repair, "ok": report.ok}
    return Answer(
        lambda: {**head, **report.model_dump(mode="json")},
        lambda console: _print_report(console, report, repair=repair),
        0 if report.ok else FOUND,
    )


async def _check_set_up(store: ConversationStore, chosen: dict[str, str]) -> None:
    """Refuse a database that was never set up, so that a mistyped name does not lead to findings or new collections.

    Raises:
        NotSetUpError: The database has no migration, no collection and no index of a store.
    """
    if any(step.is_applied for step in await store.migrations()):
        return
    report = await store.verify(repair=False, progress=None, **chosen)
    if {finding.kind for finding in report.findings} <= {
        "migration",
        "collection",
        "index_missing",
    }:
        raise NotSetUpError(
            "the database was never set up; check its name in --uri, or run `convstore migrate`"
        )


def _counts_of(report: VerifyReport) -> str:
    conversations = counted(report.conversations, "conversation")
    return f"{conversations}, {counted(report.entries, 'log document')}"


def _print_report(console: Console, report: VerifyReport, *, repair: bool) -> None:
    checked = report.model_dump(exclude={"findings", "counts", "left"})
    rows = [(kind_label(name), f"{number:,}") for name, number in checked.items()]
    console.print(table_of(("checked", ""), rows))
    if report.findings:
        console.print()
    for finding in report.findings[:_SHOWN]:
        style = "green" if finding.repaired else "yellow"
        console.print(Text(f"{finding.kind}, {_state(finding)}", style=style))
        # both are equal for a finding about a collection
        names = dict.fromkeys((finding.collection, finding.document_id))
        console.print(f"  {plain(' '.join(names))}", soft_wrap=True)
        console.print(f"  {plain(finding.problem)}", soft_wrap=True)
        for name, lost in (
            ("messages", finding.lost_ordinals),
            ("source ids", finding.lost_source_ids),
        ):
            if lost:
                console.print(f"  lost {name}: {lost[0]}-{lost[1]}", soft_wrap=True)
    total = sum(report.counts.values())
    if total > _SHOWN:
        console.print(f"… and {total - _SHOWN:,} more; --json lists 1,000")
    console.print()
    console.print(_verdict(report, total, repair=repair), style="dim")


def _state(finding: Finding) -> str:
    if finding.repaired:
        return f"repaired, as {finding.repaired_as}" if finding.repaired_as else "repaired"
    return "can be repaired" if finding.repairable else "not repaired"


def _verdict(report: VerifyReport, total: int, *, repair: bool) -> str:
    if not total:
        return "No damage found."
    text = f"{total:,} found, {total - report.left:,} repaired."
    if not repair and not _LOSSES.isdisjoint(report.counts):
        text += " Messages may be lost: restore a backup first; --repair gives them up."
    elif not repair and any(finding.repairable for finding in report.findings):
        text += " Run it again with --repair to mend those that can be repaired."
    return text

"""The commands ``erase``, ``prune`` and ``doctor``: their options and help, and what they print.

Talks to people; the store does the work. Added to the application by ``commands``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.options import DEFAULT_SCOPE_KEYS, Json, Pairs, Prefix, ScopeKeys, Uri
from convstore.cli.output import plain, run, screen, write_json
from convstore.store import ConversationStore
from convstore.values.addresses import safe_address
from convstore.values.models import ErasureReceipt, Finding, VerifyReport

__all__ = ["DOCTOR", "ERASE", "FOUND", "PRUNE", "doctor_command", "erase_command", "prune_command", "read_age"]

ERASE = """Remove all conversations of a user, or with other scope values.

\b
Without --yes it only counts. With it, whole conversations are removed for
good: messages, results, summaries and annotations. Conversations that begin
meanwhile may stay. Safe to repeat, to kill and to race.

\b
Examples:
  convstore erase --uri mongodb://localhost:27017/app --scope user_id=ada
  convstore erase --uri mongodb://… --scope user_id=ada --yes
  convstore erase --uri mongodb://… --everything --yes --json
"""

PRUNE = """Remove conversations to which nothing was appended for long.

\b
Whole conversations, by their last message: messages, results, summaries
and annotations. One that is written to in the same moment is not lost.
Nothing in the database expires by itself; run this as often as your
policy wants, from cron for example. Safe to repeat, to kill and to race.

\b
Examples:
  convstore prune --uri mongodb://localhost:27017/app --older-than 90d \\
      --dry-run
  convstore prune --uri mongodb://… --older-than 12w --scope user_id=ada
  convstore prune --uri mongodb://… --older-than 36h --json
"""

DOCTOR = """Look whether everything in the database is as it should be.

\b
Reads every entry and every payload, compares them with their checksums
and with each other, and looks at heads, summaries, annotations, indexes,
options and migrations, beside running writers. What it finds is named by
collection and document; docs/operations.md tells each kind of finding.
Heads that seem out of date are looked at again 15 seconds later.

\b
--repair mends what follows from the rest: what heads repeat of the log,
missing indexes and migrations; and removes what broken appends and
deletions left behind more than 24 hours ago. It gives up entries that are
missing: restore them first if you can. No entry is changed or removed.
Exit code 3 if anything was found that was not repaired, 1 if it could not
look at everything, 2 if the command line makes no sense.

\b
Examples:
  convstore doctor --uri mongodb://localhost:27017/app
  convstore doctor --uri mongodb://… --scope user_id=ada --json
  convstore doctor --uri mongodb://… --repair
"""

FOUND = 3
"""Exit code of a doctor that looked at everything and left something unrepaired; 1 says that it could not look."""

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHOWN = 50

_Scope = Annotated[Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="Only those with this value.")]


def erase_command(
    *,
    uri: Uri,
    scope: _Scope = None,
    everything: Annotated[bool, typer.Option("--everything", help="All conversations, without --scope.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; only counted without.")] = False,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
    """See `ERASE`."""
    chosen = _values(scope)
    if everything == bool(chosen):
        raise typer.BadParameter("name conversations with --scope KEY=VALUE, or say --everything for all")

    async def work() -> ErasureReceipt:
        async with await _store(uri, scope_key, collection_prefix) as store:
            return await store.erase(everything=everything, dry_run=not yes, **chosen)

    receipt = run(work(), as_document=as_document)
    if as_document:
        write_json({"database": safe_address(uri), "dry_run": not yes, **receipt.model_dump()})
        return
    _print_receipt(screen(), receipt, dry_run=not yes)
    if not yes:
        screen().print("\nNothing was removed. Run it again with --yes to remove this for good.", style="dim")


def prune_command(
    *,
    uri: Uri,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Since the last message: 90d, 12w, 36h or 30m.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count; change nothing.")] = False,
    scope: _Scope = None,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
    """See `PRUNE`."""
    age, chosen = read_age(older_than), _values(scope)

    async def work() -> ErasureReceipt:
        async with await _store(uri, scope_key, collection_prefix) as store:
            return await store.prune(older_than=age, dry_run=dry_run, **chosen)

    receipt = run(work(), as_document=as_document)
    if as_document:
        said = {"database": safe_address(uri), "dry_run": dry_run, "older_than_seconds": int(age.total_seconds())}
        write_json({**said, **receipt.model_dump()})
    else:
        _print_receipt(screen(), receipt, dry_run=dry_run)


def doctor_command(
    *,
    uri: Uri,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended without guessing.")] = False,
    scope: _Scope = None,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
    """See `DOCTOR`."""
    chosen = _values(scope)

    async def work() -> VerifyReport:
        with _progress() as advance:
            async with await _store(uri, scope_key, collection_prefix) as store:
                return await store.verify(repair=repair, progress=advance, **chosen)

    report = run(work(), as_document=as_document)
    if as_document:
        said = {"database": safe_address(uri), "repair": repair, "ok": report.ok}
        write_json({**said, **report.model_dump(mode="json")})
    else:
        _print_report(screen(), report, repair=repair)
    if not report.ok:
        raise typer.Exit(FOUND)


def read_age(text: str) -> timedelta:
    """A length of time as people write it.

    >>> read_age("90d"), read_age("36h")
    (datetime.timedelta(days=90), datetime.timedelta(days=1, seconds=43200))

    Raises:
        typer.BadParameter: None, or longer than there are dates.
    """
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    age = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta.max
    if age > datetime.now(UTC) - datetime.min.replace(tzinfo=UTC):
        raise typer.BadParameter(f"an age is a number and m, h, d or w, such as 90d, not {text!r}")
    return age


async def _store(uri: str, keys: Pairs, prefix: str) -> ConversationStore:
    names = keys or DEFAULT_SCOPE_KEYS
    return await ConversationStore.connect(uri, scope_keys=names, collection_prefix=prefix)


def _values(given: Pairs) -> dict[str, str]:
    """Scope values as they are given."""
    values: dict[str, str] = {}
    for text in given or []:
        key, sign, value = text.partition("=")
        if not sign or not value or not key.isidentifier() or key in values:
            raise typer.BadParameter(f"--scope takes KEY=VALUE, each key once, not {text!r}")
        values[key] = value
    return values


@contextmanager
def _progress() -> Iterator[Callable[[VerifyReport], None] | None]:
    """A line on stderr that tells how far it is, if a person looks at it."""
    console = screen(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("looking") as status:
        yield lambda report: status.update(f"{report.conversations:,} conversations, {report.entries:,} entries")


def _print_receipt(console: Console, receipt: ErasureReceipt, *, dry_run: bool) -> None:
    rows = [(name.replace("_", " "), f"{number:,}") for name, number in receipt.model_dump().items()]
    console.print(_table(("removed" if not dry_run else "would be removed", ""), rows))


def _print_report(console: Console, report: VerifyReport, *, repair: bool) -> None:
    looked = report.model_dump(exclude={"findings", "counts", "left"})
    console.print(_table(("looked at", ""), [(name.replace("_", " "), f"{n:,}") for name, n in looked.items()]))
    if report.findings:
        console.print()
    for finding in report.findings[:_SHOWN]:
        console.print(Text(f"{finding.kind}, {_state(finding)}", style="green" if finding.repaired else "yellow"))
        console.print(f"  {plain(finding.collection)} {plain(finding.document_id)}", soft_wrap=True)
        console.print(f"  {plain(finding.problem)}", soft_wrap=True)
    total = sum(report.counts.values())
    if total > _SHOWN:
        console.print(f"… and {total - _SHOWN:,} more; --json lists 1,000")
    console.print()
    console.print(_verdict(report, total, repair=repair), style="dim")


def _state(finding: Finding) -> str:
    if finding.repaired:
        return "repaired"
    return "can be repaired" if finding.repairable else "not repaired"


def _verdict(report: VerifyReport, total: int, *, repair: bool) -> str:
    if not total:
        return "All is as it should be."
    text = f"{total:,} found, {total - report.left:,} repaired."
    if not repair and any(finding.repairable for finding in report.findings):
        text += " Run it again with --repair."
    return text


def _table(headings: tuple[str, str], rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(headings[0])
    table.add_column(headings[1], justify="right")
    for row in rows:
        table.add_row(*row)
    return table

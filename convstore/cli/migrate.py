"""``convstore migrate``: apply pending migrations to a database, or list them.

Floor 8. Parses the options of the `Migrator` and prints what it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.options import DEFAULT_SCOPE_KEYS, Json, Prefix, ScopeKeys, Uri
from convstore.cli.output import plain, run, screen, write_json
from convstore.mongo.driver import Driver, close_client, open_client
from convstore.mongo.migrator import Migrator, discover
from convstore.store import ConversationStore
from convstore.values.addresses import safe_address

__all__ = ["MIGRATE", "migrate_command"]


MIGRATE = """Bring a database to the shape that this convstore expects.

\b
Lists applied migrations and runs pending ones, one process at a time. Safe
to run twice: the second run changes nothing. `await store.setup()` does the
same; use this command in deployments that migrate ahead of time.

\b
Examples:
  convstore migrate --uri mongodb://localhost:27017/app --dry-run
  convstore migrate --uri mongodb://localhost:27017/app
  convstore migrate --uri mongodb://… --scope-key team --scope-key room
"""


def migrate_command(
    *,
    uri: Uri,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show; change nothing.")] = False,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
    """See `MIGRATE`."""
    work = _migrated(uri, scope_keys=scope_key or DEFAULT_SCOPE_KEYS, prefix=collection_prefix, dry_run=dry_run)
    outcome = run(work, as_document=as_document)
    if as_document:
        write_json({"database": safe_address(uri), "dry_run": dry_run, **asdict(outcome)})
    else:
        _print(screen(), outcome)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Names of migrations that were applied before, were applied now, and are still pending."""

    applied: list[str]
    ran: list[str]
    pending: list[str]


async def _migrated(uri: str, *, scope_keys: Sequence[str], prefix: str, dry_run: bool) -> _Outcome:
    """Apply pending migrations, or with `dry_run` only list them; safe to repeat and to run concurrently.

    Raises:
        InvalidInputError: The address, the scope keys or the prefix are invalid.
        SchemaVersionError: The database was set up by a newer convstore; nothing was done.
        StoreUnavailableError: The server does not answer, or another process is migrating.
    """
    client, database = open_client(uri)
    try:
        # The store validates scope keys and prefix.
        keys = ConversationStore(database, scope_keys=scope_keys, collection_prefix=prefix).scope_keys
        migrator = Migrator(Driver(database), prefix=prefix, scope_keys=keys)
        applied = await migrator.applied()
        pending = [migration.name for migration in await migrator.pending()]
        ran = [] if dry_run else await migrator.run()
        return _Outcome(applied, ran, pending if dry_run else [])
    finally:
        await close_client(client)


def _print(console: Console, outcome: _Outcome) -> None:
    """Print each migration with its state and summary."""
    summaries = {migration.name: migration.summary for migration in discover()}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in ("migration", "state", "what it does"):
        table.add_column(heading)
    states = (
        (outcome.applied, "applied before", ""),
        (outcome.ran, "applied now", "green"),
        (outcome.pending, "pending", "yellow"),
    )
    for names, state, style in states:
        for name in names:
            table.add_row(plain(name), Text(state, style=style), plain(summaries.get(name, "")))
    console.print(table)
    console.print(_verdict(outcome), style="dim")


def _verdict(outcome: _Outcome) -> str:
    if outcome.pending:
        return f"{len(outcome.pending)} to run; nothing was changed. Run it again without --dry-run."
    return f"{len(outcome.ran)} run now. The database is up to date." if outcome.ran else "The database is up to date."

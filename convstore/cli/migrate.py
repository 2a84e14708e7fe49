"""Shows and runs the migrations of a database.

Talks to ``commands`` and to the `Migrator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convstore.cli.output import plain
from convstore.mongo.driver import Driver, close_client, open_client
from convstore.mongo.migrator import Migrator, discover
from convstore.store import ConversationStore

__all__ = ["Outcome", "migrate", "outcome_as_json", "print_outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found and done: names of migrations that had run before, that ran now, and that are still to run."""

    applied: list[str]
    ran: list[str]
    pending: list[str]


async def migrate(uri: str, *, scope_keys: Sequence[str], prefix: str, dry_run: bool) -> Outcome:
    """Run what is pending, or with `dry_run` only look; safe to repeat and to race.

    Raises:
        InvalidInputError: The address, the scope keys or the prefix make no sense.
        SchemaVersionError: The database was set up by a newer convstore; nothing was done.
        StoreUnavailableError: No answer from the server, or another process is migrating.
    """
    client, database = open_client(uri)
    try:
        # A store says what of these it refuses.
        keys = ConversationStore(database, scope_keys=scope_keys, collection_prefix=prefix).scope_keys
        migrator = Migrator(Driver(database), prefix=prefix, scope_keys=keys)
        applied = await migrator.applied()
        pending = [migration.name for migration in await migrator.pending()]
        ran = [] if dry_run else await migrator.run()
        return Outcome(applied, ran, pending if dry_run else [])
    finally:
        await close_client(client)


def outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome for a program."""
    return {"applied": outcome.applied, "ran": outcome.ran, "pending": outcome.pending}


def print_outcome(console: Console, outcome: Outcome) -> None:
    """The outcome for eyes: each migration, what became of it and what it does."""
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


def _verdict(outcome: Outcome) -> str:
    if outcome.pending:
        return f"{len(outcome.pending)} to run; nothing was changed. Run it again without --dry-run."
    return f"{len(outcome.ran)} run now. The database is up to date." if outcome.ran else "The database is up to date."

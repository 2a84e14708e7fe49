"""``convstore migrate``: apply pending migrations to a database, or list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from convstore.cli.options import (
    DatabaseTarget,
    Pairs,
    on_database,
    open_store,
    set_up,
    wrong_usage,
)
from convstore.cli.output import Answer, new_table, plain
from convstore.values.scope import check_listings, check_scope_keys

if TYPE_CHECKING:
    from convstore.types import Migration


@on_database
async def migrate_command(
    target: DatabaseTarget,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show; change nothing.")] = False,
    after_deployment: Annotated[
        bool,
        typer.Option(
            "--after-deployment",
            help="Every process runs this version: refuse older ones, and finish.",
        ),
    ] = False,
    listing: Annotated[
        Pairs,
        typer.Option(
            "--listing", metavar="KEY,KEY", help="More scope keys to list by; once for each index."
        ),
    ] = None,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="Add the indexes by which collections can be sharded.")
    ] = False,
) -> Answer:
    """Create or update the collections and indexes of a database.

    \b
    Lists applied migrations and runs pending ones, one process at a time. Safe
    to run twice: the second run changes nothing. `await store.setup()` does the
    same; use this command in deployments that migrate ahead of time.

    \b
    Listings need an index for each scope key. If the database is empty, name the
    keys of your store, unless they are user_id and thread_id. A listing by
    several keys is slow without an index of its own, which --listing creates.

    \b
    Migrations shown as "after deployment" wait until no process of an older
    version is left. Run them with --after-deployment then; they begin 80 s later.

    \b
    A sharded cluster needs one more index in four collections: --sharded creates
    it, and docs/scaling.md has the commands that follow. Other deployments do not
    need this index.

    \b
    Examples:
      convstore migrate --dry-run
      convstore migrate
      convstore migrate --scope-key team_id --scope-key room_id
      convstore migrate --listing team_id,course_id
      convstore migrate --sharded
    """
    from convstore.integration import host_of  # noqa: PLC0415

    listings = _read_listings(listing, target.scope_key)
    async with open_store(target.uri, target.scope_key, target.collection_prefix) as store:
        before = await store.migrations()
        if not dry_run:
            await set_up(store, listings=listings, after_deployment=after_deployment)
        after = await store.migrations()
        keys = store.scope_keys
        shard_keys = await host_of(store).shard_key_indexes(create=not dry_run) if sharded else []
    states = _states(before, after)
    head = {"database": target.address, "dry_run": dry_run, "scope_keys": list(keys)}
    if sharded:
        head["shard_keys"] = shard_keys

    def show(console: Console) -> None:
        _print(console, states, keys)
        if sharded:
            console.print(_shard_keys(shard_keys, dry_run=dry_run), style="dim")

    return Answer(lambda: head | _names(states), show)


def _read_listings(given: Pairs, keys: Pairs) -> list[list[str]]:
    """Split the values of ``--listing``; each must only have keys of `keys`, if these are given."""
    listings = [text.split(",") for text in given or ()]
    with wrong_usage("--listing"):
        for names in listings:
            # without --scope-key the keys are those of the stored conversations
            check_listings(keys or check_scope_keys(names), [names])
    return listings


def _states(before: Sequence[Migration], after: Sequence[Migration]) -> dict[str, list[Migration]]:
    """Return the migrations by their state after the run."""
    applied = [step for step in before if step.is_applied]
    applied_now = [step for step in after if step.is_applied]
    return {
        "applied": applied,
        "ran": [step for step in applied_now if step not in applied],
        "pending": _waiting(after, "before"),
        "after_deployment": _waiting(after, "after"),
    }


def _waiting(steps: Sequence[Migration], phase: str) -> list[Migration]:
    return [step for step in steps if step.phase == phase and not step.is_applied]


def _names(states: dict[str, list[Migration]]) -> dict[str, list[str]]:
    return {state: [step.name for step in steps] for state, steps in states.items()}


def _print(console: Console, states: dict[str, list[Migration]], keys: Sequence[str]) -> None:
    """Print each migration with its state and summary, and the scope keys with an index for listings."""
    table = new_table("migration", "state", "what it does")
    shown = {
        "applied": Text("applied before"),
        "ran": Text("applied now", "green"),
        "pending": Text("pending", "yellow"),
        "after_deployment": Text("after deployment", "yellow"),
    }
    for state, steps in states.items():
        for step in steps:
            table.add_row(plain(step.name), shown[state], plain(step.summary))
    console.print(table)
    console.print(f"Scope keys: {plain(', '.join(keys))}.", style="dim")
    console.print(_verdict(len(states["ran"]), len(states["pending"])), style="dim")


def _shard_keys(collections: Sequence[str], *, dry_run: bool) -> str:
    if not collections:
        return "No index for sharding is missing."
    names = plain(", ".join(collections))
    if dry_run:
        return f"Collections to index for sharding: {names}."
    return f"Collections indexed for sharding: {names}."


def _verdict(ran: int, pending: int) -> str:
    if pending:
        return f"{pending} to run; nothing was changed. Run it again without --dry-run."
    return f"{ran} run now. The database is up to date." if ran else "The database is up to date."

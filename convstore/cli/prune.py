"""``convstore prune``: remove conversations that were not written to for some time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from convstore.cli.erase import removal, shown_by
from convstore.cli.options import StoreTarget, Yes, on_database, read_age, wrong_usage
from convstore.cli.output import Answer
from convstore.cli.progress import progress
from convstore.values.scope import check_idle_time


@on_database
async def prune_command(
    target: StoreTarget,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Since the last write: 90d, 12w, 36h or 30m.")
    ],
    yes: Yes = False,
) -> Answer:
    """Remove conversations that were not written to for some time.

    \b
    An append, a title, metadata and state count as a write, and so does an
    import, however old the messages are whose age `convstore list` shows.

    \b
    Without --yes conversations are only counted. With --yes they are removed
    permanently: messages, results, summaries and annotations. Without --scope
    this applies to all users. A conversation that is written to meanwhile is
    kept. Conversations never expire by themselves: run this as often as your
    policy requires, from cron for example. Safe to repeat, to kill and to run
    concurrently.

    \b
    Examples:
      convstore prune --older-than 90d
      convstore prune --older-than 90d --yes
      convstore prune --older-than 12w --scope user_id=ada
    """
    age = read_age(older_than)
    with wrong_usage("--older-than"):
        check_idle_time(age)
    before = datetime.now(UTC) - age
    async with target.open() as store:
        with progress("pruning" if yes else "counting", quiet=target.as_document) as show:
            receipt = await store.prune(
                older_than=age, dry_run=not yes, progress=shown_by(show), **target.chosen
            )
    head = {
        "database": target.address,
        "dry_run": not yes,
        "older_than_seconds": int(age.total_seconds()),
        "not_written_since": before,
    }
    return removal(receipt, head)

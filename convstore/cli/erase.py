"""``convstore erase``: remove all conversations with some scope values, or all of the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from convstore.cli.options import Target, Yes, on_database
from convstore.cli.output import Answer, number_of, table_of
from convstore.cli.progress import Advance, progress, totals_for

if TYPE_CHECKING:
    from convstore.types import ErasureReceipt


@on_database
async def erase_command(
    target: Target,
    *,
    everything: Annotated[bool, typer.Option("--everything", help="All conversations; not with --scope.")] = False,
    yes: Yes = False,
) -> Answer:
    """Remove all conversations of a user, or with other scope values.

    \b
    Without --yes it only counts. With --yes, whole conversations are removed for
    good: messages, results, summaries and annotations. Conversations created
    meanwhile may remain. Safe to repeat, to kill and to run concurrently.

    \b
    Examples:
      convstore erase --scope user_id=ada
      convstore erase --scope user_id=ada --yes
      convstore erase --everything --yes --json
    """
    if everything == bool(target.chosen):
        raise typer.BadParameter("name conversations with --scope KEY=VALUE, or pass --everything for all")
    async with target.open() as store:
        total, _ = await totals_for(store, quiet=target.as_document, **target.chosen)
        with progress("erasing" if yes else "counting", total, quiet=target.as_document) as show:
            receipt = await store.erase(
                everything=everything, dry_run=not yes, progress=shown_by(show), **target.chosen
            )
    return removal(receipt, {"database": target.address, "dry_run": not yes})


def shown_by(show: Advance) -> Callable[[ErasureReceipt], None]:
    """Return the function that shows a receipt so far."""
    return lambda receipt: show(
        receipt.conversations, receipt.conversations, number_of(receipt.entries, "entry", "entries")
    )


def removal(receipt: ErasureReceipt, said: dict[str, Any]) -> Answer:
    """Return the answer with how many documents of each kind were removed, or would be."""

    def show(console: Console) -> None:
        rows = [(name.replace("_", " "), f"{number:,}") for name, number in receipt.model_dump().items()]
        console.print(table_of(("would be removed" if said["dry_run"] else "removed", ""), rows))
        if said["dry_run"]:
            console.print("\nNothing was removed. Run it again with --yes to remove this for good.", style="dim")

    return Answer(lambda: {**said, **receipt.model_dump()}, show)

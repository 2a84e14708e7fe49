"""``convstore erase``: remove all conversations with some scope values, or all of the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from convstore.cli.options import Json, Prefix, ScopeKeys, ScopeValues, Uri, Yes, open_store, read_pairs
from convstore.cli.output import number_of, run, screen, table_of, write_json
from convstore.cli.progress import Advance, count_for, progress
from convstore.values.addresses import safe_address

if TYPE_CHECKING:
    from convstore.types import ErasureReceipt


def erase_command(
    *,
    uri: Uri,
    scope: ScopeValues = None,
    everything: Annotated[bool, typer.Option("--everything", help="All conversations; not with --scope.")] = False,
    yes: Yes = False,
    scope_key: ScopeKeys = None,
    collection_prefix: Prefix = "",
    as_document: Json = False,
) -> None:
    """Remove all conversations of a user, or with other scope values.

    \b
    Without --yes it only counts. With --yes, whole conversations are removed for
    good: messages, results, summaries and annotations. Conversations created
    meanwhile may remain. Safe to repeat, to kill and to run concurrently.

    \b
    Examples:
      convstore erase --uri mongodb://localhost:27017/app --scope user_id=ada
      convstore erase --uri mongodb://… --scope user_id=ada --yes
      convstore erase --uri mongodb://… --everything --yes --json
    """
    chosen = read_pairs("--scope", scope)
    if everything == bool(chosen):
        raise typer.BadParameter("name conversations with --scope KEY=VALUE, or pass --everything for all")

    async def work() -> ErasureReceipt:
        async with open_store(uri, scope_key, collection_prefix, scope=chosen) as store:
            total = await count_for(store, quiet=as_document, **chosen)
            with progress("erasing" if yes else "counting", total, quiet=as_document) as show:
                return await store.erase(everything=everything, dry_run=not yes, progress=shown_by(show), **chosen)

    receipt = run(work(), as_document=as_document)
    if as_document:
        write_json({"database": safe_address(uri), "dry_run": not yes, **receipt.model_dump()})
    else:
        print_receipt(receipt, dry_run=not yes)


def shown_by(show: Advance) -> Callable[[ErasureReceipt], None]:
    """Return the function that shows a receipt so far."""
    return lambda receipt: show(
        receipt.conversations, receipt.conversations, number_of(receipt.entries, "entry", "entries")
    )


def print_receipt(receipt: ErasureReceipt, *, dry_run: bool) -> None:
    """Print how many documents of each kind were removed, or would be."""
    console = screen()
    rows = [(name.replace("_", " "), f"{number:,}") for name, number in receipt.model_dump().items()]
    console.print(table_of(("would be removed" if dry_run else "removed", ""), rows))
    if dry_run:
        console.print("\nNothing was removed. Run it again with --yes to remove this for good.", style="dim")

"""``convstore erase``: remove all conversations with some scope values, or all conversations of the database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from convstore.cli.options import Everything, StoreTarget, Yes, on_database, wrong_usage
from convstore.cli.output import FOUND, Answer, kind_label, table_of
from convstore.cli.progress import Advance, progress, totals_for
from convstore.values.plain import counted

if TYPE_CHECKING:
    from convstore.types import ErasureReceipt


@on_database
async def erase_command(
    target: StoreTarget,
    *,
    conversation_id: Annotated[str | None, typer.Argument(metavar="ID", hidden=True)] = None,
    everything: Everything = False,
    lost: Annotated[
        bool, typer.Option("--lost", help="Those whose scope is unknown; not with --scope.")
    ] = False,
    yes: Yes = False,
) -> Answer:
    """Remove all conversations of a user, or with other scope values.

    \b
    Without --yes conversations are only counted. With --yes they are removed
    permanently: messages, results, summaries and annotations. Conversations
    created meanwhile may remain. Safe to repeat, to kill and to run concurrently.

    \b
    A conversation is lost if the document with its scope, in `heads`, is missing
    or damaged. Each erasure counts lost conversations, because they may have
    messages of the same person; with --yes the exit code is then 3. Restore
    `heads` from a backup and repeat it, or remove lost conversations with --lost
    or by their ID, which `convstore doctor` names.

    \b
    Examples:
      convstore erase --scope user_id=ada
      convstore erase --scope user_id=ada --yes
      convstore erase --everything --yes --json
      convstore erase --lost --yes
      convstore erase 4213ea0c1214ffa97aacd24d --yes
    """
    if everything + lost + bool(target.chosen) + bool(conversation_id) != 1:
        raise typer.BadParameter(
            "name conversations with --scope KEY=VALUE, or pass --everything for all; "
            "or pass an ID or --lost alone"
        )
    async with target.open() as store:
        total, _ = await totals_for(store, quiet=target.as_document, **target.chosen)
        with (
            progress("erasing" if yes else "counting", total, quiet=target.as_document) as show,
            wrong_usage("ID") if conversation_id else nullcontext(),
        ):
            receipt = await store.erase(
                conversation_id,
                everything=everything,
                lost=lost,
                dry_run=not yes,
                progress=shown_by(show),
                **target.chosen,
            )
        left = 0
        if not (everything or lost):
            left = (await store.erase(lost=True, dry_run=True)).conversations
    found = removal(receipt, {"database": target.address, "dry_run": not yes, "lost": left})
    return found._replace(code=FOUND) if left and yes else found


def shown_by(show: Advance) -> Callable[[ErasureReceipt], None]:
    """Return the function that shows the progress of a receipt."""
    return lambda receipt: show(
        receipt.conversations, receipt.conversations, counted(receipt.entries, "log document")
    )


def removal(receipt: ErasureReceipt, head: dict[str, Any]) -> Answer:
    """Return the answer with the numbers of documents of each kind that were, or would be, removed."""

    def show(console: Console) -> None:
        if before := head.get("not_written_since"):
            console.print(
                f"Conversations not written to since {before:%Y-%m-%d %H:%M} UTC; "
                "an import counts as a write.\n",
                soft_wrap=True,
            )
        counts = receipt.model_dump(exclude=None if receipt.sub_agents else {"sub_agents"})
        rows = [(kind_label(name), f"{number:,}") for name, number in counts.items()]
        console.print(table_of(("would be removed" if head["dry_run"] else "removed", ""), rows))
        if left := head.get("lost"):
            are = "is" if left == 1 else "are"
            console.print(
                "\n"
                f"{counted(left, 'conversation')} {are} lost and may have messages of the same "
                "person: the document with their scope is missing or damaged. "
                "Run `convstore doctor`; restore it from a backup and repeat this, "
                "or remove the lost conversations: convstore erase --lost --yes",
                style="yellow",
                soft_wrap=True,
            )
        if head["dry_run"]:
            hint = "There is nothing to remove."
            if any(receipt.model_dump().values()):
                hint = "Nothing was removed. Run it again with --yes to remove this permanently."
            console.print(f"\n{hint}", style="dim")

    return Answer(lambda: {**head, **receipt.model_dump()}, show)

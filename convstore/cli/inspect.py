"""``convstore inspect``: open the inspector of a store on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from convstore.cli.options import (
    Policy,
    PriceOptions,
    StoreTarget,
    on_database,
    read_policy,
    read_prices,
)

Port = Annotated[
    int | None,
    typer.Option(
        help="The port on 127.0.0.1, 7171 by default; 0 takes a free one.", min=0, max=65_535
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]


@on_database
async def inspect_command(
    target: StoreTarget,
    *,
    port: Port = None,
    no_browser: NoBrowser = False,
    policy: Policy = None,
    price: PriceOptions = None,
) -> None:
    """Open pages that show each conversation and the view that the model gets.

    \b
    The pages are served on this machine only, and are read-only. The address
    works once; the browser that opens it keeps a cookie until the command
    ends. If another browser opens it, a new address is printed. If another
    program uses port 7171, a free one is taken.
    Needs the extra inspector.
    Views have the policy of the newest answer with a stamp, or of --policy.

    \b
    Examples:
      convstore inspect
      convstore inspect --scope user_id=ada --port 8000
      convstore inspect --price gpt-5=1.25,10,0.125
    """
    from convstore.cli.serving import serve  # noqa: PLC0415 - an extra
    from convstore.ext.inspector import EVERYTHING, inspector  # noqa: PLC0415 - likewise

    limits = read_policy(policy)
    prices = read_prices(price)
    async with target.open() as store:
        # fails before the pages open if the server does not answer
        await store.list_conversations(limit=1, everything=not target.chosen, **target.chosen)
        pages = inspector(
            store,
            authorize=lambda _: target.chosen or EVERYTHING,
            policy=limits,
            prices=prices,
        )
        await serve(pages, port=port, open_browser=not no_browser, as_document=target.as_document)

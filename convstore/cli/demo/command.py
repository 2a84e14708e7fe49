"""``convstore demo``: run the demo and print the stored messages, the views and the results that were read back."""

from __future__ import annotations

from typing import Annotated

import typer

from convstore.cli.inspect import NoBrowser, Port
from convstore.cli.options import AnyUri, Json
from convstore.cli.output import Answer, answer


def demo_command(
    *,
    uri: AnyUri = "memory://",
    inspect: Annotated[
        bool,
        typer.Option(
            "--inspect", help="Open three example conversations in the inspector instead."
        ),
    ] = False,
    port: Port = None,
    no_browser: NoBrowser = False,
    as_document: Json = False,
) -> None:
    """Show how convstore handles a conversation with two questions.

    \b
    A small agent is asked two questions and finds ten passages for each. You
    see the stored messages, the view that the model gets at the third question,
    a page of an old result that it reads again, and the tokens that this saves.
    Works in memory, without a server. With --uri, the conversations stay in the
    database, each run's under a user_id of its own, and the last lines have the
    commands that show them.

    \b
    Examples:
      convstore demo
      convstore demo --uri "$CONVSTORE_URI"
      convstore demo --json | jq .tokens
      convstore demo --inspect
    """
    if inspect:
        shown = _inspect(uri, port=port, open_browser=not no_browser, as_document=as_document)
        answer(shown, as_document=as_document)
    else:
        answer(_run(uri), as_document=as_document)


async def _run(uri: str) -> Answer:
    from convstore.cli.demo.demo import demo_as_json, print_demo, run_demo  # noqa: PLC0415 - loads the store

    demo = await run_demo(uri)
    return Answer(lambda: demo_as_json(demo), lambda console: print_demo(console, demo, uri))


async def _inspect(uri: str, *, port: int | None, open_browser: bool, as_document: bool) -> None:
    from convstore.cli.demo.conversations import opened_demo  # noqa: PLC0415
    from convstore.cli.serving import serve  # noqa: PLC0415 - an extra
    from convstore.ext.inspector import EVERYTHING, inspector  # noqa: PLC0415 - likewise

    async with opened_demo(uri) as store:
        pages = inspector(store, authorize=lambda _: EVERYTHING)
        await serve(pages, port=port, open_browser=open_browser, as_document=as_document)

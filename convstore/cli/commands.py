"""The typer application of ``convstore``, with all commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from convstore import __version__
from convstore.cli.demo.command import demo_command
from convstore.cli.doctor import doctor_command
from convstore.cli.erase import erase_command
from convstore.cli.export import export_command
from convstore.cli.import_ import import_command
from convstore.cli.inspect import inspect_command
from convstore.cli.list_ import list_command
from convstore.cli.migrate import migrate_command
from convstore.cli.prune import prune_command
from convstore.cli.replay.command import replay_command
from convstore.cli.search import search_command
from convstore.cli.show import show_command
from convstore.cli.stats import stats_command
from convstore.values.addresses import without_addresses


class _Commands(TyperGroup):
    """Group of commands that removes addresses, which may hold passwords, from usage errors."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the arguments before the name of the command."""
        with _without_addresses():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with _without_addresses():
            return super().invoke(ctx)


@contextmanager
def _without_addresses() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Only usage errors have a message, whatever their class.
        if isinstance(message := getattr(error, "message", None), str):
            error.message = without_addresses(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="convstore",
    cls=_Commands,
    help="The conversation store for agent backends on MongoDB, from the command line.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convstore {__version__}")
        raise typer.Exit


@app.callback()
def _convstore(
    *,
    _version_wanted: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the name of the command."""


app.command("demo")(demo_command)
app.command("replay")(replay_command)
app.command("list")(list_command)
app.command("show")(show_command)
app.command("search")(search_command)
app.command("stats")(stats_command)
app.command("migrate")(migrate_command)
app.command("import")(import_command)
app.command("export")(export_command)
app.command("inspect")(inspect_command)
app.command("erase")(erase_command)
app.command("prune")(prune_command)
app.command("doctor")(doctor_command)

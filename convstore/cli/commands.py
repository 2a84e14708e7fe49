"""The typer application of ``convstore``, with all commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

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
from convstore.cli.search import search_command
from convstore.cli.show import show_command
from convstore.cli.stats import stats_command
from convstore.cli.sums import sums_command
from convstore.values.addresses import without_addresses

_COMMANDS = {
    "Look": (
        demo_command,
        list_command,
        show_command,
        search_command,
        stats_command,
        sums_command,
        inspect_command,
    ),
    "Move": (import_command, export_command),
    "Operate": (migrate_command, doctor_command, prune_command, erase_command),
}


_METHODS = {"verify": "doctor", "setup": "migrate", "delete": "erase"}
"""Commands that do the work of a method with another name."""


class _Commands(TyperGroup):
    """Group of commands: lists them by purpose, and removes addresses, which may contain passwords, from errors."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - of the base class
        """Write each group of commands with their full summaries."""
        all_commands: Any = self.commands
        for purpose, commands in groupby(
            all_commands.items(), lambda command: command[1].rich_help_panel
        ):
            with formatter.section(purpose):
                formatter.write_dl(
                    [(name, command.get_short_help_str(limit=200)) for name, command in commands]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for the name of a method of the store, fail with the name of the equivalent command."""
        if command := _METHODS.get(args[0]):
            ctx.fail(
                f"No such command {args[0]!r}; for the method of this name, run: "
                f"convstore {command}"
            )
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the arguments before the name of the command."""
        with _without_addresses():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with _without_addresses():
            return super().invoke(ctx)


class _Command(TyperCommand):
    """Command whose help shows a name for the value of each option, instead of its type."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and not parameter.is_flag:
                parameter.metavar = (
                    parameter.metavar or str(parameter.name).strip("_").rpartition("_")[2].upper()
                )


@contextmanager
def _without_addresses() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Only usage errors have the attribute `message`.
        if isinstance(message := getattr(error, "message", None), str):
            error.message = without_addresses(message)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="convstore",
    cls=_Commands,
    help="The conversation store for agent backends on MongoDB, from the command line.",
    epilog="Name the database once: export CONVSTORE_URI=mongodb://localhost:27017/app",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
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
        bool,
        typer.Option(
            "--version", help="Print the version and end.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options before the name of the command."""


for _purpose, _commands in _COMMANDS.items():
    for _command in _commands:
        _name = _command.__name__.removesuffix("_command")
        app.command(_name, cls=_Command, rich_help_panel=_purpose)(_command)

"""The command line ``convstore``; each command is a module or a folder of its own.

Floor 8. typer and rich are an extra, so nothing here imports them before `main` runs.
"""

from __future__ import annotations

import io
import sys

from convstore.exceptions import MissingExtraError

__all__ = ["main"]

_PACKAGES_OF_EXTRA = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command in the process's arguments; ends the process.

    Exit code 0 is success, 1 failure, 2 an invalid command line, 3 damage found by ``doctor`` or left by ``erase``. If
    the extra ``cli`` is not installed, one line on stderr says how to install it.
    """
    try:
        from convstore.cli.commands import app  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES_OF_EXTRA:
            raise
        sys.exit(f"convstore: {MissingExtraError(package=package, extra='cli')}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a character that the terminal cannot encode must not fail the command
            stream.reconfigure(errors="replace")
    app()

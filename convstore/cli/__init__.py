"""The command line ``convstore``: a demo, a replay of recorded conversations, migrations, import, export and upkeep.

Layer 6. Talks to people and to scripts. typer and rich are an extra, so nothing here needs them before `main` runs.
"""

from __future__ import annotations

import io
import sys

from convstore.exceptions import MissingExtraError

__all__ = ["main"]

_PACKAGES_OF_EXTRA = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command that the process's arguments name; ends the process.

    Exit code 0 when all went well, 1 when it did not, 2 when the command line makes no sense, 3 when a doctor looked
    at everything and found damage. Without the extra ``cli``, one line on stderr says how to get it.
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
            stream.reconfigure(errors="replace")  # an arrow that a terminal does not have is no reason to fail
    app()

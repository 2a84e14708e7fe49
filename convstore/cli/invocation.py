"""How this process was started, for the commands that it advises: its own name, and the pip of its Python."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

_NAME = "convstore"


def command_name() -> str:
    """Return the words that start the command line again from this folder: "convstore" if it is on the PATH."""
    started = sys.argv[0]
    if Path(started).parts[-2:] == (_NAME, "__main__.py"):
        return f"{_python()} -m {_NAME}"
    found = shutil.which(_NAME)
    is_own = Path(started).stem == _NAME and not (found and Path(found).samefile(started))
    return shlex.quote(started) if is_own and Path(started).exists() else _NAME


def pip_name() -> str:
    """Return the words that start the pip of this Python; another one would install into another environment."""
    return f"{_python()} -m pip"


def _python() -> str:
    beside = Path(sys.argv[0]).with_name("python")
    is_short = Path(sys.argv[0]).stem == _NAME and beside.exists()
    return shlex.quote(str(beside if is_short else sys.executable))

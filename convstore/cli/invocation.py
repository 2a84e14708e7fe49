"""The command line by which this process was started, and the pip of its Python, for commands in hints and errors."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

_NAME = "convstore"


def command_name() -> str:
    """Return the words that start this command line again: "convstore" if it is on the PATH."""
    started = sys.argv[0]
    if Path(started).parts[-2:] == (_NAME, "__main__.py"):
        return f"{_python()} -m {_NAME}"
    if Path(started).stem != _NAME or not Path(started).exists():
        return _NAME
    found = shutil.which(_NAME)
    return _NAME if found and Path(found).samefile(started) else shlex.quote(started)


def pip_name() -> str:
    """Return the words that start the pip of this Python; another pip would install into another environment."""
    return f"{_python()} -m pip"


def _python() -> str:
    neighbour = Path(sys.argv[0]).with_name("python")
    is_short = Path(sys.argv[0]).stem == _NAME and neighbour.exists()
    return shlex.quote(str(neighbour if is_short else sys.executable))

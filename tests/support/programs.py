"""Runs examples and documented programs in the tests' own process, and calls in processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from canary import checked

ROOT = Path(__file__).parents[2]


def run_program(path: Path, *arguments: str, **variables: str) -> str:
    """Run a file as a program of its own and return what it prints; it must print no error."""
    printed, complaints, loaded = io.StringIO(), io.StringIO(), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        patch.setattr(sys, "argv", [str(path), *arguments])
        for name, value in variables.items():
            patch.setenv(name, value)
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
                runpy.run_path(str(path), run_name="__main__")
        finally:
            # a program may have hidden its log; later tests look at theirs
            logging.disable(logging.NOTSET)
            for name in set(sys.modules) - loaded:
                if Path(getattr(sys.modules[name], "__file__", None) or ROOT).is_relative_to(
                    ROOT / "examples"
                ):
                    del sys.modules[name]  # another example has modules of the same names
    assert complaints.getvalue() == ""
    return checked(printed.getvalue(), printed.getvalue())


async def killed(uri: str, database: Any, *lines: str) -> list[int]:
    """Make the calls of these lines in processes that are killed (see killed.py); return their exit codes."""
    program = Path(__file__).with_name("killed.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), uri, database.name),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    out, _ = await process.communicate("".join(f"{line}\n" for line in lines).encode())
    return [int(code) for code in out.split()]

"""Runs examples and documented programs in the tests' own process: what they import is imported once."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

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
            for name in set(sys.modules) - loaded:
                if Path(getattr(sys.modules[name], "__file__", None) or ROOT).is_relative_to(ROOT / "examples"):
                    del sys.modules[name]  # another example has modules of the same names
    assert complaints.getvalue() == ""
    return checked(printed.getvalue(), printed.getvalue())

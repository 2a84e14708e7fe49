"""What a quick run, which is `pytest` without `-m`, does not collect: importing and naming slow tests takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_SLOW_MODULE = re.compile(r"^pytestmark = (pytest\.mark\.slow|NEEDS_BROWSER)\b", re.MULTILINE)


def is_quick(config: pytest.Config) -> bool:
    """Return True if this run leaves out slow tests, and nothing else."""
    return bool(config.option.markexpr == "not slow")


def is_slow_module(path: Path) -> bool:
    """Return True if a file says at its top that all of its tests are slow."""
    return path.name.startswith("test_") and bool(
        _SLOW_MODULE.search(path.read_text(encoding="utf-8"))
    )


def is_slow(tests: object) -> bool:
    """Return True if a function or class of tests has the mark `slow`."""
    return any(mark.name == "slow" for mark in getattr(tests, "pytestmark", ()))

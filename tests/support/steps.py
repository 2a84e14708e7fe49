"""Work in steps, done at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

_Made = TypeVar("_Made")


def finish(steps: Generator[None, None, _Made]) -> _Made:
    """Do all steps of some work, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: _Made = end.value
            return made

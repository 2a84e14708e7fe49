"""Begin with modules whose tests take long, so that no worker is left alone with one at the end.

pytest-xdist gives each worker as many tests as the others, in order, and moves tests later from the ends of what is
left. So the long modules are dealt to the beginnings of what each worker is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LONG = (
    "faults/test_faults.py",
    "faults/test_turn_faults.py",
    "readback/test_turns_by_oracle.py",
    "wire/test_wire_rules.py",
    "ext/test_middleware_crash.py",
    "transfer/test_damaged_archives.py",
    "ext/inspector/test_accessibility.py",
    "view/test_views_by_oracle.py",
    "view/test_thinking.py",
    "verify/test_repair.py",
    "ext/test_number_doors.py",
    "mongo/test_variant_costs.py",
    "ext/inspector/test_pages.py",
    "verify/test_fuzz.py",
    "house/test_packaging.py",
    "verify/test_verify.py",
    "examples/test_examples.py",
    "ext/inspector/test_figures.py",
)
"""Modules with tests that take more than about ten seconds, the longest first."""


def workers_of(config: pytest.Config) -> int:
    """Return how many workers share the tests of this run; 1 outside of a worker."""
    given: dict[str, int] = getattr(config, "workerinput", {})
    return given.get("workercount", 1)


def dealt(modules: Sequence[str], workers: int) -> list[int]:
    """Return the order in which workers are given tests, as indices into the modules of all tests."""
    rank = {name: number for number, name in enumerate(LONG)}
    early = sorted(
        (index for index, name in enumerate(modules) if name in rank),
        key=lambda index: rank[modules[index]],
    )
    others = [index for index, name in enumerate(modules) if name not in rank]
    order = list[int]()
    for worker in range(workers):
        size = (len(modules) - len(order)) // (workers - worker)
        own = [index for index in early if rank[modules[index]] % workers == worker]
        room = max(size - len(own), 0)
        order += own + others[:room]
        del others[:room]
    return order


def begin_with_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests that a worker runs into this order; each worker has the same."""
    modules = [
        item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        for item in items
    ]
    items[:] = [items[index] for index in dealt(modules, workers_of(config))]

"""Mark the tests of the contract that not every run includes, and choose their servers."""

from __future__ import annotations

from zlib import crc32

import pytest
from contract_share import COSTLY, IN_SHORT, LONG, ON_MOTOR
from quick_run import is_quick

BOUNDS = ("bounds as sent", "swapped bounds")
"""How the server takes the bounds of descending scans: see `server_kinds.swapped_bounds`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Leave slow tests out of a quick run; None lets other plugins decide."""
    if not isinstance(collector, pytest.Class) or not is_quick(collector.config):
        return None
    return [] if "slow" in marks_of(name, getattr(collector.obj, "DRIVER", "pymongo")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them before pytest leaves out what is marked."""
    for item in items:
        if isinstance(item, pytest.Function):
            for mark in marks_of(item.originalname, getattr(item.cls, "DRIVER", "pymongo")):
                item.add_marker(mark)


def marks_of(name: str, driver: str) -> tuple[str, ...]:
    """Return the marks of a test on a driver."""
    if driver == "motor" and name not in IN_SHORT:
        return ("motor", "slow")
    if driver == "motor" and name not in ON_MOTOR:
        return ("slow",)
    if driver == "memory" and name not in IN_SHORT:
        return ("slow",)
    if driver != "memory" and name in LONG:
        return ("slow",)
    if name in COSTLY:
        return ("costly",)
    return ()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test run with one of both `BOUNDS`, which its name decides; with `-m soak` it runs with the other one."""
    if "bounds" not in metafunc.fixturenames:
        return
    chosen = crc32(metafunc.function.__name__.encode()) % 2
    ways = [BOUNDS[chosen]]
    is_motor = getattr(metafunc.cls, "DRIVER", "") == "motor"  # it sends what PyMongo sends
    # making cases only to leave them out takes time
    if not is_quick(metafunc.config) and not is_motor:
        ways.append(pytest.param(BOUNDS[1 - chosen], marks=[pytest.mark.slow, pytest.mark.soak]))
    metafunc.parametrize("bounds", ways, indirect=True)

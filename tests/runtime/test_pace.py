"""Work in the background takes a tenth of a core, in slices of two milliseconds."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count

import pytest

from convstore.runtime.pace import Pace, no_pause


def work(steps: int) -> Generator[None, None, int]:
    """Work in some steps."""
    for _ in range(steps):
        yield
    return steps


async def test_pauses_are_nine_times_as_long_as_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each slice, in one piece of work or several; commands count, too."""
    pauses = list[float]()
    ticks = count(0, 0.0005)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("convstore.runtime.pace.time.perf_counter", lambda: next(ticks))
    pace = Pace(sleep)
    assert await pace.steps(work(100)) == 100
    assert all(0.002 * 9 <= pause <= 0.0026 * 9 for pause in pauses)
    assert sum(pauses) == pytest.approx(0.05 * 9, rel=0.25)
    pauses.clear()
    for _ in range(10):
        await pace.spent(0.0005)
    assert len(pauses) in (2, 3)
    pace.sleep = no_pause
    pauses.clear()
    await pace.steps(work(100))
    assert pauses == []

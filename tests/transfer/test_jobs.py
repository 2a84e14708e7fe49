"""`run_each`: several conversations at a time, for imports and replays of recorded conversations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from convstore.transfer.jobs import each_of, location_of, run_each


async def test_no_more_items_are_read_than_are_worked_on() -> None:
    """Three of ten items are in progress at a time, no others are read ahead, and each is worked on once."""
    running = peak = read = 0
    done: list[int] = []

    async def items() -> AsyncIterator[int]:
        nonlocal read
        for number in range(10):
            read += 1
            assert read - len(done) <= 3
            yield number

    async def work(number: int) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(number)

    await run_each(items(), work, jobs=3)
    assert (sorted(done), peak) == (list(range(10)), 3)


async def test_an_error_is_raised_when_the_others_have_ended() -> None:
    """Work in progress is neither cancelled nor left running."""
    ended: list[int] = []
    failed = asyncio.Event()

    async def work(number: int) -> None:
        if number == 1:
            failed.set()
            raise ValueError("one")
        await failed.wait()
        await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(ValueError, match="one"):
        await run_each(each_of(range(100)), work, jobs=2)
    assert ended == [0]


async def test_a_cancellation_reaches_the_work() -> None:
    """Each is cancelled and has ended when the call ends."""
    cleaned: list[int] = []
    started = asyncio.Event()

    async def work(number: int) -> None:
        try:
            if number == 1:
                started.set()
            await asyncio.sleep(3_600)
        finally:
            cleaned.append(number)

    running = asyncio.create_task(run_each(each_of(range(9)), work, jobs=2))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(cleaned) == [0, 1]


async def test_an_error_of_the_source_is_raised() -> None:
    """Items read before the error are processed."""
    done: list[int] = []

    def items() -> Any:
        yield 1
        assert threading.current_thread() is not threading.main_thread()
        raise OSError("unplugged")

    async def work(number: int) -> None:
        done.append(number)

    with pytest.raises(OSError, match="unplugged"):
        await run_each(each_of(items()), work, jobs=4)
    assert done == [1]


def test_an_unexpected_error_names_its_place() -> None:
    """File and line of the last frame."""
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    assert location_of(caught.value).startswith("test_jobs.py, line ")

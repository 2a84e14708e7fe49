"""Spread work in the background over time, so that it takes a tenth of a core in slices of two milliseconds.

The work runs on the event loop in small steps. A thread would hold Python's lock for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

_Made = TypeVar("_Made")

SLICE = 0.002
"""Seconds after which work pauses, by the performance counter, which is cheaper to read than the thread's clock."""
SHARE = 0.1
"""Share of a core that work may take."""
COMMAND = 0.0005
"""Processor time that a command to the server takes, in seconds."""


class Pace:
    """The pauses of some work; `sleep` awaits a number of seconds."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sleep = sleep
        self._used = 0.0

    async def steps(self, work: Generator[None, None, _Made]) -> _Made:
        """Do work that yields after each step, with pauses, and return its result."""
        began = time.perf_counter()
        while True:
            try:
                next(work)
            except StopIteration as end:
                await self.spent(time.perf_counter() - began)
                made: _Made = end.value
                return made
            now = time.perf_counter()
            if self._used + now - began >= SLICE:
                await self.spent(now - began)
                began = time.perf_counter()

    async def spent(self, seconds: float) -> None:
        """Add processor time that was used, and pause if a slice is over."""
        self._used += seconds
        if self._used >= SLICE:
            used = self._used
            self._used = 0.0
            await self.sleep(used / SHARE - used)


async def no_pause(_seconds: float) -> None:
    """Let the event loop run without a pause."""
    await asyncio.sleep(0)

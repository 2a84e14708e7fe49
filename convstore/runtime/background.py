"""Work that a caller waits for only for a limited time; what is not done by then goes on in the background.

Layer 4. The tasks are held until they end, so none is lost to the garbage collector, and `close` ends those that are
still at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Background"]

_Result = TypeVar("_Result")

_ENDING_SECONDS = 10.0


class Background:
    """Tasks that may outlive the calls that began them, of one event loop or of several."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, work: Coroutine[Any, Any, _Result], *, seconds: float) -> _Result | None:
        """Return the result if there is one in time, else None; then the work goes on.

        What it raises later is dropped. A caller that is cancelled cancels the work.

        Raises:
            Exception: The work raised it in time.
        """
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=_ENDING_SECONDS)
            raise
        return task.result() if done else None

    async def close(self) -> None:
        """Cancel the work of this event loop that is not done, and wait for it to end, for a limited time."""
        loop = asyncio.get_running_loop()
        tasks = {task for task in self._tasks if task.get_loop() is loop}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_SECONDS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it

"""Run tasks that a caller awaits for a limited time, or that its cancellation must not cut off.

Tasks that continue in the background are referenced until they end, so that none is garbage collected.
`Background.close` cancels those still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_ENDING_SECONDS = 10.0

SETTLE_SECONDS = 5.0
"""Seconds that work of `settle` may continue after its caller was cancelled."""


class Background:
    """Tasks of one or more event loops that may outlive the calls that started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, work: Coroutine[Any, Any, _Result], *, seconds: float) -> _Result | None:
        """Return the result if the work ends in time; else return None and let the work continue.

        Errors raised after that are dropped. Cancelling the caller cancels the work.

        Raises:
            Exception: Any error that the work raised in time.
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
        """Cancel this event loop's unfinished tasks and wait for them to end, for a limited time."""
        loop = asyncio.get_running_loop()
        tasks = {task for task in self._tasks if task.get_loop() is loop}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_SECONDS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _retrieve(task)


async def settle(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await work to its end even if the caller is cancelled meanwhile, so that a retry does not race with the work.

    A cancelled caller waits for it up to `SETTLE_SECONDS`; then the work is cancelled too.

    Raises:
        BaseException: The error of the work, or the cancellation of the caller.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve)
        try:
            await asyncio.wait({task}, timeout=SETTLE_SECONDS)
        finally:
            task.cancel()
        raise
    return task.result()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of an unawaited task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def retrieve_cancellation(work: asyncio.Future[Any]) -> None:
    """Done callback of unawaited work: the end of its event loop may cancel it without a message of asyncio.

    Raises:
        BaseException: Any other error of the work; the event loop logs it.
    """
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, asyncio.CancelledError):
        raise error

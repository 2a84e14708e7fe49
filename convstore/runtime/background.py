"""Run tasks that a caller awaits only for a limited time, or that must not be cancelled with the caller.

Tasks that continue in the background are referenced until they end, so that no task is garbage collected.
`Background.close` cancels those still running.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from convstore.mongo.parallel import retrieve

_Result = TypeVar("_Result")

_ENDING_SECONDS = 10.0

SETTLE_SECONDS = 5.0
"""Seconds that the work of `settle` may continue after its caller was cancelled."""


class Background:
    """Tasks of one or more event loops that may outlive the calls that started them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()
        self._working = WeakSet[asyncio.AbstractEventLoop]()

    async def finish(self, work: Coroutine[Any, Any, _Result], *, seconds: float) -> _Result | None:
        """Return the result if the work ends in time; else return None and let the work continue.

        Errors raised after that are dropped. Cancelling the caller cancels the work.

        Raises:
            Exception: Any error that the work raised in time.
        """
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=_ENDING_SECONDS)
            raise
        return task.result() if done else None

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work in the background, unless this event loop still runs work that was started before.

        The event loop logs an error of the work. If the loop ends, the work is cancelled without a warning of asyncio.
        """
        self._tasks -= {task for task in self._tasks if task.get_loop().is_closed()}
        if (loop := asyncio.get_running_loop()) not in self._working or not self._own():
            self._working.add(loop)
            # With gather asyncio does not warn if the loop ends first, as it does with create_task. The context is
            # empty, because the work does not belong to the request that happened to start it.
            task = Context().run(lambda: asyncio.gather(self._worked(work, loop)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(retrieve_cancellation)

    async def _worked(
        self, work: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop
    ) -> None:
        try:
            await work()
        finally:
            # at once: the work that just ended does not process later requests
            self._working.discard(loop)

    def _own(self) -> set[asyncio.Future[Any]]:
        # Tasks that are done are left out: since Python 3.12 awaiting them does not run the loop, which discards them.
        loop = asyncio.get_running_loop()
        return {task for task in self._tasks if task.get_loop() is loop and not task.done()}

    async def wait(self) -> None:
        """Wait until all tasks of this event loop have ended, including those that are started meanwhile."""
        while own := self._own():
            await asyncio.gather(*own, return_exceptions=True)

    async def close(self) -> None:
        """Cancel this event loop's unfinished tasks and wait for them to end, for a limited time."""
        tasks = self._own()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_SECONDS)


async def settle(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await work to its end even if the caller is cancelled meanwhile, so that a retry does not race with the work.

    A cancelled caller still waits up to `SETTLE_SECONDS`; then the work is cancelled, too. Further cancellations do not
    shorten the wait, because anyio cancels again in each cycle of the event loop.

    Raises:
        BaseException: The error of the work, or the cancellation of the caller.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    task = asyncio.ensure_future(_announced(work, ended))
    task.add_done_callback(partial(_end, work, ended))  # it may be cancelled before it begins
    cancellation: asyncio.CancelledError | None = None
    ends = math.inf
    while not task.done() and (left := ends - loop.time()) > 0:
        try:
            if cancellation is None:
                await ended
            else:
                await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as error:
            ends = min(ends, loop.time() + SETTLE_SECONDS)
            cancellation = error
    if cancellation is None:
        return task.result()
    task.add_done_callback(retrieve)
    task.cancel()
    raise cancellation


async def _announced(work: Coroutine[Any, Any, _Result], ended: asyncio.Future[None]) -> _Result:
    """Return the result of the work; `ended` wakes the caller two cycles of the loop before the task would."""
    try:
        return await work
    finally:
        _announce(ended)


def _end(
    work: Coroutine[Any, Any, Any], ended: asyncio.Future[None], _task: asyncio.Future[Any]
) -> None:
    work.close()
    _announce(ended)


def _announce(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def retrieve_cancellation(work: asyncio.Future[Any]) -> None:
    """Done callback of unawaited work: it ignores a cancellation, as at the end of the event loop.

    Raises:
        BaseException: Any other error of the work; the event loop logs it.
    """
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, asyncio.CancelledError):
        raise error

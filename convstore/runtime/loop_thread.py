"""Run an event loop in a thread of its own, for sync callers of an async store.

Floor 3; `store` calls it. The caller blocks until the result is there. As the loop never runs in the caller's thread, a
sync call inside a running loop blocks that loop, but cannot deadlock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

__all__ = ["LoopThread"]

_Result = TypeVar("_Result")


class LoopThread:
    """Runs coroutines for callers in other threads, until `stop` is called or the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="convstore-sync", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return the result of a coroutine or raise its error; an interrupted caller cancels it.

        Raises:
            concurrent.futures.CancelledError: `stop` was called before the coroutine ended.
        """
        with self._lock:
            if self._is_stopped:
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel running coroutines, whose callers get `CancelledError`, and end the loop and its thread."""
        with self._lock:
            self._is_stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

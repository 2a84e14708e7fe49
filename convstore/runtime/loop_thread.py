"""Run an event loop in a separate thread, for sync callers of an async store.

The caller blocks until it has the result. As the loop never runs in the caller's thread, a sync call inside a running
loop blocks that loop, but cannot deadlock.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from convstore.exceptions import StoreClosedError

_Result = TypeVar("_Result")
BothWays = tuple[Callable[[Any], Awaitable[Any]], Callable[[Any], Any]]
"""Two functions from a request to its answer: an async one and a sync one."""


class LoopThread:
    """Runs coroutines for callers in other threads, until `stop` is called or the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="convstore-sync", daemon=True
        )
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


class _Closable(Protocol):
    async def close(self) -> None:
        """Release all resources."""
        ...


_Store = TypeVar("_Store", bound=_Closable)


_of_parents: list[object] = []
"""Twins of the parent process after a fork. Collecting their event loop would stop it from watching shared sockets."""


class Twin(Generic[_Store]):
    """A second store on its own event loop, for sync callers; created at the first call in each process.

    Args:
        make: Creates the store.
    """

    def __init__(self, make: Callable[[], _Store]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[LoopThread, _Store] | None = None
        self._is_closed = False
        self._process = os.getpid()

    def _leave_to_parent(self) -> None:
        """Start again in a forked process, in which the threads of its parent do not run."""
        if self._process != os.getpid():
            _of_parents.append(self._made)
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._made = None

    def run(self, work: Callable[[_Store], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run work on the second store and wait for the result.

        Raises:
            StoreClosedError: `close` was called before the work ended.
        """
        self._leave_to_parent()
        with self._lock:
            if self._is_closed:
                raise StoreClosedError("this store was closed; make a new store")
            if self._made is None:
                self._made = LoopThread(), self._make()
            thread, store = self._made
        try:
            return thread.run(work(store))
        except CancelledError as error:
            raise StoreClosedError(
                "this store was closed in the middle of the call; make a new one"
            ) from error

    async def close(self) -> None:
        """Close the second store and end its thread; sync callers get `StoreClosedError`."""
        # In a new thread: all threads of the loop's own executor may be waiting for the second store.
        with ThreadPoolExecutor(1) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, self._stop)

    def _stop(self) -> None:
        self._leave_to_parent()
        with self._lock:
            self._is_closed = True
            made = self._made
            self._made = None
        if made is not None:
            thread, store = made
            thread.run(store.close())
            thread.stop()

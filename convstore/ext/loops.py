"""Run a coroutine on the event loop that it belongs to: a run of LangChain may begin on one loop and end on another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_Work = Callable[[], Coroutine[Any, Any, None]]


def has_loop() -> bool:
    """Return True in a thread that runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def run_on(loop: asyncio.AbstractEventLoop, work: _Work) -> None:
    """Await work on an event loop, which may differ from the caller's; do nothing if that loop is not running."""
    if loop is asyncio.get_running_loop():
        await work()
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))


def run_on_and_wait(loop: asyncio.AbstractEventLoop, work: _Work) -> None:
    """Do work on an event loop and block until it is done, from another thread; do nothing if it is not running."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(work(), loop).result()

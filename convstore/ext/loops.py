"""Do work on the event loop that it belongs to: what a run of LangChain begins on one loop may end on another."""

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
    """Await work on an event loop, perhaps another one than that of the caller; do nothing if it is closed."""
    if loop is asyncio.get_running_loop():
        await work()
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))


def run_on_and_wait(loop: asyncio.AbstractEventLoop, work: _Work) -> None:
    """Do work on an event loop, from a thread without one; do nothing if it is closed."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(work(), loop).result()

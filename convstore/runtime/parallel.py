"""Run a function on many items concurrently, with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


async def in_parallel(
    work: Callable[[_Item], Awaitable[_Done]], items: Sequence[_Item], *, limit: int = 8
) -> list[_Done]:
    """Run `work` on all items, `limit` at a time, and return the results in order.

    An error is raised once all calls have ended.
    """
    gate = asyncio.Semaphore(limit)

    async def one(item: _Item) -> _Done:
        async with gate:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]

"""Works on many things at once, a few at a time.

Layer 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

__all__ = ["in_parallel"]

_PARALLEL = 8
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


async def in_parallel(work: Callable[[_Item], Awaitable[_Done]], items: Sequence[_Item]) -> list[_Done]:
    """The results in the order of the items, eight at a time; an error is raised once all have ended."""
    gate = asyncio.Semaphore(_PARALLEL)

    async def one(item: _Item) -> _Done:
        async with gate:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]

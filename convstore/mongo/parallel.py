"""Await several operations at once: an error is raised after all of them have ended, so no command is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, overload

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Second = TypeVar("_Second")
_Third = TypeVar("_Third")


@overload
async def together(
    first: Awaitable[_Result], second: Awaitable[_Second], /
) -> tuple[_Result, _Second]: ...


@overload
async def together(
    first: Awaitable[_Result], second: Awaitable[_Second], third: Awaitable[_Third], /
) -> tuple[_Result, _Second, _Third]: ...


@overload
async def together(*work: Awaitable[_Result]) -> tuple[_Result, ...]: ...


async def together(*work: Awaitable[Any]) -> tuple[Any, ...]:
    """Await all at once, and return the results in order; if several fail, raise the first error in this order."""
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.gather(*tasks, return_exceptions=True)
    return tuple(task.result() for task in tasks)


async def in_parallel(
    work: Callable[[_Item], Awaitable[_Result]], items: Sequence[_Item], *, limit: int = 8
) -> list[_Result]:
    """Run `work` on all items, `limit` at a time, and return the results in order."""
    gate = asyncio.Semaphore(limit)

    async def limited(item: _Item) -> _Result:
        async with gate:
            return await work(item)

    return list(await together(*map(limited, items)))


def retrieve(task: asyncio.Future[Any]) -> None:
    """Done callback of a task that may not be awaited: retrieve its error, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()

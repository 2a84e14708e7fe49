"""Work on several conversations at a time, for imports."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_END: Any = object()


async def run_each(
    items: AsyncGenerator[_Item, None],
    work: Callable[[_Item], Coroutine[Any, Any, None]],
    *,
    jobs: int,
) -> None:
    """Run `work` for each item, `jobs` at a time, and close the generator of the items.

    An error is raised after the work in progress has ended, because cancelling PyMongo in server selection may hang
    forever. If the call is cancelled, the work is cancelled, too.
    """
    running: set[asyncio.Task[None]] = set()
    try:
        async with aclosing(items) as each:
            async for item in each:
                running.add(asyncio.create_task(work(item)))
                if len(running) >= jobs:
                    running = await _one_finished(running)
        while running:
            running = await _one_finished(running)
    except asyncio.CancelledError:
        for task in running:
            task.cancel()
        raise
    finally:
        await asyncio.gather(*running, return_exceptions=True)


async def each_of(items: AsyncIterable[_Item] | Iterable[_Item]) -> AsyncGenerator[_Item, None]:
    """Yield items. A sync iterable, such as a file's, is read in a thread; the caller closes an async iterator."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    iterator = iter(items)
    while (found := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield found


async def _one_finished(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until one task is finished; return the unfinished ones. Raises the error of a finished task."""
    done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest


def location_of(error: BaseException) -> str:
    """Return the file and line of an unexpected error, which is a bug, for a report."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"

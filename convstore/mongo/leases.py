"""Take leases, and do work under one that is renewed meanwhile.

Who holds a lease says where it stands and how it is renewed: migrations, compactions and turns keep theirs in different
documents. A lease lapses by itself when its holder is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from convstore.mongo.times import Times

_Result = TypeVar("_Result")


async def is_free(times: Times, until: str) -> dict[str, Any]:
    """Return the filter for documents whose lease nobody holds, or has lapsed; `until` is the field of its end."""
    return {"$or": [{until: {"$exists": False}}, await times.is_past(until)]}


async def is_held(times: Times, until: str) -> dict[str, Any]:
    """Return the filter for documents whose lease has not lapsed."""
    return {until: {"$exists": True}, "$and": [{"$nor": [await times.is_past(until)]}]}


async def while_leased(
    work: Coroutine[Any, Any, _Result],
    renew: Callable[[], Awaitable[None]],
    *,
    every: float,
    ending: float | None = None,
) -> asyncio.Task[_Result]:
    """Run work to its end, and renew its lease meanwhile; return its task, which is done.

    The work is cancelled if `renew` raises, which the caller then gets.

    Args:
        work: The work.
        renew: Renews the lease; raises an error if it is lost, or the work takes too long.
        every: Seconds between renewals.
        ending: Seconds to wait for cancelled work, which is abandoned if it ignores its cancellation; None for ever.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=every))[0]:
            await renew()
        return task
    finally:
        # Retrieve the exception, so that asyncio does not log it.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        task.cancel()
        await asyncio.wait({task}, timeout=ending)

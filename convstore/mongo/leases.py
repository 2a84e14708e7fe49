"""Filter for leases, renew them, and run work under a lease that is renewed meanwhile.

Migrations, compactions and turns store their leases in different documents, so callers pass the function that renews
theirs. A lease that is not renewed expires.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any, TypeVar

from convstore.exceptions import StoreUnavailableError
from convstore.mongo.parallel import retrieve
from convstore.mongo.times import Times

_Result = TypeVar("_Result")


async def is_free(times: Times, until: str) -> dict[str, Any]:
    """Return the filter for documents without a lease or with an expired one; `until` is the field of its end."""
    return {"$or": [{until: {"$exists": False}}, await times.is_past(until)]}


async def is_held(times: Times, until: str) -> dict[str, Any]:
    """Return the filter for documents with a lease that has not expired."""
    return {until: {"$exists": True}, "$and": [{"$nor": [await times.is_past(until)]}]}


def renewing(
    renew: Callable[[], Awaitable[bool]],
    *,
    every: float,
    lasts: float = inf,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> asyncio.Task[None]:
    """Start a task that renews a lease at intervals, until it is cancelled, or `renew` returns False or raises.

    A renewal that does not reach the server is repeated at the next interval, unless the lease has expired by then.

    Args:
        renew: Renews the lease; returns False if it is lost, or does not have to be renewed any more.
        every: Seconds between renewals.
        lasts: Seconds after which a lease that was not renewed has expired.
        sleep: Waits.
    """

    async def repeat() -> None:
        is_held = True
        ends = time.monotonic() + lasts
        while is_held:
            await sleep(every)
            begun = time.monotonic()
            try:
                is_held = await renew()
                ends = begun + lasts
            except StoreUnavailableError:
                if time.monotonic() >= ends:
                    raise

    return asyncio.ensure_future(repeat())


async def while_leased(
    work: Coroutine[Any, Any, _Result],
    renew: Callable[[], Awaitable[bool]],
    *,
    every: float,
    lasts: float,
    ending: float | None = None,
) -> asyncio.Task[_Result] | None:
    """Run work to its end, and renew its lease meanwhile; return its finished task, or None if the lease is lost.

    The work is cancelled if the lease is lost or `renew` raises an error, which is raised here.

    Args:
        work: The work.
        renew: See `renewing`.
        every: See `renewing`.
        lasts: See `renewing`.
        ending: Seconds to wait for cancelled work to end before it is abandoned; None to wait without a limit.
    """
    task = asyncio.ensure_future(work)
    renewals = renewing(renew, every=every, lasts=lasts)
    for each in (task, renewals):
        each.add_done_callback(retrieve)
    try:
        await asyncio.wait({task, renewals}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task
        return renewals.result()
    finally:
        renewals.cancel()
        task.cancel()
        await asyncio.wait({task, renewals}, timeout=ending)

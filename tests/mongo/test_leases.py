"""One lease with renewal, for migrations, compactions and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any

import pytest

from convstore.exceptions import StoreUnavailableError
from convstore.mongo.leases import renewing, while_leased

Renew = Callable[[], Awaitable[bool]]


def _renewals(*outcomes: Any) -> tuple[Renew, asyncio.Event]:
    """Return renewals with these outcomes, and an event that the first one without an outcome sets."""
    left = list(outcomes)
    ended = asyncio.Event()

    async def renew() -> bool:
        if not left:
            ended.set()
            return True
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    return renew, ended


async def _while_leased(work: Coroutine[Any, Any, Any], renew: Renew, *, lasts: float) -> Any:
    return await asyncio.wait_for(while_leased(work, renew, every=0.001, lasts=lasts), 20)


async def test_work_goes_on_while_the_server_is_away() -> None:
    """A renewal that finds no server is repeated as long as the lease lasts."""
    away = StoreUnavailableError("away")
    renew, ended = _renewals(away, away, True, away)
    task = await _while_leased(ended.wait(), renew, lasts=inf)
    assert task.result() is True


async def test_work_ends_as_its_lease_lapses() -> None:
    """The caller gets the error of the renewal, after the work was cancelled."""
    renew, ended = _renewals(StoreUnavailableError("away"))
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await ended.wait()
        finally:
            cancelled.set()

    with pytest.raises(StoreUnavailableError, match="away"):
        await _while_leased(work(), renew, lasts=0)
    assert cancelled.is_set()


async def test_work_ends_as_its_lease_is_lost() -> None:
    """There is no result, and the error of the work itself is not one of its lease."""
    renew, ended = _renewals(True, False)
    assert await _while_leased(ended.wait(), renew, lasts=inf) is None

    async def fails() -> None:
        raise ValueError("its own")

    task = await _while_leased(fails(), renew, lasts=inf)
    with pytest.raises(ValueError, match="its own"):
        task.result()


async def test_a_lost_lease_is_not_renewed_again() -> None:
    """The renewals end, and other errors than an absent server end them at once."""
    renew, ended = _renewals(True, False)
    await asyncio.wait_for(renewing(renew, every=0.001), 20)
    assert not ended.is_set()
    with pytest.raises(ValueError, match="refused"):
        await asyncio.wait_for(renewing(_renewals(ValueError("refused"))[0], every=0.001), 20)

"""One lease with renewal, for migrations, compactions and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any

import pytest

from convstore import ConversationStore
from convstore.exceptions import StoreUnavailableError, TurnLostError
from convstore.mongo.leases import renewing, while_leased
from convstore.mongo.turn_leases import TurnLeases
from convstore.runtime.clock import Clock
from convstore.turns.held_lease import LEASE_SECONDS

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


async def test_looks_that_take_long_do_not_delay_the_renewal_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that waits for a server renews the lease in time: it counted the pauses between looks alone."""
    seconds = [0.0]
    renewed = list[float]()
    find = TurnLeases.find
    renew = TurnLeases.renew

    async def sleep(wait: float) -> None:
        seconds[0] += wait
        await asyncio.sleep(0)

    async def slow_find(*args: Any, **options: Any) -> Any:
        seconds[0] += 8
        return await find(*args, **options)

    async def noted_renew(*args: Any, **options: Any) -> Any:
        renewed.append(seconds[0])
        return await renew(*args, **options)

    monkeypatch.setattr(TurnLeases, "find", slow_find)
    monkeypatch.setattr(TurnLeases, "renew", noted_renew)
    clock = Clock(sleep=sleep, monotonic=lambda: seconds[0])
    async with await ConversationStore.connect("memory://", clock=clock) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="slow")
        async with await chat.turn("q", human="Do seals sleep?"), asyncio.timeout(20):
            while not renewed:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0)
    assert renewed[0] < LEASE_SECONDS


async def test_a_session_gives_its_turn_up_if_its_lease_cannot_be_renewed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that is none of the store's ends the renewals: it is logged, and the session writes nothing more."""

    async def fails(*_: Any, **__: Any) -> None:
        raise ValueError("a text that may quote a message")

    async with await ConversationStore.connect("memory://", clock=Clock(sleep=_at_once)) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="failing")
        turn = await chat.turn("q", human="Do seals sleep?")
        monkeypatch.setattr(TurnLeases, "find", fails)
        async with turn, asyncio.timeout(20):
            while turn.is_running:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0)
            with pytest.raises(TurnLostError):
                await turn.append({"role": "assistant", "content": "They do."})
    [line] = [record.getMessage() for record in caplog.records if record.name == "convstore"]
    assert "turn q is given up: the renewal of its lease raised ValueError at " in line
    assert "quote" not in line


async def _at_once(_: float) -> None:
    await asyncio.sleep(0)

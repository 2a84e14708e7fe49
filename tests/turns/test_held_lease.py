"""The lease of a turn in the worker that took it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from convstore.mongo.turn_leases import TurnLease
from convstore.turns.held_lease import CHECK_SECONDS, RENEW_SECONDS, HeldLease


class _Leases:
    """Counts the commands on the lease of a worker that nobody asks to stop."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.lease = TurnLease("q1", "token", datetime(2026, 12, 1, tzinfo=UTC), is_stopping=False)

    async def find(self, *_: Any, **__: Any) -> TurnLease:
        self.commands.append("find")
        return self.lease

    async def renew(self, *_: Any, **__: Any) -> TurnLease:
        self.commands.append("renew")
        return self.lease

    async def release(self, *_: Any, **__: Any) -> bool:
        self.commands.append("release")
        return True


def _held(leases: _Leases) -> HeldLease:
    async def nothing(*_: Any) -> None:
        pass

    schema: Any = SimpleNamespace(check=nothing)
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0, sleep=nothing)
    stored: Any = leases
    return HeldLease(stored, schema, clock, "conversation", "q1", "token")


async def test_a_lease_is_looked_at_often_and_renewed_seldom() -> None:
    """A renewal is a write on the server; between two of them it is only read."""
    leases = _Leases()
    checks = iter(range(20))
    await _held(leases).keep(lambda: next(checks) < 19)
    interval = int(-(-RENEW_SECONDS // CHECK_SECONDS))
    due = [number % interval == 0 for number in range(1, 21)]
    assert [command == "renew" for command in leases.commands] == due


async def test_a_borrowed_lease_is_left_to_its_lender() -> None:
    """Who borrowed it writes nothing any more, and the lender goes on."""
    leases = _Leases()
    lender = _held(leases)
    borrowed = lender.for_turn("q2")
    borrowed.sharing = "borrows"
    assert await borrowed.release(stopping=True)
    assert (leases.commands, borrowed.is_lost, lender.is_lost) == ([], True, False)


async def test_a_lease_that_is_given_up_ends_what_waits_for_it() -> None:
    """A stream of a lost turn does not go on until its source ends."""
    lease = _held(_Leases())
    assert not lease.ended.is_set()
    lease.give_up()
    assert (lease.is_lost, lease.ended.is_set()) == (True, True)


async def test_a_request_to_stop_ends_what_waits_for_it() -> None:
    """The lease is kept, so that the stop can be marked."""
    leases = _Leases()
    leases.lease = leases.lease._replace(is_stopping=True)
    lease = _held(leases)
    assert await lease.look()
    assert (lease.is_stopping, lease.is_lost, lease.ended.is_set()) == (True, False, True)

"""The lease of a turn: take it, renew it, look for a request to stop, give it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Literal

from convstore.exceptions import SchemaVersionError, StoreError, TurnClosedError, TurnLostError
from convstore.mongo.leases import renewing
from convstore.mongo.turn_leases import LeaseResult, TurnLease, TurnLeases
from convstore.runtime.background import SETTLE_SECONDS, settle
from convstore.runtime.clock import Clock
from convstore.runtime.schema_watch import SchemaWatch

LEASE_SECONDS = 30.0
"""A lease that is not renewed lapses after this time."""

RENEW_SECONDS = 10.0
"""How often the holder renews its lease."""

CHECK_SECONDS = 1.5
"""How often the holder reads its lease, to see whether it was asked to stop."""

LEASE = timedelta(seconds=LEASE_SECONDS)


async def take_lease(leases: TurnLeases, conversation: str, lease: TurnLease) -> LeaseResult | None:
    """Take a lease; if the outcome is unknown, give it back, as the same request comes again at once.

    Both wait a few seconds at most, because the server may be out of reach. None if the conversation has no state.
    """
    try:
        return await settle(leases.take(conversation, lease, time=LEASE))
    except (asyncio.CancelledError, StoreError):
        release = leases.release(conversation, owner=lease.owner)
        with suppress(StoreError, TimeoutError):
            await settle(asyncio.wait_for(release, SETTLE_SECONDS))
        raise


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease that this worker took.

    Attributes:
        leases: Reads and writes stored leases.
        schema: Knows whether a migration excludes this process.
        clock: Provides the time and waits.
        conversation: Id of the conversation.
        turn_id: Id of the turn that the worker works on.
        owner: Token of the lease.
        is_stopping: A stop was requested.
        is_lost: Another worker took the lease, this one gave it back, or this process must not write any more.
        exclusion: The error of a migration that excludes this process; None without one.
        ended: Set when `is_stopping` or `is_lost` becomes true.
        sharing: "borrows" for the lease of another turn, on which the holder works at the same time; "lends" for the
            lease of that other turn; "" for one that is not shared.
    """

    leases: TurnLeases
    schema: SchemaWatch
    clock: Clock
    conversation: str
    turn_id: str
    owner: str
    _: KW_ONLY
    is_stopping: bool = False
    is_lost: bool = False
    exclusion: SchemaVersionError | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    sharing: Literal["", "lends", "borrows"] = ""
    _seconds: float = 0.0  # since the lease was renewed
    _looked_at: float = 0.0

    def for_turn(self, turn_id: str) -> HeldLease:
        """Return the same lease, held for another turn of the conversation."""
        return HeldLease(
            self.leases, self.schema, self.clock, self.conversation, turn_id, self.owner
        )

    def give_up(self) -> None:
        """Mark the lease as lost: this worker writes nothing under it any more."""
        self.is_lost = True
        self.ended.set()

    def check(self, *, may_stop: bool = True) -> None:
        """Raise an error if this worker must not write.

        Raises:
            SchemaVersionError: A migration excludes this process.
            TurnLostError: The lease is lost.
            TurnClosedError: A stop was requested, and `may_stop` is False.
        """
        if self.exclusion is not None:
            raise SchemaVersionError(*self.exclusion.args)
        if self.is_lost:
            raise TurnLostError(self.turn_id)
        if self.is_stopping and not may_stop:
            raise TurnClosedError(self.turn_id)

    async def renew(self) -> None:
        """Renew the lease, and learn whether to stop; SchemaVersionError if a migration excludes this process."""
        await self.check_schema()
        self._follow(await self.leases.renew(self.conversation, owner=self.owner, time=LEASE))

    async def look(self) -> bool:
        """Read the lease, and learn whether to stop; False if another worker has it. Raises as `renew` does."""
        await self.check_schema()
        self._follow(await self.leases.find(self.conversation, owner=self.owner))
        return not self.is_lost

    def _follow(self, stored: TurnLease | None) -> None:
        """Update this lease from the stored one; None if another worker has it."""
        if stored is None:
            self.give_up()
        elif stored.is_stopping:
            self.is_stopping = True
            self.ended.set()

    def keep(self, goes_on: Callable[[], bool]) -> asyncio.Task[None]:
        """Renew the lease in a task, until it is lost or `goes_on` returns False after a look at it."""
        self._looked_at = self.clock.monotonic()
        keep_once = partial(self._keep_once, goes_on)
        return renewing(keep_once, every=CHECK_SECONDS, sleep=self.clock.sleep)

    async def _keep_once(self, goes_on: Callable[[], bool]) -> bool:
        """Check for a request to stop, and renew the lease if that is due; return False to end the renewals."""
        now = self.clock.monotonic()
        # a check that waits for a server may take longer than the pause between checks
        self._seconds += max(CHECK_SECONDS, now - self._looked_at)
        self._looked_at = now
        # the next check tries again; an append fails if the lease lapsed meanwhile
        with suppress(StoreError):
            if self._seconds < RENEW_SECONDS:
                await self.look()
            else:
                await self.renew()
                self._seconds = 0.0
        return not self.is_lost and goes_on()

    async def check_schema(self) -> None:
        """Give the lease up and raise the error if a migration excludes this process: a turn may last for hours."""
        try:
            await self.schema.check()
        except SchemaVersionError as error:
            self.exclusion = error
            self.give_up()
            raise

    async def release(self, *, stopping: bool = False) -> bool:
        """Give the lease back; return True if this worker does not hold it any more, so that it writes nothing.

        If a stop was requested, the lease is given back only with `stopping`. A borrowed lease is left to its lender.
        """
        if self.is_lost:
            return True
        if self.sharing == "borrows":
            self.give_up()
            return True
        is_given = await self.leases.release(self.conversation, owner=self.owner, stopping=stopping)
        if is_given or stopping:
            self.give_up()
        return self.is_lost

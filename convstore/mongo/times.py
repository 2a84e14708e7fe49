"""Compare stored times with the server's clock, and set them by it: leases, sweeps and announced migrations.

A server does both itself, with ``$$NOW``. Where it refuses that, as Amazon DocumentDB does, its clock is measured
through ``hello``, so the clocks of clients do not matter there either. A measurement is off by half of its round trip
at most, which is one second; a margin keeps such an error from ending a lease early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from convstore.exceptions import StoreError, StoreUnavailableError
from convstore.mongo.bson_values import utc

LEASE_MARGIN = timedelta(seconds=2)
"""By the measured clock, a lease lapses so much later."""

SWEEP_MARGIN = timedelta(seconds=60)
"""By the measured clock, a sweep is due, and an announced migration begins, so much later."""

SERVER_TIME = "server time"
"""Name, in `Driver.refused`, of ``$$NOW`` and of updates by a pipeline that use it."""

ALWAYS_BY_SERVER_TIME: Mapping[str, Any] = {
    "$expr": {"$lt": [datetime(2000, 1, 1, tzinfo=UTC), "$$NOW"]}
}
"""A filter that all documents match, and that a server without ``$$NOW`` refuses."""

_MEASURED_SECONDS = 60.0
_TRIES = 3
_GOOD_ROUND_TRIP = 0.5
_LONGEST_ROUND_TRIP = 2.0


class _Measured(NamedTuple):
    """The time of the server at a moment of the monotonic clock, and the connections that existed then."""

    server_time: datetime
    at: float
    connections: object
    round_trip: float


class ServerClock:
    """The clock of the server, measured each minute and after a reconnect, and kept by the monotonic clock between.

    Args:
        hello: Sends ``hello`` and returns the reply.
        connections: Returns another value once the client has connected again.
        monotonic: A clock that counts the machine's sleep, too.
    """

    def __init__(
        self,
        hello: Callable[[], Awaitable[Mapping[str, Any]]],
        *,
        connections: Callable[[], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._hello = hello
        self._connections = connections
        self._monotonic = monotonic
        self._measured: _Measured | None = None

    async def now(self) -> datetime:
        """Return the server's time. No command, or up to three when it is due to be measured.

        Raises:
            StoreUnavailableError: Each answer took too long to tell the time.
        """
        measured = self._measured
        if measured is None or not self._is_valid(measured):
            measured = await self._measure()
            self._measured = measured
        return measured.server_time + timedelta(seconds=self._monotonic() - measured.at)

    def _is_valid(self, measured: _Measured) -> bool:
        is_young = 0 <= self._monotonic() - measured.at < _MEASURED_SECONDS
        return is_young and measured.connections == self._connections()

    async def _measure(self) -> _Measured:
        """Return the measurement with the shortest round trip; one good one is enough."""
        best = await self._ask()
        for _ in range(_TRIES - 1):
            if best.round_trip <= _GOOD_ROUND_TRIP:
                break
            best = min(best, await self._ask(), key=lambda measured: measured.round_trip)
        if best.round_trip > _LONGEST_ROUND_TRIP:
            raise StoreUnavailableError(
                f"the server took {best.round_trip:.1f} s to tell its time, so a lease cannot be "
                "judged by it; call again, or look for what blocks the event loop or the network"
            )
        return best

    async def _ask(self) -> _Measured:
        connections = self._connections()
        sent = self._monotonic()
        reply = await self._hello()
        received = self._monotonic()
        server_time = reply.get("localTime")
        if not isinstance(server_time, datetime):
            raise StoreError(
                "this server neither knows $$NOW nor tells its time in hello, "
                "so leases are not possible on it; docs/releases.md has the servers that work"
            )
        round_trip = received - sent
        # The server wrote the time half a round trip before the reply came.
        return _Measured(utc(server_time), received - round_trip / 2, connections, round_trip)


class Times:
    """Filters and updates with times.

    Args:
        now: An injected clock, or that of the in-memory database; None for the server's.
        clock: The server's clock for servers that refuse ``$$NOW``.
        refused: The constructs that the server refuses; see `Driver.refused`.
    """

    def __init__(
        self, now: Callable[[], datetime] | None, clock: ServerClock, refused: set[str]
    ) -> None:
        self._now = now
        self._clock = clock
        self._refused = refused

    async def is_past(self, field: str, *, margin: timedelta = LEASE_MARGIN) -> dict[str, Any]:
        """Return the filter for documents whose time in a field is past; not for an upsert.

        By the measured clock the time has to be past by `margin`.
        """
        if self._now is not None:
            return {field: {"$lte": self._now()}}
        if SERVER_TIME in self._refused:
            # A partial index may ask for exactly its own condition.
            return {field: {"$exists": True, "$lte": await self._clock.now() - margin}}
        return is_past_now(field)

    async def setting(self, values: Mapping[str, Any], *, field: str, ahead: timedelta) -> Any:
        """Return the update that sets values, and a field to a time ahead of the clock of `is_past`."""
        if self._now is not None:
            return {"$set": {**values, field: self._now() + ahead}}
        if SERVER_TIME in self._refused:
            return {"$set": {**values, field: await self._clock.now() + ahead}}
        return setting_from_now(values, field=field, ahead=ahead)


def is_past_now(field: str) -> dict[str, Any]:
    """Return the filter of `Times.is_past` for a server that compares the time itself.

    ``$$NOW`` alone would match documents without the field, too, and use no index.
    """
    return {field: {"$exists": True}, "$expr": {"$lte": [f"${field}", "$$NOW"]}}


def setting_from_now(
    values: Mapping[str, Any], *, field: str, ahead: timedelta
) -> list[dict[str, Any]]:
    """Return the update of `Times.setting` for a server that adds to its own time."""
    literals = {name: {"$literal": value} for name, value in values.items()}
    return [{"$set": {**literals, field: {"$add": ["$$NOW", ahead // timedelta(milliseconds=1)]}}}]

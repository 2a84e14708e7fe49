"""Compare stored times with the server's clock, and set them by it: leases, sweeps and announced migrations.

Servers do both themselves, with ``$$NOW``. For servers that refuse ``$$NOW``, such as Amazon DocumentDB, their clock is
measured through ``hello``, so that the clocks of clients never matter. The error of a measurement is half of its round
trip at most, which is one second; a margin keeps such an error from ending a lease early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from convstore.exceptions import StoreError, StoreUnavailableError
from convstore.mongo.bson_values import utc

LEASE_MARGIN = timedelta(seconds=2)
"""Time by which leases last longer if the clock is measured."""

SWEEP_MARGIN = timedelta(seconds=60)
"""Time by which sweeps and announced migrations begin later if the clock is measured."""

SERVER_TIME = "server time"
"""Name, in `Driver.refused`, of ``$$NOW`` and of updates by a pipeline that use it."""

ALWAYS_BY_SERVER_TIME: Mapping[str, Any] = {
    "$expr": {"$lt": [datetime(2000, 1, 1, tzinfo=UTC), "$$NOW"]}
}
"""A filter that matches all documents, and that a server without ``$$NOW`` refuses."""

_MEASURED_SECONDS = 60.0
_TRIES = 3
_GOOD_ROUND_TRIP = 0.5
_LONGEST_ROUND_TRIP = 2.0


class _Measurement(NamedTuple):
    """The time of the server at a moment of the monotonic clock, and the connections that existed then."""

    server_time: datetime
    at: float
    connections: object
    round_trip: float


class ServerClock:
    """The clock of the server, measured each minute and after a reconnect; between that the monotonic clock is added.

    Args:
        hello: Sends ``hello`` and returns the reply.
        connections: Returns a value that changes when the client has connected again.
        monotonic: A clock that includes the machine's sleep.
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
        self._measured: _Measurement | None = None

    async def now(self) -> datetime:
        """Return the server's time. No command, or up to three if a measurement is due.

        Raises:
            StoreUnavailableError: The round trips took too long for a measurement.
        """
        measured = self._measured
        if measured is None or not self._is_valid(measured):
            measured = await self._measure()
            self._measured = measured
        return measured.server_time + timedelta(seconds=self._monotonic() - measured.at)

    def _is_valid(self, measured: _Measurement) -> bool:
        is_young = 0 <= self._monotonic() - measured.at < _MEASURED_SECONDS
        return is_young and measured.connections == self._connections()

    async def _measure(self) -> _Measurement:
        """Measure until a round trip is short, three times at most; return the measurement with the shortest one."""
        best = await self._ask()
        for _ in range(_TRIES - 1):
            if best.round_trip <= _GOOD_ROUND_TRIP:
                break
            best = min(best, await self._ask(), key=lambda measured: measured.round_trip)
        if best.round_trip > _LONGEST_ROUND_TRIP:
            raise StoreUnavailableError(
                f"the server took {best.round_trip:.1f} s to tell its time, which is too long to "
                "compare leases with it; call again, or check what delays event loop or network"
            )
        return best

    async def _ask(self) -> _Measurement:
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
        return _Measurement(utc(server_time), received - round_trip / 2, connections, round_trip)


class Times:
    """Filters and updates with times.

    Args:
        now: An injected clock, or that of the in-memory database; None for the clock of the server.
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
        """Return the filter for documents whose time in a field has passed; it cannot be used for an upsert.

        If the clock is measured, the time has to have passed by `margin`.
        """
        if self._now is not None:
            return {field: {"$lte": self._now()}}
        if SERVER_TIME in self._refused:
            # Some servers use a partial index only if the filter has the index's own condition.
            return {field: {"$exists": True, "$lte": await self._clock.now() - margin}}
        return is_past_now(field)

    async def setting(self, values: Mapping[str, Any], *, field: str, ahead: timedelta) -> Any:
        """Return the update that sets values, and a field to a later time by the clock of `is_past`."""
        if self._now is not None:
            return {"$set": {**values, field: self._now() + ahead}}
        if SERVER_TIME in self._refused:
            return {"$set": {**values, field: await self._clock.now() + ahead}}
        return setting_from_now(values, field=field, ahead=ahead)


def is_past_now(field: str) -> dict[str, Any]:
    """Return the filter of `Times.is_past` for a server that knows ``$$NOW``.

    The comparison alone would also match documents without the field, and could not use an index.
    """
    return {field: {"$exists": True}, "$expr": {"$lte": [f"${field}", "$$NOW"]}}


def setting_from_now(
    values: Mapping[str, Any], *, field: str, ahead: timedelta
) -> list[dict[str, Any]]:
    """Return the update of `Times.setting` for a server that knows ``$$NOW``."""
    literals = {name: {"$literal": value} for name, value in values.items()}
    return [{"$set": {**literals, field: {"$add": ["$$NOW", ahead // timedelta(milliseconds=1)]}}}]

"""Provide the time, waiting times and unique tokens, and let an import backdate its messages."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from bson import ObjectId

from convstore.exceptions import StoreUnavailableError
from convstore.runtime.background import SETTLE_SECONDS
from convstore.values.plain import duration

_date_override: ContextVar[datetime | None] = ContextVar("date_override", default=None)

ID_LIFETIME = 10.0
"""Seconds after which a cached conversation id is checked before use."""

APPEND_SECONDS = 60.0
"""Timeout of an append; a later sweep finds everything that it may have written."""

APPENDS_END_AFTER = timedelta(seconds=APPEND_SECONDS + SETTLE_SECONDS + ID_LIFETIME + 5)
"""Time after a deletion or a repair after which every append with the old conversation id has ended."""


@asynccontextmanager
async def append_timeout() -> AsyncIterator[None]:
    """Limit the time of an append, a rewind or a fork.

    Raises:
        StoreUnavailableError: The call timed out.
    """
    try:
        async with asyncio.timeout(APPEND_SECONDS):
            yield
    except TimeoutError as error:
        raise StoreUnavailableError(
            f"the call took longer than {duration(APPEND_SECONDS)} and was given up; "
            "it may or may not have taken effect: repeat it with the same arguments"
        ) from error


@contextmanager
def as_of(moment: datetime | None) -> Iterator[None]:
    """Use another time for everything that is written in this context, such as the original date in an import."""
    token = _date_override.set(moment)
    try:
        yield
    finally:
        _date_override.reset(token)


def backdated() -> datetime | None:
    """Return the time that `as_of` set for this context, None if it is not set."""
    return _date_override.get()


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
Moment = tuple[float, float]
"""A time by the monotonic clock, which includes a machine's sleep where that is supported, and by the wall clock."""


def _now() -> datetime:
    # MongoDB stores milliseconds.
    moment = backdated() or datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@dataclass(frozen=True, slots=True)
class Clock:
    """A source of time and unique tokens; tests pass their own."""

    now: Callable[[], datetime] = _now
    # time.monotonic stands still while the machine sleeps.
    monotonic: Callable[[], float] = (
        partial(time.clock_gettime, _BOOT_CLOCK) if _BOOT_CLOCK else time.monotonic
    )
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    # The context is empty, because the callback does not belong to the request that happened to set the timer.
    call_later: Callable[[float, Callable[[], None]], object] = lambda seconds, callback: (
        asyncio.get_running_loop().call_later(seconds, callback, context=Context())
    )
    # An ObjectId begins with the time, by which a sweep finds orphaned chunks.
    token: Callable[[], str] = lambda: str(ObjectId())
    # Fits into BSON's signed 64-bit integer.
    link: Callable[[], int] = lambda: secrets.randbits(63)

    def undated(self) -> datetime:
        """Return the current time, even if `as_of` set another one."""
        with as_of(None):
            return self.now()

    def moment(self) -> Moment:
        """Return the time by both clocks."""
        return self.monotonic(), self.wall()

    def is_within(self, seconds: float, *, since: Moment) -> bool:
        """Return True if less time passed since a moment by both clocks; False if the wall clock jumped by more."""
        monotonic, wall = since
        return self.monotonic() - monotonic < seconds and abs(self.wall() - wall) < seconds

"""Provide the time and unique tokens, and let an import backdate its messages.

Floor 3; everything above asks this clock for the time, so that tests can replace it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

from bson import ObjectId

__all__ = ["APPEND_SECONDS", "ID_LIFETIME", "Clock", "as_of", "is_backdated"]

_said: ContextVar[datetime | None] = ContextVar("said", default=None)

ID_LIFETIME = 10.0
"""Seconds after which a cached conversation id is checked before use."""

APPEND_SECONDS = 60.0
"""Timeout of an append; a later sweep finds everything that it may have written."""


@contextmanager
def as_of(moment: datetime | None) -> Iterator[None]:
    """Date everything written in this context with another moment, such as the original date in an import."""
    token = _said.set(moment)
    try:
        yield
    finally:
        _said.reset(token)


def is_backdated() -> bool:
    """Return True if this context dates what it writes with another moment."""
    return _said.get() is not None


def _now() -> datetime:
    # MongoDB stores milliseconds.
    moment = _said.get() or datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _call_later(seconds: float, callback: Callable[[], None]) -> object:
    # In an empty context instead of that of the request that happened to set the timer.
    return asyncio.get_running_loop().call_later(seconds, callback, context=Context())


@dataclass(frozen=True, slots=True)
class Clock:
    """A source of time and unique tokens; tests pass their own."""

    now: Callable[[], datetime] = _now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    call_later: Callable[[float, Callable[[], None]], object] = _call_later
    # An ObjectId begins with the time, by which a sweep finds orphaned chunks.
    token: Callable[[], str] = lambda: str(ObjectId())
    # Fits into BSON's signed 64-bit integer.
    link: Callable[[], int] = lambda: secrets.randbits(63)

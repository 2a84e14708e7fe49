"""Where time and unique tokens come from, and the other moment that an import dates its messages with.

Layer 4. Nothing else asks for the time, so that tests decide it.
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
"""Seconds after which a remembered conversation id is checked before use."""


APPEND_SECONDS = 60.0
"""An append gives up after this time; a sweep that comes later finds everything that it may have written."""


@contextmanager
def as_of(moment: datetime | None) -> Iterator[None]:
    """Let what is written in this context be dated with another moment: an import says when it was written first."""
    token = _said.set(moment)
    try:
        yield
    finally:
        _said.reset(token)


def is_backdated() -> bool:
    """Whether what is written in this context is dated with another moment."""
    return _said.get() is not None


def _now() -> datetime:
    # MongoDB keeps milliseconds.
    moment = _said.get() or datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _call_later(seconds: float, callback: Callable[[], None]) -> object:
    # In a context of its own: not in that of the request that happened to set the timer.
    return asyncio.get_running_loop().call_later(seconds, callback, context=Context())


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time and unique tokens come from; tests pass their own."""

    now: Callable[[], datetime] = _now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    call_later: Callable[[float, Callable[[], None]], object] = _call_later
    # An ObjectId begins with the time, which a sweep of orphaned chunks goes by.
    token: Callable[[], str] = lambda: str(ObjectId())
    # Fits BSON's 64-bit integer.
    link: Callable[[], int] = lambda: secrets.randbits(63)

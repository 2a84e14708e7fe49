"""Wake the watchers of conversations: by one change stream for the whole store, or once a second without one.

A change stream only signals that a conversation changed; the watchers then read it. So they see the same data with and
without a change stream.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from convstore.exceptions import StoreClosedError, StoreError, StoreUnavailableError
from convstore.mongo.driver import Driver
from convstore.mongo.keys import DRAFTS, LOG
from convstore.runtime.background import Background
from convstore.runtime.clock import Clock

_LOGGER = logging.getLogger("convstore")
_CONVERSATION = re.compile("[:#]")
"""Character after the conversation's id in a key."""

_POLL_SECONDS = 1.0
"""Longest wait of a watcher without a change stream."""
_STREAM_POLL_SECONDS = 10.0
"""Longest wait of a watcher with a change stream: a lease that expires changes no document."""
_RETRY_SECONDS = 60.0
"""Time after which a failed change stream is opened again."""


@dataclass(slots=True, eq=False)
class ChangeSignal:
    """An event that is set when a watched conversation changes; `conversation` is "" until it exists."""

    conversation: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class ChangeFeed:
    """Wakes all watchers of a store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._background = Background()
        self._all: set[ChangeSignal] = set()
        self._is_live = False
        self._is_closed = False
        self._has_warned = False
        self._retry_at = 0.0

    @contextmanager
    def watched(self) -> Iterator[ChangeSignal]:
        """Yield a signal for calls of `wait`; the caller sets its conversation once that exists."""
        self._all.add(signal := ChangeSignal())
        try:
            yield signal
        finally:
            self._all.discard(signal)

    async def wait(self, signal: ChangeSignal) -> None:
        """Wait until a conversation may have changed since the last wait.

        Raises:
            StoreClosedError: The store was closed.
        """
        if not self._is_live and self._clock.monotonic() >= self._retry_at:
            self._background.start(self._follow)
        seconds = _POLL_SECONDS
        if self._is_live and signal.conversation:
            seconds = _STREAM_POLL_SECONDS
        waiting = [
            asyncio.ensure_future(signal.changed.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        signal.changed.clear()
        if self._is_closed:
            raise StoreClosedError("the store was closed while a conversation was watched")

    async def close(self) -> None:
        """End all waits, and the change stream."""
        self._is_closed = True
        self._wake(self._all)
        await self._background.close()

    async def _follow(self) -> None:
        """Wake watchers after each change, until the last of them has left."""
        try:
            async with aclosing(self._driver.changes(LOG, DRAFTS)) as keys:
                async for key in keys:
                    if not self._all:
                        return
                    changed = _CONVERSATION.split(key)[0]
                    # The first key means that the stream is open. All watchers read the changes before that now.
                    self._wake(
                        signal
                        for signal in self._all
                        if signal.conversation == changed or not self._is_live
                    )
                    self._is_live = True
        except StoreError as error:  # the watchers' reads report a server that is down
            if not (
                self._has_warned
                or isinstance(error, StoreUnavailableError)
                or self._driver.name == "memory"
            ):
                self._has_warned = True
                _LOGGER.warning(
                    "conversations are watched by reading them once a second: %s", error
                )
            self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
        finally:
            self._is_live = False
            self._wake(self._all)

    def _wake(self, signals: Iterable[ChangeSignal]) -> None:
        for signal in signals:
            signal.changed.set()

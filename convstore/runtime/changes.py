"""Wake those who watch conversations: by one change stream of the store, or once a second without change streams.

A change stream only tells that something changed; watchers then read. So they see the same with it and without.
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
_LOOK_SECONDS = 10.0
_RETRY_SECONDS = 60.0
"""How long a watcher waits at most without a change stream, and with one: a lease that lapses changes no document."""


@dataclass(slots=True, eq=False)
class Watched:
    """The conversation of a watcher, "" for none yet, and an event that is set when it changes."""

    conversation: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Changes:
    """Wakes all watchers of a store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._background = Background()
        self._all = set[Watched]()
        self._is_live = False
        self._is_closed = False
        self._is_told = False
        self._retry_at = 0.0

    @contextmanager
    def watched(self) -> Iterator[Watched]:
        """Yield what the caller waits with, by `wait`."""
        self._all.add(watched := Watched())
        try:
            yield watched
        finally:
            self._all.discard(watched)

    async def wait(self, watched: Watched) -> None:
        """Wait until a conversation may have changed since the last wait.

        Raises:
            StoreClosedError: The store was closed.
        """
        if not self._is_live and self._clock.monotonic() >= self._retry_at:
            self._background.start(self._follow)
        seconds = _LOOK_SECONDS if self._is_live and watched.conversation else _POLL_SECONDS
        waiting = [
            asyncio.ensure_future(watched.changed.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        watched.changed.clear()
        if self._is_closed:
            raise StoreClosedError("the store was closed while a conversation was watched")

    async def close(self) -> None:
        """End all waits, and the change stream."""
        self._is_closed = True
        self._wake(self._all)
        await self._background.close()

    async def _follow(self) -> None:
        """Wake watchers after each change, as long as there are any."""
        try:
            async with aclosing(self._driver.changes(LOG, DRAFTS)) as keys:
                async for key in keys:
                    if not self._all:
                        return
                    changed = _CONVERSATION.split(key)[0]
                    # The first key tells that the stream is open: what changed before is read now.
                    self._wake(
                        watched
                        for watched in self._all
                        if watched.conversation == changed or not self._is_live
                    )
                    self._is_live = True
        except StoreError as error:  # the watchers' reads report a server that is down
            if not (
                self._is_told
                or isinstance(error, StoreUnavailableError)
                or self._driver.name == "memory"
            ):
                self._is_told = True
                _LOGGER.warning(
                    "conversations are watched by reading them once a second: %s", error
                )
            self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
        finally:
            self._is_live = False
            self._wake(self._all)

    def _wake(self, watchers: Iterable[Watched]) -> None:
        for watched in watchers:
            watched.changed.set()

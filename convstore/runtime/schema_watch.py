"""Check that this version may use the database, while other processes migrate it."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from convstore.mongo.migrator import Migrator
from convstore.runtime.clock import ID_LIFETIME, Clock


class SchemaWatch:
    """Checks before each call of a store that this version may use the database; one find in 10 seconds.

    Attributes:
        is_ready: True once the database is known to be set up.
    """

    def __init__(self, migrator: Migrator, clock: Clock) -> None:
        self._migrator = migrator
        self._clock = clock
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
        self._read_at = clock.moment()
        self.is_ready = False

    async def check(self) -> None:
        """Check the version; at most one command.

        Raises:
            SchemaVersionError: A migration excludes this version.
            NotSetUpError: The database is not set up.
        """
        if not self._is_known():
            async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if not self._is_known():  # another call may have read it meanwhile
                    await self.read()

    async def read(self) -> None:
        """Read the version that the database requires; raises the errors of `check`. One command."""
        read_at = self._clock.moment()
        await self._migrator.check()
        self._read_at = read_at
        self.is_ready = True

    def _is_known(self) -> bool:
        return self.is_ready and self._clock.is_within(ID_LIFETIME, since=self._read_at)

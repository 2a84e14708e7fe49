"""Watch whether this version may use the database, while other processes migrate it."""

from __future__ import annotations

import asyncio

from convstore.exceptions import SchemaVersionError
from convstore.mongo.migrator import Migrator
from convstore.runtime.clock import ID_LIFETIME, Clock


class SchemaWatch:
    """Knows for each call of a store whether this version may read and write, by one find in 10 seconds.

    Attributes:
        is_ready: True once the database is known to be set up.
    """

    def __init__(self, migrator: Migrator, clock: Clock) -> None:
        self._migrator, self._clock, self._lock = migrator, clock, asyncio.Lock()
        self._read_at, self._barred_by, self.is_ready = clock.moment(), "", False

    async def check(self, *, writes: bool = False) -> None:
        """Raise a SchemaVersionError if this version may not read, or not write, a NotSetUpError before `setup`."""
        if not self._is_known():
            async with self._lock:
                if not self._is_known():  # another call may have read it meanwhile
                    await self.read()
        if writes and not self.may_write:
            raise SchemaVersionError(
                f"a newer convstore migrated the database ({self._barred_by}), so this version may only read it; "
                "upgrade the package"
            )

    @property
    def may_write(self) -> bool:
        """True if this version may write, as far as is known."""
        return not self._barred_by

    async def read(self) -> None:
        """Read what the database asks for. One command."""
        read_at = self._clock.moment()
        self._barred_by = await self._migrator.check()
        self._read_at, self.is_ready = read_at, True

    def _is_known(self) -> bool:
        return self.is_ready and self._clock.is_within(ID_LIFETIME, since=self._read_at)

"""Retry writes that collide with other writers: one limit and one back-off for all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from convstore.exceptions import StoreError

_Result = TypeVar("_Result")

_LIMIT = 1_000
_BACKOFF = 0.002
_LONGEST_BACKOFF = 0.2


class WriteConflict(Exception):  # noqa: N818 - a result, which `until_written` catches
    """Another writer changed the data that this write depends on."""


class Attempts:
    """The attempts of one write.

    Attributes:
        lost: Number of attempts that collided with another writer.
    """

    def __init__(self) -> None:
        self.lost = 0

    def lose(self) -> None:
        """Count a collision.

        Raises:
            StoreError: It was the thousandth one.
        """
        self.lost += 1
        if self.lost >= _LIMIT:
            raise StoreError(
                f"other writers were faster {_LIMIT:,} times; call again, with fewer writers to "
                "one conversation"
            )

    async def back_off(self) -> None:
        """Count a collision, and wait: exponentially longer each time, with jitter. It raises like `lose`."""
        longest = min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(self.lost, 10))
        self.lose()
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - jitter


async def until_written(
    write: Callable[[], Awaitable[_Result]], *conflicts: type[Exception]
) -> _Result:
    """Return the result of `write`; call it again as long as it raises one of the errors that mean a collision.

    Raises:
        StoreError: It collided a thousand times.
    """
    attempts = Attempts()
    while True:
        try:
            return await write()
        except conflicts:
            await attempts.back_off()

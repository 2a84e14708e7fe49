"""Try again as long as other writers are faster: one limit and one way to wait, for every writer of a log."""

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


class Outrun(Exception):  # noqa: N818 - a result, which `until_written` catches
    """Another writer changed what this write depends on."""


class Attempts:
    """The attempts to write something at the end of a log.

    Attributes:
        lost: Number of attempts that other writers won.
    """

    def __init__(self) -> None:
        self.lost = 0

    def lose(self) -> None:
        """Count an attempt that another writer won.

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
        """Count an attempt that another writer won, and wait: exponentially longer, with jitter. See `lose`."""
        longest = min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(self.lost, 10))
        self.lose()
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - jitter


async def until_written(
    write: Callable[[], Awaitable[_Result]], *outrun: type[Exception]
) -> _Result:
    """Return what `write` returns; call it again as long as it raises one of these errors: other writers were faster.

    Raises:
        StoreError: They were faster a thousand times.
    """
    attempts = Attempts()
    while True:
        try:
            return await write()
        except outrun:
            await attempts.back_off()

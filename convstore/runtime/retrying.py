"""Try again as long as other writers are faster: one limit and one way to wait, for every writer of a log."""

from __future__ import annotations

import asyncio
import random

from convstore.exceptions import StoreError

_LIMIT = 1_000
_BACKOFF = 0.002
_LONGEST_BACKOFF = 0.2


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

"""Source numbers for children, which the outermost conversation reserves for all of them in blocks that grow.

Each block is an entry without messages in that conversation, so its loads would grow with the results of its children.
A block has as many numbers as the children took before it, at most 1,000: at most half of them are never used.
"""

from __future__ import annotations

from convstore.mongo.log import Log
from convstore.mongo.number_pools import NumberPools

MAX_BLOCK = 1_000
"""Numbers in the largest block, unless more are needed at once."""


class ChildNumbers:
    """The numbers that are reserved for the children of conversations."""

    def __init__(self, log: Log, pools: NumberPools) -> None:
        self._log, self._pools = log, pools

    async def take(self, conversation: str, number: int) -> tuple[range, int]:
        """Take numbers that no tool uses; none if there are not enough, and how many numbers children ever got."""
        while True:
            found, given = await self._pools.take(conversation, number)
            if not found or not await self._log.taken_source_ids(conversation, found):
                return found, given

    async def begin_block(self, conversation: str, block: range, number: int, *, given: int) -> range:
        """Take numbers of a block that was just reserved, and keep the others."""
        await self._pools.fill(conversation, block[number:], given=given + len(block))
        return block[:number]

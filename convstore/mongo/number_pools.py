"""Read and write the source numbers that are reserved for the children of a conversation, a field of its state.

Each change is one update of an existing state. A number leaves the pool once; what is lost of a pool is never given.
"""

from __future__ import annotations

from collections.abc import Mapping

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.bson_values import reading, stored_number
from convstore.mongo.collection import Collection, Document
from convstore.mongo.driver import Driver
from convstore.mongo.keys import LOG, of_state
from convstore.mongo.versions import readable

MAX_BLOCK = 1_000
"""Numbers in the largest block, unless more are needed at once; a block has as many as all before it."""

UNRESERVED = "it has source numbers that the log did not reserve"

_MAX_LOST = 1_000_000
_FIELDS = {"numbers": 1}


class NumberPools:
    """Commands on the pools of numbers."""

    def __init__(self, driver: Driver) -> None:
        self._log = Collection(driver, LOG)

    async def take(self, conversation: str, number: int) -> tuple[range, int | None]:
        """Take adjacent numbers, none if there are not enough; return them, and how many it ever had. Two commands.

        It never had any, None, if the conversation has no state.
        """
        query = of_state(conversation)
        taken = {"$inc": {"numbers.free": -number}}
        if before := await self._log.find_and_update(
            query | {"numbers.free": {"$gte": number}}, taken, _FIELDS
        ):
            free, last, given = _pool(before)
            return range(last - free + 1, last - free + 1 + number), given
        state = await self._log.find_one(query, _FIELDS)
        return range(0), None if state is None else _pool(state)[2]

    async def fill(self, conversation: str, block: range, *, given: int) -> None:
        """Replace the numbers that are left by the end of a block, after `given` numbers in all. One command."""
        pool = {"free": len(block), "last": block.stop - 1, "given": given}
        await self._log.update(
            of_state(conversation) | readable("state"), {"$set": {"numbers": pool}}
        )


def check_pool(state: Document, *, through: int) -> None:
    """Raise a CorruptDocumentError if a state has numbers that its log, which ends with one, did not reserve."""
    free, last, given = _pool(state)
    if not free <= given <= last <= through:
        raise CorruptDocumentError(str(state["_id"]), UNRESERVED)


def lost_reservation(state: Document, *, through: int) -> int:
    """Return the last number that children were given, if the log ends with a lower one; 0 if nothing is lost.

    A number far ahead is damage, and would use up those that follow.
    """
    try:
        free, last, given = _pool(state)
    except CorruptDocumentError:
        return 0
    is_lost = free <= given <= last and through < last <= through + _MAX_LOST
    return last if is_lost else 0


def _pool(state: Document) -> tuple[int, int, int]:
    with reading(state):
        pool = state.get("numbers", {"free": 0, "last": 0, "given": 0})
        if not isinstance(pool, Mapping):
            raise TypeError("the numbers of children are no document")
        free, last, given = (stored_number(pool[name]) for name in ("free", "last", "given"))
        return free, last, given

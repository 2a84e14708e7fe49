"""Read and write the pool of source numbers that are reserved for the children of a conversation.

The pool is a field of the conversation's state. Each change is one update of an existing state. A number leaves the
pool only once; numbers of a lost pool are never used.
"""

from __future__ import annotations

from collections.abc import Mapping

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.bson_values import reading, stored_number
from convstore.mongo.collection import Collection, Document
from convstore.mongo.driver import Driver
from convstore.mongo.keys import LOG, of_state
from convstore.mongo.versions import is_newer, readable

MAX_BLOCK = 1_000
"""Numbers in the largest block, unless more are needed at once; smaller blocks double the numbers so far."""

UNRESERVED = "it has source numbers that the log did not reserve"

_MAX_LOST = 1_000_000
_FIELDS = {"numbers": 1}


class NumberPools:
    """Commands on the pools of numbers."""

    def __init__(self, driver: Driver) -> None:
        self._log = Collection(driver, LOG)

    async def take(self, conversation: str, number: int) -> tuple[range, int | None]:
        """Take adjacent numbers from the pool; the range is empty if the pool has too few. Two commands at most.

        Also return how many numbers the pool has ever had, None if the conversation has no state. The pool in a state
        that a newer convstore wrote counts as empty.
        """
        state_query = of_state(conversation)
        has_numbers = readable("state") | {"numbers.free": {"$gte": number}}
        taken = {"$inc": {"numbers.free": -number}}
        if before := await self._log.find_and_update(state_query | has_numbers, taken, _FIELDS):
            free, last, given = _pool(before)
            return range(last - free + 1, last - free + 1 + number), given
        state = await self._log.find_one(state_query, _FIELDS | {"v": 1, "summary.v": 1})
        if state is None:
            return range(0), None
        return range(0), 0 if is_newer(state, "state") else _pool(state)[2]

    async def fill(self, conversation: str, block: range, *, given: int) -> None:
        """Replace the pool by the numbers in `block`; `given` is how many it has ever had. One command."""
        pool = {"free": len(block), "last": block.stop - 1, "given": given}
        await self._log.update(
            of_state(conversation) | readable("state"), {"$set": {"numbers": pool}}
        )


def check_pool(state: Document, *, through: int) -> None:
    """Raise a CorruptDocumentError if a state has numbers that its log did not reserve.

    `through` is the highest number that the log has reserved or used.
    """
    free, last, given = _pool(state)
    if not free <= given <= last <= through:
        raise CorruptDocumentError(str(state["_id"]), UNRESERVED)


def lost_reservation(state: Document, *, through: int) -> int:
    """Return the last number that was reserved for children if the log has lost its reservation, else 0.

    A number that is far higher than `through`, the highest of the log, counts as damage of the state.
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
            raise TypeError("the numbers of children are not a document")
        free, last, given = (stored_number(pool[name]) for name in ("free", "last", "given"))
        return free, last, given

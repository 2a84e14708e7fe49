"""Read and write the lease on the turn in progress, a field of the conversation's state.

Every change is one conditional update of an existing state, so that a deleted conversation stays deleted. Leases expire
by the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from convstore.mongo.bson_values import reading, stored_text, utc
from convstore.mongo.collection import Collection, Document
from convstore.mongo.driver import Driver
from convstore.mongo.keys import LOG, of_state
from convstore.mongo.leases import is_free, is_held
from convstore.mongo.versions import check_version, readable

_FIELDS = {"turn": 1}


class TurnLease(NamedTuple):
    """A lease as it was read.

    Attributes:
        turn: Id of the turn.
        owner: The random token of its holder.
        since: When the holder took it.
        is_stopping: True if the holder was asked to stop.
        variant: Id of the variant that its holder works on, "" for the variant that is shown.
    """

    turn: str
    owner: str
    since: datetime
    is_stopping: bool
    variant: str = ""

    def is_for(self, turn: str, variant: str) -> bool:
        """Return True if its holder works on a variant of a turn; an edit has the id of its turn."""
        return (self.turn, self.variant or self.turn) == (turn, variant or turn)


class LeaseResult(NamedTuple):
    """The result of an attempt to take a lease.

    Attributes:
        is_taken: True if it was taken.
        lease: The lease found: the expired one that was replaced, or that of another holder; None if it was free.
        may_have_summaries: False if the log never had a summary.
    """

    is_taken: bool
    lease: TurnLease | None
    may_have_summaries: bool = True


class TurnLeases:
    """Commands on the leases of turns; each method is one command, unless its docstring says otherwise."""

    def __init__(self, driver: Driver) -> None:
        self._times = driver.times
        self._log = Collection(driver, LOG)

    async def take(
        self, conversation: str, lease: TurnLease, *, time: timedelta
    ) -> LeaseResult | None:
        """Take a lease if it is free or expired; None if the conversation has no state. Two commands if it is held.

        Raises:
            SchemaVersionError: A newer convstore wrote the state.
        """
        values = {
            "turn.id": lease.turn,
            "turn.owner": lease.owner,
            "turn.since": lease.since,
            "turn.stop": False,
        }
        values["turn.variant"] = lease.variant
        change = await self._times.setting(values, field="turn.until", ahead=time)
        query = (
            of_state(conversation) | readable("state") | await is_free(self._times, "turn.until")
        )
        fields = {**_FIELDS, "newest": 1}
        if (before := await self._log.find_and_update(query, change, fields)) is not None:
            return LeaseResult(True, _lease(before), may_have_summaries=bool(before.get("newest")))
        current = await self._log.find_one(
            of_state(conversation), {**_FIELDS, "v": 1, "summary.v": 1}
        )
        if current is None:
            return None
        check_version(current, "state")
        return LeaseResult(is_taken=False, lease=_lease(current))

    async def renew(self, conversation: str, *, owner: str, time: timedelta) -> TurnLease | None:
        """Renew the lease, even an expired one; None if another holder took it."""
        change = await self._times.setting({}, field="turn.until", ahead=time)
        query = of_state(conversation) | {"turn.owner": owner}
        return _lease(await self._log.find_and_update(query, change, _FIELDS))

    async def find(self, conversation: str, *, owner: str) -> TurnLease | None:
        """Return the lease; None if another holder took it."""
        query = of_state(conversation) | {"turn.owner": owner}
        return _lease(await self._log.find_one(query, _FIELDS))

    async def holder(self, conversation: str) -> TurnLease | None:
        """Return the lease that is held, if there is one; an expired one is ignored."""
        query = of_state(conversation) | await is_held(self._times, "turn.until")
        return _lease(await self._log.find_one(query, _FIELDS))

    async def release(self, conversation: str, *, owner: str, stopping: bool = True) -> bool:
        """Release the lease; False if another holder took it, or without `stopping` if a stop was requested."""
        query = of_state(conversation) | {"turn.owner": owner}
        if not stopping:
            query["turn.stop"] = False
        return await self._log.update(query, {"$unset": {"turn": ""}})

    async def ask_to_stop(self, conversation: str, turn: str) -> bool:
        """Ask the holder of a turn's lease to stop; False if it is not held."""
        query = of_state(conversation) | readable("state") | {"turn.id": turn}
        query |= await is_held(self._times, "turn.until")
        return await self._log.update(query, {"$set": {"turn.stop": True}})


def _lease(document: Document | None) -> TurnLease | None:
    if document is None:
        return None
    with reading(document):
        found = document.get("turn")
        if not isinstance(found, Mapping):
            return None
        turn, owner, variant = (stored_text(found[name]) for name in ("id", "owner", "variant"))
        return TurnLease(turn, owner, utc(found["since"]), bool(found["stop"]), variant)

"""Read and write the state of a conversation, which is the last document of its key range in ``log``.

`log.insert` writes it with the first entry. Every other change is one update of an existing state at a known revision,
never an upsert: a deleted conversation stays deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from convstore.log.entry import Entry, Totals
from convstore.log.state import LeadingSystem, State, ViewStart
from convstore.log.summary import SummaryRecord
from convstore.mongo.collection import Collection, Document, between
from convstore.mongo.documents import entry_from
from convstore.mongo.driver import Driver, decoded
from convstore.mongo.keys import LOG, end_range, state_id
from convstore.mongo.log import VIEW_FIELDS, entries_from
from convstore.mongo.state_documents import changes_in, copied_summary, start_document, state_document, system_document
from convstore.mongo.versions import readable

_MAXIMUM_STARTS = 4
_HINTS = ("starts", "system")
_FIELDS = dict.fromkeys((*VIEW_FIELDS, "changes", *_HINTS), 0)
_FIELDS_WITH_HINTS = {name: 0 for name in _FIELDS if name not in _HINTS}


class States:
    """Commands on the states of conversations."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._log, self._raw_log = Collection(driver, LOG), Collection(driver, LOG, raw=True)

    async def find(self, conversation: str) -> Document | None:
        """Return the document of a state, or None. One command."""
        return await self._log.find_one({"_id": state_id(conversation), "conversation": conversation})

    async def read_end(
        self,
        conversation: str,
        *,
        start: int,
        limit: int,
        has_hints: bool,
        first_needed: Callable[[Document, Totals], int] | None = None,
        known: Entry | None = None,
    ) -> tuple[Document | None, list[Entry]]:
        """Return the document of the state, None if it is missing, and the last entries from a number on, in order.

        One command up to a thousand entries.

        Args:
            conversation: Id of the conversation.
            start: Number of the first entry to read.
            limit: Maximum number of entries.
            has_hints: Read starts of views and leading system messages, too.
            first_needed: Returns the number of the first entry to parse, given the state and the totals of the log.
            known: An entry that was read before; it is not parsed again.
        """
        fields = _FIELDS_WITH_HINTS if has_hints else _FIELDS
        query = between(conversation, *end_range(conversation, start=start))
        documents = await self._raw_log.find(query, fields, order=[("_id", -1)], limit=limit + 1)
        first = decoded(documents[0]) if documents else None
        state = first if first and first["_id"] == state_id(conversation) else None
        documents = documents[1:] if state else documents[:limit]
        if state and documents and first_needed:
            known = newest = entry_from(decoded(documents[0]))  # so that it is not parsed twice
            del documents[max(1, newest.number - first_needed(state, newest.totals) + 1) :]
        return state, await entries_from(documents[::-1], known)

    async def changes(self, conversation: str) -> list[tuple[int, str]]:
        """Return every change of the current summary: the last entry that it saw, and its token. One command."""
        query = {"_id": state_id(conversation), "conversation": conversation}
        return changes_in(await self._log.find_one(query, {"changes": 1}) or {"_id": query["_id"]})

    async def insert(self, state: State) -> None:
        """Insert a restored state, unless there is one. One command."""
        await self._log.insert(state_document(state))

    async def remove(self, conversation: str) -> None:
        """Remove a state, before the rest of a deleted conversation. One command."""
        await self._log.delete_one({"_id": state_id(conversation), "conversation": conversation})

    async def remember(self, state: State, start: ViewStart | None, system: LeadingSystem | None) -> None:
        """Store what a load had to find out, for other processes, unless the state changed since. One command.

        None keeps the start of views under a policy, or the leading system messages, as they are stored.
        """
        changes: dict[str, Any] = {"system": system_document(system, state.conversation)} if system else {}
        if start:
            others = [one for one in state.starts if one.policy != start.policy]
            changes["starts"] = [start_document(one) for one in (start, *others)[:_MAXIMUM_STARTS]]
        await self._change(state, {}, {"$set": changes})

    async def lease(self, state: State, *, owner: str, time: timedelta) -> bool:
        """Take the lease for the next summary; False if another holds it or the summary changed. One command."""
        is_free = {"$or": [{"lease.until": {"$exists": False}}, self._driver.is_past("lease.until")]}
        taken = self._driver.setting({"lease.owner": owner}, field="lease.until", ahead=time)
        return await self._change(state, is_free, taken)

    async def renew(self, state: State, *, owner: str, time: timedelta) -> bool:
        """Renew a lease; False if it is lost. One command."""
        renewed = self._driver.setting({}, field="lease.until", ahead=time)
        return await self._change(state, {"lease.owner": owner}, renewed)

    async def give_back(self, state: State, *, owner: str, wait_until: datetime | None) -> None:
        """Release a lease. `wait_until` records a failure and the time of the next try. One command."""
        changes: dict[str, Any] = {"$unset": {"lease": ""}}
        if wait_until is not None:
            changes |= {"$set": {"wait_until": wait_until}, "$inc": {"failures": 1}}
        await self._change(state, {"lease.owner": owner}, changes)

    async def commit(
        self, state: State, summary: SummaryRecord | None, *, entry: int, owner: str = "", aside: str = ""
    ) -> bool:
        """Replace the current summary if the revision is unchanged and the owner holds the lease. One command.

        Args:
            state: The state as it was read.
            summary: The new current summary; None for none.
            entry: Number of the last entry that this change saw; it is kept, so that past views can be built again.
            owner: Holder of the lease who made the summary; "" if the summary was made earlier.
            aside: Without an owner, the token of a summary to set aside.
        """
        changes: dict[str, Any] = {"revision": state.revision + 1, "starts": [], "summary": copied_summary(summary)}
        kept = {"changes": [entry, summary.token if summary else ""]}
        if not owner:
            update = {"$set": changes | {"aside": aside}, "$unset": {"lease": ""}, "$push": kept}
            return await self._change(state, {}, update)
        changes |= {"newest": summary.token, "versions": summary.version, "failures": 0} if summary else {}
        update = {"$set": changes, "$unset": {"lease": "", "wait_until": ""}, "$push": kept}
        return await self._change(state, {"lease.owner": owner}, update)

    async def _change(self, state: State, condition: Mapping[str, Any], update: Any) -> bool:
        query = {"_id": state_id(state.conversation), "conversation": state.conversation, "revision": state.revision}
        return await self._log.update(query | readable("state") | dict(condition), update)

"""Read and write the state of a conversation, which is the last document of its key range in ``log``.

`log.insert` writes it with the first entry. Every other change is one update of an existing state at a known revision,
never an upsert: a deleted conversation stays deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.state import LeadingSystem, Move, State, ViewRecord
from convstore.log.summary import SummaryRecord
from convstore.mongo.bson_values import reading, stored_list
from convstore.mongo.collection import NEWEST_FIRST, Collection, Document, within
from convstore.mongo.documents import LEAN, NO_MESSAGES, entry_from, message_from
from convstore.mongo.driver import Driver, bson_size, decoded
from convstore.mongo.keys import LOG, end_range, entry_bound, entry_id, of_state, state_id
from convstore.mongo.leases import is_free
from convstore.mongo.log import VIEW_FIELDS, entries_from
from convstore.mongo.state_documents import (
    changes_in,
    copied_summary,
    move_document,
    moves_in,
    record_document,
    state_document,
    system_document,
    views_in,
)
from convstore.mongo.versions import readable

MAXIMUM_RECORDS = 16
"""Maximum number of policies in a state with records."""

_MAXIMUM_MOVES = 32
_FIELDS_WITH_SYSTEM = dict.fromkeys((*VIEW_FIELDS, "changes", "moves", "turn", "numbers"), 0)
_FIELDS = {**_FIELDS_WITH_SYSTEM, "system": 0}
_OF_STATES = ("changes", "moves", "turn", "numbers", "system", "views", "summary")
_TOTALS = {**NO_MESSAGES, **dict.fromkeys(_OF_STATES, 0)}

_FIELDS_OF_TIP: dict[str, Any] = {
    **dict.fromkeys((*LEAN, "system", "views", "summary", "changes", "moves", "numbers"), 0),
    "messages": {"$slice": -1},
}


class LogTip(NamedTuple):
    """The tip of a log: the last entry without its messages, its last message, and True if a turn's lease is stored.

    The message is None if the entry has no messages. The lease may have expired.
    """

    entry: Entry
    message: EntryMessage | None
    has_lease: bool


class States:
    """Commands on the states of conversations."""

    def __init__(self, driver: Driver) -> None:
        self._times = driver.times
        self._log = Collection(driver, LOG)
        self._raw_log = Collection(driver, LOG, raw=True)

    async def find(self, conversation: str) -> Document | None:
        """Return the document of a state, if it exists. One command."""
        return await self._log.find_one(of_state(conversation))

    async def latest_start(self, conversation: str) -> tuple[int, int] | None:
        """Return the latest position where views begin, as entry number and ordinal; None if views have the whole log.

        Views begin at the start in their policy's record, or after the current summary. One command.
        """
        query = of_state(conversation)
        fields = {"views": 1, "summary.entry": 1, "summary.last": 1}
        found = await self._log.find_one(query, fields) or {}
        starts = [
            (record.entry, record.start) for record in views_in(found).values() if record.start > 1
        ]
        if summary := found.get("summary"):
            starts.append((summary["entry"], summary["last"] + 1))
        return max(starts, key=itemgetter(1), default=None)

    async def read_end(
        self,
        conversation: str,
        *,
        start: int,
        limit: int,
        has_system: bool = True,
        view: str = "",
        known: Entry | None = None,
        items_from: int = 0,
    ) -> tuple[Document | None, list[Entry], list[int]]:
        """Return the document of the state, if it exists, and the last entries from a number on, in order.

        The third value is a list of sizes in bytes, of the entries that were read but not parsed. One command up to a
        thousand entries.

        Args:
            conversation: Id of the conversation.
            start: Number of the first entry to read.
            limit: Maximum number of entries.
            has_system: Read the leading system messages, too.
            view: Key of the record of views; entries before the start in it, or in the summary, are not parsed.
            known: An entry that was read before; it is not parsed again.
            items_from: Skip entries before this number that have only items, except the entry `start`.
        """
        fields = _FIELDS_WITH_SYSTEM if has_system else _FIELDS
        query = _query_of_end(conversation, start, items_from)
        documents = await self._raw_log.find(query, fields, order=NEWEST_FIRST, limit=limit + 1)
        first = decoded(documents[0]) if documents else None
        state = None
        if first and first["_id"] == state_id(conversation):
            state = first
            documents = documents[1:]
        documents = documents[:limit]
        passed: list[Document] = []
        if state and documents and view and not known:
            known = newest = entry_from(decoded(documents[0]))  # so that it is not parsed twice
            end = max(1, newest.number - _first_needed(state, view) + 1)
            passed = documents[end:]
            documents = documents[:end]
        return state, await entries_from(documents[::-1], known), list(map(bson_size, passed))

    async def tip(self, conversation: str) -> LogTip | None:
        """Return the tip of a log; None if the log is empty. One command."""
        query = _query_of_end(conversation, 1, 0)
        found = await self._log.find(query, _FIELDS_OF_TIP, order=NEWEST_FIRST, limit=2)
        has_lease = any("turn" in document for document in found)
        for document in found:
            if document["_id"] != state_id(conversation):
                return _tip_from(document, has_lease=has_lease)
        return None

    async def last_totals(self, conversation: str) -> tuple[Totals, bool]:
        """Return the totals of the last entry, and False if the log never had a summary. One command.

        The second value is True if the state is missing.
        """
        query = _query_of_end(conversation, 0, 0)
        documents = await self._log.find(query, _TOTALS, order=[("_id", -1)], limit=2)
        may_have_summaries = True
        if documents and documents[0]["_id"] == state_id(conversation):
            state = documents.pop(0)
            may_have_summaries = bool(state.get("newest"))
        totals = entry_from(documents[0]).totals if documents else Totals(shown={})
        return totals, may_have_summaries

    async def changes(self, conversation: str) -> list[tuple[int, str]]:
        """Return all changes of the current summary: the log's last entry at that time, and the token. One command."""
        query = of_state(conversation)
        return changes_in(await self._log.find_one(query, {"changes": 1}) or {"_id": query["_id"]})

    async def past(
        self, conversation: str, key: str
    ) -> tuple[list[tuple[int, str]], list[Move], bool]:
        """Return `changes`, the stored moves of a policy's record, and True if older moves may exist. One command."""
        query = of_state(conversation)
        found = await self._log.find_one(query, {"changes": 1, f"moves.{key}": 1}) or {
            "_id": query["_id"]
        }
        moves = moves_in(found, key)
        return changes_in(found), moves, len(moves) == _MAXIMUM_MOVES

    async def insert(self, state: State) -> None:
        """Insert a restored state, unless a state exists. One command."""
        await self._log.insert(state_document(state))

    async def remove(self, conversation: str) -> None:
        """Remove the state of a deleted conversation, before all its other documents. One command."""
        await self._log.delete_one(of_state(conversation))

    async def remember_system(self, state: State, system: LeadingSystem) -> None:
        """Store the leading system messages that a load read from the log, if the state is unchanged. One command."""
        await self._change(
            state, {}, {"$set": {"system": system_document(system, state.conversation)}}
        )

    async def move_view(
        self, state: State, key: str, record: ViewRecord, *, seen: int, system: LeadingSystem | None
    ) -> bool:
        """Move the marks of a policy's record if no record of the state moved since. One command.

        The last 32 moves of each policy are stored for past views. If the state has records of 16 policies, the record
        of a new policy replaces the one that moved least recently; the caller checks that this was a day ago.

        Args:
            state: The state as it was read.
            key: Key of the policy.
            record: The moved record.
            seen: Number of the log's last entry that the load saw.
            system: The leading system messages to store, so that later loads, which begin after them, find them in the
                state; None keeps the stored ones.

        Returns:
            False if another load moved a record meanwhile.
        """
        views = dict(state.views)
        update: dict[str, Any] = {}
        if key not in views and len(views) >= MAXIMUM_RECORDS:
            oldest = min(views, key=lambda id_: views[id_].moved_at)
            del views[oldest]
            update["$unset"] = {f"moves.{oldest}": ""}
        stored = {id_: record_document(id_, kept) for id_, kept in (views | {key: record}).items()}
        kept = {"$each": [move_document(key, Move(seen, record))], "$slice": -_MAXIMUM_MOVES}
        changes = {"system": system_document(system, state.conversation)} if system else {}
        update |= {
            "$set": {"views": stored, "moved": state.moves + 1, **changes},
            "$push": {f"moves.{key}": kept},
        }
        query = of_state(state.conversation) | readable("state")
        query |= {"moved": state.moves or {"$exists": False}}
        return await self._log.update(query, update)

    async def lease(self, state: State, *, owner: str, time: timedelta) -> bool:
        """Take the lease for the next summary; False if it is held or the summary changed. One command."""
        is_lease_free = await is_free(self._times, "lease.until")
        taken = await self._times.setting({"lease.owner": owner}, field="lease.until", ahead=time)
        return await self._change(state, is_lease_free, taken)

    async def renew(self, state: State, *, owner: str, time: timedelta) -> bool:
        """Renew a lease; False if it is lost. One command."""
        renewed = await self._times.setting({}, field="lease.until", ahead=time)
        return await self._change(state, {"lease.owner": owner}, renewed)

    async def give_back(self, state: State, *, owner: str, wait_until: datetime | None) -> None:
        """Release a lease. `wait_until` records a failure and the time of the next attempt. One command."""
        changes: dict[str, Any] = {"$unset": {"lease": ""}}
        if wait_until is not None:
            changes |= {"$set": {"wait_until": wait_until}, "$inc": {"failures": 1}}
        await self._change(state, {"lease.owner": owner}, changes)

    async def commit(
        self,
        state: State,
        summary: SummaryRecord | None,
        *,
        entry: int,
        owner: str = "",
        aside: Sequence[str] = (),
    ) -> bool:
        """Replace the current summary if the revision is unchanged and the owner holds the lease. One command.

        Args:
            state: The state as it was read.
            summary: The new current summary; None to show no summary.
            entry: Number of the log's last entry at this change; it is stored, so that past views can be rebuilt.
            owner: Holder of the lease that wrote the summary; "" if the summary was written earlier.
            aside: Without an owner, the tokens for `State.aside`.
        """
        changes: dict[str, Any] = {
            "revision": state.revision + 1,
            "summary": copied_summary(summary),
        }
        kept = {"changes": [entry, summary.token if summary else ""]}
        if not owner:
            update = {
                "$set": changes | {"aside": list(aside)},
                "$unset": {"lease": ""},
                "$push": kept,
            }
            return await self._change(state, {}, update)
        changes |= (
            {"newest": summary.token, "versions": summary.version, "failures": 0} if summary else {}
        )
        update = {"$set": changes, "$unset": {"lease": "", "wait_until": ""}, "$push": kept}
        return await self._change(state, {"lease.owner": owner}, update)

    async def _change(self, state: State, condition: Mapping[str, Any], update: Any) -> bool:
        query = of_state(state.conversation) | {"revision": state.revision}
        return await self._log.update(query | readable("state") | dict(condition), update)


def _tip_from(document: Document, *, has_lease: bool) -> LogTip:
    """Return the tip of a log from the document of its last entry, which has only the last message."""
    whole = {name: value for name, value in document.items() if name != "messages"}
    entry = entry_from(whole, has_messages=False)
    message = None
    with reading(document):
        for last in stored_list(document.get("messages", ())):
            message = message_from(last, entry.totals.messages, document["_id"], 0)
    return LogTip(entry, message, has_lease)


def _query_of_end(conversation: str, start: int, items_from: int) -> dict[str, Any]:
    """Return the filter for the state and the entries from a number on, without entries that have only items."""
    query = within(conversation, *end_range(conversation, start=start))
    if items_from > start + 1:
        query["$or"] = [
            {"only_items": {"$exists": False}},
            {"_id": entry_id(conversation, start)},
            {"_id": {"$gte": entry_bound(conversation, items_from)}},
        ]
    return query


def _first_needed(state: Mapping[str, Any], view: str) -> int:
    """Return the number of the first entry that a view needs, 0 if that is unknown.

    The record and the summary are verified only later; a load then reads entries that are missing.
    """
    views = state.get("views")
    record = views.get(view) if isinstance(views, Mapping) else None
    parts = [part for part in (record, state.get("summary")) if isinstance(part, Mapping)]
    numbers = [part.get("entry") for part in parts]
    return max([number for number in numbers if isinstance(number, int)], default=0)

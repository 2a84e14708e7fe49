"""The ``heads`` collection: which conversation a scope has, and what is told of it in listings.

Layer 3. A head is found by the hash of its scope. `tombstones` has what ends a conversation.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from convstore.exceptions import CorruptDocumentError, InvalidCursorError
from convstore.log.entry import Totals
from convstore.log.summary import SummaryRecord
from convstore.mongo.bson_values import from_stored, stored_list, stored_number, stored_text, to_stored, utc
from convstore.mongo.documents import summary_document, summary_from, totals_document, totals_from
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.keys import HEADS, head_id

__all__ = ["Head", "HeadChange", "Heads", "Opening", "head_from"]


_Start = tuple[int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class Head:
    """What a head document says.

    Attributes:
        conversation: The random id that the log uses; never used again after a deletion.
        totals: As of the last refresh; the log's last entry tells them exactly.
        start: The last marker, the revision, and number and first ordinal of an entry at or before the start of the
            default view, which holds while neither changes; zeros if unknown.
        details: Title and metadata as the codec wrote them, as far as they were set.
        revision: Counts the changes of the current summary.
        summary: The current summary.
        newest: Token of the summary that was made last, "" if there is none.
        aside: Token of the summary that a rewind set aside, "" for none; it counts again once that is taken back.
        versions: How many summaries were made.
        failures: Summaries that failed since the last one that was made.
        wait_until: After a failure the time of the next try.
        open_until: Until then stores may append without a word to the head; None if it counts all that is appended.
    """

    conversation: str
    scope: dict[str, str]
    created_at: datetime
    updated_at: datetime
    totals: Totals = field(default_factory=Totals)
    start: _Start = (0, 0, 0, 0, "")
    details: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0
    summary: SummaryRecord | None = None
    newest: str = ""
    aside: str = ""
    versions: int = 0
    failures: int = 0
    wait_until: datetime | None = None
    open_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a store tells a head that it is going to append more to without a word.

    Attributes:
        name: Tells it from the openings of others; in the order of time.
        until: When it ends.
    """

    name: str
    until: datetime


@dataclass(frozen=True, slots=True)
class HeadChange:
    """What brings a head up to date, and closes it.

    Attributes:
        scope: Whose conversation it is.
        conversation: Its id.
        totals: What the log holds.
        through: A head that counts more entries is newer, and keeps its totals.
        start: As of `Head`, if it is known.
        opening: Of the store that sends this; None if it did not open the head.
        abandoned: Openings before this name are of stores that died; what they appended is counted.
        closes: The opening ends; the head is closed unless others have opened it.
    """

    scope: Mapping[str, str]
    conversation: str
    totals: Totals
    through: int
    start: _Start
    opening: Opening | None = None
    abandoned: str = ""
    closes: bool = False

    def updates(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Filters and updates, in order."""
        key = {"_id": head_id(self.scope), "conversation": self.conversation}
        updates = [({**key, "totals.entries": {"$lte": self.through}}, _told(self.totals, self.start))]
        if self.closes and self.opening:
            name, before = self.opening.name, {"$lt": self.abandoned}
            updates += [
                ({**key, "open_by": before}, {"$pull": {"open_by": before}}),
                ({**key, "open_by": [name]}, {"$unset": {"open_until": "", "open_by": ""}}),
                ({**key, "open_by": name}, {"$pull": {"open_by": name}}),
            ]
        return updates


class Heads:
    """Commands on the ``heads`` collection."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._driver, self._heads = driver, driver.collection(prefix + HEADS)

    async def find(self, scope: Mapping[str, str]) -> Head | None:
        """The head of a scope; None if it has no conversation. One command."""
        async with driver_errors():
            document = await self._heads.find_one({"_id": head_id(scope)})
        return head_from(document) if document else None

    async def claim(self, scope: Mapping[str, str], *, at: datetime) -> tuple[Head, bool]:
        """The head of a scope, made if there is none; whether it was made now. One command.

        Two writers that make it at once get the same one, and one of them is told that it made it.
        """
        conversation = secrets.token_hex(12)
        update = {
            "$max": {"updated_at": at},
            "$setOnInsert": {
                "conversation": conversation,
                "scope": dict(scope),
                "created_at": at,
                "totals": totals_document(Totals()),
                "start": [0, 0, 0, 0, ""],
                "revision": 0,
            },
        }
        async with driver_errors():
            upsert = partial(
                self._heads.find_one_and_update,
                {"_id": head_id(scope)},
                update,
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
            try:
                document = await upsert()
            except DuplicateKeyError:
                # Two upserts of one key: the server lets one of them fail; now it is there.
                document = await upsert()
        return head_from(document), document["conversation"] == conversation

    async def refresh(
        self,
        scope: Mapping[str, str],
        conversation: str,
        *,
        totals: Totals,
        start: _Start,
        opening: Opening | None = None,
    ) -> bool:
        """Bring a head up to date, and open it; False if the scope has another conversation by now. One command."""
        update = _told(totals, start)
        if opening:
            update["$max"]["open_until"] = opening.until
            update["$addToSet"] = {"open_by": opening.name}
        async with driver_errors():
            result = await self._heads.update_one({"_id": head_id(scope), "conversation": conversation}, update)
        return bool(result.matched_count)

    async def catch_up(self, changes: Sequence[HeadChange]) -> None:
        """Bring heads up to date; those that count more, or are of another conversation by now, stay. One command."""
        async with driver_errors():
            await self._driver.update_each(self._heads, [update for change in changes for update in change.updates()])

    async def hint(self, scope: Mapping[str, str], conversation: str, *, start: _Start) -> None:
        """Keep where the default view begins, for those who do not know it yet. One command."""
        async with driver_errors():
            await self._heads.update_one(
                {"_id": head_id(scope), "conversation": conversation}, {"$max": {"start": list(start)}}
            )

    async def describe(self, scope: Mapping[str, str], conversation: str, details: Mapping[str, str]) -> bool:
        """Set what the application says of a conversation; what is not named stays. False if it is gone."""
        changes = {f"details.{name}": to_stored(text) for name, text in details.items()}
        if not changes:
            return True
        async with driver_errors():
            query = {"_id": head_id(scope), "conversation": conversation}
            return bool((await self._heads.update_one(query, {"$set": changes})).matched_count)

    async def lease(self, scope: Mapping[str, str], head: Head, *, owner: str, at: datetime, until: datetime) -> bool:
        """Reserve the next change of the summary; False if another has it, or the head changed. One command."""
        query = {"_id": head_id(scope), "conversation": head.conversation, "revision": head.revision}
        query["$or"] = [{"lease.until": {"$exists": False}}, {"lease.until": {"$lt": at}}]
        return await self._change(query, {"$set": {"lease": {"owner": owner, "until": until}}})

    async def renew(self, scope: Mapping[str, str], head: Head, *, owner: str, until: datetime) -> bool:
        """Keep a lease; False if it is lost. One command."""
        query = {"_id": head_id(scope), "conversation": head.conversation, "lease.owner": owner}
        return await self._change(query, {"$set": {"lease.until": until}})

    async def give_back(self, scope: Mapping[str, str], head: Head, *, owner: str, wait_until: datetime | None) -> None:
        """End a lease; with a time the summary failed and is not tried before it. One command."""
        query = {"_id": head_id(scope), "conversation": head.conversation, "lease.owner": owner}
        changes: dict[str, Any] = {"$unset": {"lease": ""}}
        if wait_until is not None:
            changes |= {"$set": {"wait_until": wait_until}, "$inc": {"failures": 1}}
        await self._change(query, changes)

    async def commit(
        self,
        scope: Mapping[str, str],
        head: Head,
        summary: SummaryRecord | None,
        *,
        marker: int,
        owner: str = "",
        aside: str = "",
    ) -> bool:
        """Make another summary the current one if the head is as it was, and its owner has the lease. One command.

        Args:
            scope: Whose conversation it is.
            head: As it was read.
            summary: The current one from now on; None for none.
            marker: The last marker of the log.
            owner: Who made the summary; "" if it was made before.
            aside: Token of a summary that is set aside with this, if it was made before.
        """
        revision = head.revision + 1
        query = {"_id": head_id(scope), "conversation": head.conversation, "revision": head.revision}
        changes = {"revision": revision, "start": [marker, revision, 0, 0, ""]}
        changes["summary"] = summary_document(summary) if summary else None
        if not owner:
            return await self._change(query, {"$set": changes | {"aside": aside}})
        query["lease.owner"] = owner
        changes |= {"newest": summary.token, "versions": summary.version, "failures": 0} if summary else {}
        return await self._change(query, {"$set": changes, "$unset": {"lease": "", "wait_until": ""}})

    async def _change(self, query: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
        async with driver_errors():
            return bool((await self._heads.update_one(query, changes)).matched_count)

    async def page(self, partial_scope: Mapping[str, str], *, limit: int, cursor: str | None) -> list[tuple[Head, str]]:
        """Heads with these scope values, newest first, each with the cursor that goes on behind it. One command."""
        query: dict[str, Any] = {f"scope.{key}": value for key, value in partial_scope.items()}
        query["updated_at"] = {"$exists": True}
        if cursor is not None:
            moment, key = _read_cursor(cursor)
            query["$or"] = [{"updated_at": {"$lt": moment}}, {"updated_at": moment, "_id": {"$lt": key}}]
        async with driver_errors():
            found = self._heads.find(query, {"summary": 0}).sort([("updated_at", -1), ("_id", -1)]).limit(limit)
            documents = await found.to_list(None)
        return [(head_from(document), _write_cursor(document)) for document in documents]


def _told(totals: Totals, start: _Start) -> dict[str, Any]:
    """What tells a head of the log; the date and the start of the view never go back."""
    newest: dict[str, Any] = {"start": list(start)}
    if totals.updated_at:
        newest["updated_at"] = totals.updated_at
    return {"$set": {"totals": totals_document(totals)}, "$max": newest}


def head_from(document: Mapping[str, Any]) -> Head:
    """The head that a document holds.

    Raises:
        CorruptDocumentError: It is not what was written.
    """
    key = str(document.get("_id"))
    try:
        scope = {name: stored_text(value) for name, value in document["scope"].items()}
        if head_id(scope) != key:
            raise ValueError("the key and the scope do not agree")
        *start, counter = document["start"]
        marker, revision, entry, first = map(stored_number, start)
        return Head(
            conversation=stored_text(document["conversation"]),
            scope=scope,
            created_at=utc(document["created_at"]),
            updated_at=utc(document["updated_at"]),
            totals=totals_from(document["totals"]),
            start=(marker, revision, entry, first, stored_text(counter)),
            details={name: from_stored(text) for name, text in document.get("details", {}).items()},
            revision=stored_number(document["revision"]),
            summary=summary_from(summary, head=key) if (summary := document.get("summary")) is not None else None,
            newest=stored_text(document.get("newest", "")),
            aside=stored_text(document.get("aside", "")),
            versions=stored_number(document.get("versions", 0)),
            failures=stored_number(document.get("failures", 0)),
            wait_until=utc(wait) if (wait := document.get("wait_until")) is not None else None,
            open_until=_open_until(document),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDocumentError(key, repr(error), collection=HEADS) from error


def _open_until(document: Mapping[str, Any]) -> datetime | None:
    if (until := document.get("open_until")) is None:
        return None
    for name in stored_list(document["open_by"]):
        stored_text(name)
    return utc(until)


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _write_cursor(document: Mapping[str, Any]) -> str:
    millis = (utc(document["updated_at"]) - _EPOCH) // timedelta(milliseconds=1)
    return base64.urlsafe_b64encode(f"{millis}:{document['_id']}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
        millis, _, key = text.partition(":")
        return _EPOCH + timedelta(milliseconds=int(millis)), key
    except (AttributeError, ValueError, OverflowError, binascii.Error) as error:
        raise InvalidCursorError(f"{cursor!r} is not a cursor of this call; begin again without one") from error

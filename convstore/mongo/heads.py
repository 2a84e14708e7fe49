"""Read and write the ``heads`` collection, which maps a scope to its conversation and serves listings.

A head is found by the hash of its scope. `tombstones` has the commands that end a conversation.
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

from convstore.exceptions import CorruptDocumentError, InvalidCursorError, StoreError
from convstore.log.entry import Totals
from convstore.log.state import NO_START, ViewStart
from convstore.messages.values import Codec, UnregisteredTypeError
from convstore.mongo.bson_values import from_stored, reading, stored_list, stored_text, to_stored, utc
from convstore.mongo.collection import Collection, Document
from convstore.mongo.documents import totals_document, totals_from
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.keys import HEADS, head_id, scope_filter
from convstore.mongo.state_documents import start_document, start_from

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Head:
    """The content of a head document.

    Attributes:
        conversation: The random id that the log uses; never used again after a deletion.
        totals: As of the last refresh; the log's last entry has the exact ones.
        start: The start of views under the policy of the store that refreshed the head.
        details: Title and metadata as the codec wrote them, as far as they were set.
        open_until: Until then stores may append without refreshing the head; None if the head is up to date.
        problem: In a listing, why the rest of a damaged head cannot be read; else "".
    """

    conversation: str
    scope: dict[str, str]
    created_at: datetime
    updated_at: datetime
    totals: Totals = field(default_factory=Totals)
    start: ViewStart = NO_START
    details: Mapping[str, str] = field(default_factory=dict)
    open_until: datetime | None = None
    problem: str = ""

    def described(self, codec: Codec) -> tuple[str | None, dict[str, Any]]:
        """Return title and metadata; CorruptDocumentError if damaged, StoreError if a type is not registered."""
        try:
            title, metadata = (codec.decode(self.details.get(*one)) for one in (("title", "null"), ("metadata", "{}")))
            if not isinstance(title, str | None) or not isinstance(metadata, dict):
                raise ValueError("its title or its metadata has the wrong type")
        except UnregisteredTypeError as error:
            raise StoreError(f"title and metadata of {self.scope} cannot be read in this store: {error}") from error
        except ValueError as error:
            problem = f"its title and its metadata cannot be read; set them again: {error}"
            raise CorruptDocumentError(head_id(self.scope), problem, collection=HEADS) from error
        return title, metadata


@dataclass(frozen=True, slots=True)
class Opening:
    """A store's announcement in a head that it will append more without refreshing the head.

    Attributes:
        name: Unique name; names sort by time.
        until: The time at which it ends.
    """

    name: str
    until: datetime


@dataclass(frozen=True, slots=True)
class HeadChange:
    """An update that brings a head up to date and may close it.

    Attributes:
        scope: Scope of the conversation.
        conversation: Id of the conversation.
        totals: The current totals of the log.
        through: A head that counts more entries is newer and keeps its totals.
        start: See `Head`.
        opening: The opening of the store that sends this; None if it did not open the head.
        abandoned: Openings before this name belong to stores that died; their appends are counted.
        closes: End the opening, and close the head unless other stores have opened it.
    """

    scope: Mapping[str, str]
    conversation: str
    totals: Totals
    through: int
    start: ViewStart
    opening: Opening | None = None
    abandoned: str = ""
    closes: bool = False

    def updates(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return filters and updates, in order."""
        key = {"_id": head_id(self.scope), "conversation": self.conversation}
        updates = [({**key, "totals.entries": {"$lte": self.through}}, _refreshed(self.totals, self.start))]
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

    def __init__(self, driver: Driver) -> None:
        self._driver, self._heads = driver, Collection(driver, HEADS)

    async def find(self, scope: Mapping[str, str]) -> Head | None:
        """Return the head of a scope, or None if it has no conversation. One command."""
        document = await self._heads.find_one({"_id": head_id(scope)})
        return head_from(document) if document else None

    async def find_by_conversation(self, conversation: str) -> Head | None:
        """Return the head of a conversation that was not deleted, or None. One command."""
        # The deleted ones keep their id in their tombstone, without a date.
        document = await self._heads.find_one({"conversation": conversation, "updated_at": {"$exists": True}})
        return head_from(document) if document else None

    async def claim(self, scope: Mapping[str, str], *, at: datetime) -> tuple[Head, bool]:
        """Return the head of a scope, created if missing, and True if this call created it. One command.

        Of two concurrent writers both get the same head, and only one gets True.
        """
        conversation = secrets.token_hex(12)
        update = {
            "$max": {"updated_at": at},
            "$setOnInsert": {
                "conversation": conversation,
                "scope": dict(scope),
                "created_at": at,
                "totals": totals_document(Totals()),
                "start": start_document(NO_START),
            },
        }
        async with driver_errors():
            upsert = partial(
                self._heads.driver_collection.find_one_and_update,
                {"_id": head_id(scope)},
                update,
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
            try:
                document = await upsert()
            except DuplicateKeyError:
                # Of two concurrent upserts of one key the server fails one; the head exists now.
                document = await upsert()
        return head_from(document), document["conversation"] == conversation

    async def refresh(
        self,
        scope: Mapping[str, str],
        conversation: str,
        *,
        totals: Totals,
        start: ViewStart,
        opening: Opening | None = None,
    ) -> bool:
        """Bring a head up to date and open it; False if the scope has another conversation now. One command."""
        update = _refreshed(totals, start)
        if opening:
            update["$max"]["open_until"] = opening.until
            update["$addToSet"] = {"open_by": opening.name}
        return await self._heads.update({"_id": head_id(scope), "conversation": conversation}, update)

    async def catch_up(self, changes: Sequence[HeadChange]) -> None:
        """Bring heads up to date, except newer ones and those of another conversation. One command."""
        async with driver_errors():
            await self._driver.update_each(
                self._heads.driver_collection, [update for change in changes for update in change.updates()]
            )

    async def describe(self, scope: Mapping[str, str], conversation: str, details: Mapping[str, str]) -> bool:
        """Set title and metadata values; the others stay. Return False if the conversation was deleted."""
        changes = {f"details.{name}": to_stored(text) for name, text in details.items()}
        if not changes:
            return True
        return await self._heads.update({"_id": head_id(scope), "conversation": conversation}, {"$set": changes})

    async def page(self, partial_scope: Mapping[str, str], *, limit: int, cursor: str | None) -> list[tuple[Head, str]]:
        """Return heads with these scope values, newest first, each with the cursor of the next page. One command."""
        query = scope_filter(partial_scope) | {"updated_at": {"$exists": True}}
        if cursor is not None:
            moment, key = _read_cursor(cursor)
            query["updated_at"] = {"$lte": moment}  # where the index begins to be read
            query["$or"] = [{"updated_at": {"$lt": moment}}, {"updated_at": moment, "_id": {"$lt": key}}]
        order = [("updated_at", -1), ("_id", -1)]
        documents = await self._heads.find(query, {"start": 0}, order=order, limit=limit)
        return [(_listed(document), _write_cursor(document)) for document in documents]


def _refreshed(totals: Totals, start: ViewStart) -> dict[str, Any]:
    """Return the update that refreshes a head; its date and the start of the view never go back."""
    fields: dict[str, Any] = {"totals": totals_document(totals)}
    newest: dict[str, Any] = {"start": start_document(start)}
    if totals.updated_at:
        newest["updated_at"] = totals.updated_at
    if totals.entries == 1:
        fields["created_at"] = totals.updated_at
    return {"$set": fields, "$max": newest}


def head_from(document: Document) -> Head:
    """Return the head that a document holds; raise a CorruptDocumentError if it is damaged."""
    with reading(document, HEADS):
        scope = {name: stored_text(value) for name, value in document["scope"].items()}
        if head_id(scope) != document["_id"]:
            raise ValueError("the key does not match the scope")
        return Head(
            conversation=stored_text(document["conversation"]),
            scope=scope,
            created_at=utc(document["created_at"]),
            updated_at=utc(document["updated_at"]),
            totals=totals_from(document["totals"]),
            start=start_from(document["start"]) if "start" in document else NO_START,
            details={name: from_stored(text) for name, text in document.get("details", {}).items()},
            open_until=_open_until(document),
        )


def _listed(document: Document) -> Head:
    """Return a head, or what can be read of a damaged one, which must not hide the others of a page."""
    try:
        return head_from(document)
    except CorruptDocumentError as error:
        conversation, scope = document.get("conversation"), document.get("scope")
        texts = {name: value for name, value in scope.items() if isinstance(value, str)} if scope else {}
        updated_at = document["updated_at"]
        moment = utc(updated_at) if isinstance(updated_at, datetime) else _EPOCH
        return Head(conversation if isinstance(conversation, str) else "", texts, moment, moment, problem=str(error))


def _open_until(document: Document) -> datetime | None:
    if (until := document.get("open_until")) is None:
        return None
    for name in stored_list(document["open_by"]):
        stored_text(name)
    return utc(until)


def _write_cursor(document: Document) -> str:
    moment = document["updated_at"]
    millis = (utc(moment) - _EPOCH) // timedelta(milliseconds=1) if isinstance(moment, datetime) else 0
    return base64.urlsafe_b64encode(f"{millis}:{document['_id']}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
        millis, _, key = text.partition(":")
        return _EPOCH + timedelta(milliseconds=int(millis)), key
    except (AttributeError, ValueError, OverflowError, binascii.Error) as error:
        raise InvalidCursorError(f"{cursor!r} is not a cursor of this call; start again without a cursor") from error

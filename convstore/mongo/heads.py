"""Read and write the ``heads`` collection, which maps a scope to its conversation and serves listings.

A head is found by the hash of its scope. Its checksums use the first id of the conversation, so they stay valid after a
repair, which gives the log another id. It has no counts: a listing joins the last entry of each log, which has exact
counts. `tombstones` has the commands that delete a conversation.

The module is long because it has every other command on the collection.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

from convstore.exceptions import (
    CorruptDocumentError,
    InvalidCursorError,
    SchemaVersionError,
    StoreError,
    StoreUnavailableError,
)
from convstore.log.entry import EntryMessage, Totals
from convstore.messages.encoding import date_text
from convstore.messages.values import Codec, UnregisteredTypeError
from convstore.mongo.bson_values import (
    reading,
    sealed,
    stored_list,
    stored_number,
    stored_text,
    unsealed,
    utc,
)
from convstore.mongo.collection import Collection, Document
from convstore.mongo.documents import message_from
from convstore.mongo.driver import JOIN, Driver, is_refusal
from convstore.mongo.keys import (
    HEADS,
    LOG,
    all_ids,
    child_id,
    date_field,
    entry_id,
    first_id,
    head_id,
    parent_id,
    root_id,
    scope_filter,
)
from convstore.mongo.totals_documents import totals_from
from convstore.mongo.versions import check_version, stamped
from convstore.values.plain import shown_value
from convstore.values.scope import check_text_keys, parent_scope, root_scope

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_BATCH = 1_000
_OPENING = 4
"""Last ordinal at which an entry with the first question may begin."""
_LAST_FIRST = {"first": -1, "_id": -1}
_TOTALS = {"conversation": 1, "totals": 1, "v": 1}


class EntryRef(NamedTuple):
    """A reference to an entry: its number and its link, which together are unique; zeros before the first entry."""

    number: int = 0
    link: int = 0


class Origin(NamedTuple):
    """The origin of a fork: the conversation, the last ordinal that was copied, and a digest of the request."""

    conversation: str
    ordinal: int
    request: str


@dataclass(frozen=True, slots=True)
class Head:
    """The content of a head document.

    Attributes:
        key: Its ``_id``.
        conversation: The random id that the log uses; never used again after a deletion.
        scope: Scope of the conversation.
        created_at: When its first message was appended, or an earlier title was set.
        updated_at: Date of the newest entry at the last refresh, or of a later title; an import backdates it.
        written_at: When the head was last refreshed, by the writer's clock; never backdated.
        entry: The last entry at the last refresh. The log lacks it if its append failed, or if the log lost it.
        details: Title and metadata in encoded form, if they were set, each with its checksum.
        has_children: True if it has a conversation of a sub-agent.
        origin: The origin of a fork; None if it is not a fork.
    """

    key: str
    conversation: str
    scope: dict[str, str]
    created_at: datetime
    updated_at: datetime
    written_at: datetime
    entry: EntryRef
    details: Mapping[str, Any] = field(default_factory=dict)
    has_children: bool = False
    origin: Origin | None = None

    @property
    def has_key_of_scope(self) -> bool:
        """True if the key is that of the scope; False for a damaged head, which its scope does not find."""
        return head_id(self.scope, parent_id(self.conversation)) == self.key

    def described(self, codec: Codec) -> tuple[str | None, dict[str, Any]]:
        """Return title and metadata.

        Raises:
            CorruptDocumentError: They are damaged.
            StoreError: They have a value of a type that is not registered.
        """
        try:
            texts = {
                name: unsealed(text, first_id(self.conversation), name)
                for name, text in self.details.items()
            }
            title, metadata = (
                codec.decode(texts.get(*pair)) for pair in (("title", "null"), ("metadata", "{}"))
            )
            if not isinstance(title, str | None) or not isinstance(metadata, dict):
                raise ValueError("its title or its metadata has the wrong type")
            check_text_keys(metadata, name="metadata")
        except UnregisteredTypeError as error:
            raise StoreError(
                f"title and metadata of {self.scope} cannot be read in this store: {error}"
            ) from error
        except (TypeError, ValueError) as error:
            problem = f"its title and its metadata cannot be read; set them again: {error}"
            raise CorruptDocumentError(self.key, problem, collection=HEADS) from error
        return title, metadata


class ListedHead(NamedTuple):
    """A head with the totals of the last entry of its log, zeros if the log is empty.

    Attributes:
        head: The head, or the readable part of a damaged one.
        totals: The totals; zeros if the head or the entry is damaged, or newer than this version.
        damage: The error if head or entry cannot be read.
    """

    head: Head
    totals: Totals
    damage: CorruptDocumentError | SchemaVersionError | None = None

    @property
    def updated_at(self) -> datetime:
        """The date of its last entry, or of a later title."""
        return max(self.head.updated_at, self.totals.updated_at or self.head.updated_at)

    @property
    def cursor(self) -> str:
        """The cursor of the page that begins after it, in the stored order of heads."""
        millis = (self.head.updated_at - _EPOCH) // timedelta(milliseconds=1)
        return base64.urlsafe_b64encode(f"{millis}:{self.head.key}".encode()).decode().rstrip("=")


class Heads:
    """Commands on the ``heads`` collection."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._heads = Collection(driver, HEADS)
        self._log = Collection(driver, LOG)
        self._join = join_of_last_entry(driver.prefix + LOG)

    async def find(self, scope: Mapping[str, str]) -> Head | None:
        """Return the head of a scope, if it has a conversation. One command; for a child one for each level."""
        document = await self._heads.find_one({"_id": await head_key(self._heads, scope)})
        return head_from(document) if document else None

    async def find_by_conversation(self, conversation: str) -> Head | None:
        """Return the head of a conversation, if it exists. One command, for a child a few more.

        The id may be one that the conversation had before a repair of its log.
        """
        if parent := parent_id(conversation):
            child = await self._heads.find_one(
                {"parent": parent, "conversation": all_ids(conversation)}
            )
            found = await self.find(head_from(child).scope) if child else None
            is_same = found and first_id(found.conversation) == first_id(conversation)
            return found if is_same else None  # its parent may be deleted
        # Tombstones of deleted conversations have the id, too, but no date.
        document = await self._heads.find_one(
            {"conversation": all_ids(conversation), "updated_at": {"$exists": True}}
        )
        return head_from(document) if document else None

    async def claim(
        self,
        scope: Mapping[str, str],
        *,
        updated_at: datetime,
        written_at: datetime,
        for_child: bool = False,
        fork: tuple[str, Origin] | None = None,
    ) -> tuple[Head, bool]:
        """Return the head of a scope, created if missing, and True if this call created it. One command.

        Two concurrent writers get the same head, and only one of them gets True. Dates are never set back. The parent
        of a child is claimed first, with `for_child`, so that its head records that it has children. With `fork`, its
        id and origin, a new head is that of a fork.
        """
        outer = parent_scope(scope)
        parent = ""
        if outer is not None:
            above, _ = await self.claim(
                outer, updated_at=updated_at, written_at=written_at, for_child=True
            )
            parent = above.conversation
        conversation = fork[0] if fork else child_id(parent, secrets.token_hex(12))
        date = {date_field(scope): updated_at}
        new = {
            "conversation": conversation,
            "scope": dict(scope),
            "created_at": creation(updated_at, conversation),
            "entry": list(EntryRef()),
            **({"parent": first_id(parent)} if parent else {}),
            **(date if for_child else {}),
            **({"origin": sealed(json.dumps(fork[1]), conversation, "origin")} if fork else {}),
        }
        update: dict[str, Any] = {
            "$max": {"written_at": written_at, **({} if for_child else date)},
            "$setOnInsert": stamped(new, "head"),
            **({"$set": {"has_children": True}} if for_child else {}),
        }
        query = {"_id": head_id(scope, parent)}
        document = (
            await self._heads.find_and_update(query, update, after=True, upsert=True) or query
        )
        return head_from(document), document["conversation"] == conversation

    async def refresh(
        self,
        scope: Mapping[str, str],
        conversation: str,
        *,
        entry: EntryRef,
        updated_at: datetime,
        written_at: datetime,
    ) -> bool:
        """Write the last entry and later dates; False if the scope has another conversation now. One command.

        For a child one more command keeps the root from being pruned while a sub-agent works.
        """
        fields: dict[str, Any] = {"entry": list(entry)}
        if entry.number == 1:
            # the date of the first message, even if a title was set earlier
            fields["created_at"] = creation(updated_at, conversation)
        update = {"$set": fields, "$max": {date_field(scope): updated_at, "written_at": written_at}}
        if not await self._heads.update(_query(scope, conversation), update):
            return False
        return await self._keep_root(scope, conversation, written_at=written_at)

    async def touch(
        self, scope: Mapping[str, str], *, updated_at: datetime, written_at: datetime
    ) -> Head | None:
        """Write later dates and return the head; None if it is missing, as it is never created here. One command.

        For a child, two more commands than it has levels.
        """
        query = {"_id": await head_key(self._heads, scope)}
        dates = {date_field(scope): updated_at, "written_at": written_at}
        document = await self._heads.find_and_update(query, {"$max": dates}, after=True)
        head = head_from(document) if document else None
        if head and not await self._keep_root(scope, head.conversation, written_at=written_at):
            return None
        return head

    async def _keep_root(
        self, scope: Mapping[str, str], conversation: str, *, written_at: datetime
    ) -> bool:
        """Keep the root of a child from being pruned; False if it was deleted."""
        if not parent_id(conversation):
            return True
        root_key = head_id(dict(root_scope(tuple(scope.items()))))
        root = {"_id": root_key, "conversation": all_ids(root_id(conversation))}
        return await self._heads.update(root, {"$max": {"written_at": written_at}})

    async def describe(
        self, scope: Mapping[str, str], conversation: str, details: Mapping[str, str]
    ) -> bool:
        """Set title or metadata, or both; return False if the conversation was deleted. One command."""
        changes = {
            f"details.{name}": sealed(text, first_id(conversation), name)
            for name, text in details.items()
        }
        if not changes:
            return True
        return await self._heads.update(_query(scope, conversation), {"$set": changes})

    async def find_listed(self, scope: Mapping[str, str]) -> ListedHead | None:
        """Return the head of a scope with the totals of its log, if it has a conversation. One command."""
        found = await self._with_last_entry(
            {"_id": await head_key(self._heads, scope)}, order={"_id": 1}, limit=1
        )
        return ListedHead(head_from(found[0]), _last_totals(found[0])) if found else None

    async def page(
        self, partial_scope: Mapping[str, str], *, limit: int, cursor: str | None = None
    ) -> list[ListedHead]:
        """Return heads with these scope values, newest first. One command."""
        # children have no `updated_at`
        query = scope_filter(partial_scope) | {"updated_at": {"$exists": True, "$ne": None}}
        if cursor is not None:
            moment, key = _read_cursor(cursor)
            query["updated_at"] = {"$lte": moment}  # the bound of the index
            query["$or"] = [
                {"updated_at": {"$lt": moment}},
                {"updated_at": moment, "_id": {"$lt": key}},
            ]
        documents = await self._with_last_entry(
            query, order={"updated_at": -1, "_id": -1}, limit=limit
        )
        return [_listed(document) for document in documents]

    def each(self, partial_scope: Mapping[str, str]) -> AsyncGenerator[ListedHead, None]:
        """Iterate over the heads with these scope values, without tombstones. One command for each thousand."""
        return self._each(scope_filter(partial_scope) | {"updated_at": {"$exists": True}})

    async def children(self, conversation: str) -> list[ListedHead]:
        """Return the heads of the children of a conversation, oldest first. One command for each thousand."""
        found = [child async for child in self._each({"parent": first_id(conversation)})]
        return sorted(found, key=lambda child: child.head.created_at)

    async def first_questions(self, conversations: Sequence[str]) -> dict[str, EntryMessage]:
        """Return the first human message of each conversation that begins with one, or with system messages before it.

        A damaged message is left out. One command.
        """
        query = {"conversation": {"$in": list(conversations)}, "first": {"$lte": _OPENING}}
        fields: Any = {"conversation": 1, "first": 1, "messages": {"$elemMatch": {"type": "human"}}}
        questions: dict[str, EntryMessage] = {}
        for entry in sorted(
            await self._log.find(query, fields), key=itemgetter("first"), reverse=True
        ):
            with suppress(CorruptDocumentError), reading(entry):
                for message in entry.get("messages", ()):
                    first = entry["first"]
                    questions[entry["conversation"]] = message_from(
                        message, first, entry["_id"], first
                    )
        return questions

    async def _each(self, query: dict[str, Any]) -> AsyncGenerator[ListedHead, None]:
        query["_id"] = {"$gt": ""}
        while True:
            documents = await self._with_last_entry(query, order={"_id": 1}, limit=_BATCH)
            for document in documents:
                yield _listed(document)
            if len(documents) < _BATCH:
                return
            query["_id"] = {"$gt": documents[-1]["_id"]}

    async def _with_last_entry(
        self, query: Document, *, order: Mapping[str, int], limit: int
    ) -> list[Document]:
        """Return heads, each with the last entry of its log in a list ``last``.

        One command. In memory, and on servers that refuse to join (sharded) collections, one more for each head. A
        refusal is remembered.
        """
        is_refused = False
        if self._driver.name != "memory" and JOIN not in self._driver.refused:
            try:
                return await self._heads.aggregate(
                    [{"$match": query}, {"$sort": order}, {"$limit": limit}, self._join]
                )
            except StoreUnavailableError:
                raise
            except StoreError as error:
                # if the join is not the cause, the next command raises the same error
                is_refused = is_refusal(error)
        heads = await self._heads.find(query, order=[*order.items()], limit=limit)
        if is_refused:
            self._driver.refused.add(JOIN)
        return [
            {**head, "last": await self._last_entry(head.get("conversation"))} for head in heads
        ]

    async def _last_entry(self, conversation: Any) -> list[Document]:
        query = {"conversation": conversation, "first": {"$exists": True}}
        return await self._log.find(query, _TOTALS, order=[*_LAST_FIRST.items()], limit=1)


async def head_key(heads: Collection, scope: Mapping[str, str]) -> str:
    """Return the key of a scope's head, "" for a child whose parent is missing. One command for each ancestor."""
    if (outer := parent_scope(scope)) is None:
        return head_id(scope)
    parent = await heads.find_one({"_id": await head_key(heads, outer)}, {"conversation": 1})
    return head_id(scope, str(parent["conversation"])) if parent else ""


def _query(scope: Mapping[str, str], conversation: str) -> dict[str, Any]:
    """Return the filter for the head of a conversation."""
    return {"_id": head_id(scope, parent_id(conversation)), "conversation": conversation}


def join_of_last_entry(log: str) -> dict[str, Any]:
    """Return the stage that joins the last entry to a head by the index of ordinals.

    A range of ``_id`` that depends on the head would scan a clustered log.
    """
    same = {"$expr": {"$eq": ["$conversation", "$$conversation"]}, "first": {"$exists": True}}
    last = [{"$match": same}, {"$sort": _LAST_FIRST}, {"$limit": 1}, {"$project": _TOTALS}]
    return {
        "$lookup": {
            "from": log,
            "let": {"conversation": "$conversation"},
            "pipeline": last,
            "as": "last",
        }
    }


def creation(at: datetime, conversation: str) -> list[str | bytes]:
    """Return the date of a conversation's first message in the form that heads store, with a checksum."""
    return sealed(date_text(at), first_id(conversation), "created_at")


def head_from(document: Document) -> Head:
    """Return the head in a document.

    Raises:
        CorruptDocumentError, SchemaVersionError: The document is damaged, or a newer convstore wrote it.
    """
    check_version(document, "head")
    with reading(document, HEADS):
        scope = {name: stored_text(value) for name, value in document["scope"].items()}
        conversation = stored_text(document["conversation"])
        own = first_id(conversation)
        if head_id(scope, parent_id(conversation)) != document["_id"]:
            raise ValueError("the key does not match the scope")
        origin = None
        if "origin" in document:
            origin = Origin(*json.loads(unsealed(document["origin"], own, "origin")))
        return Head(
            key=document["_id"],
            conversation=conversation,
            scope=scope,
            created_at=datetime.fromisoformat(unsealed(document["created_at"], own, "created_at")),
            updated_at=utc(document[date_field(scope)]),
            written_at=utc(document["written_at"]),
            entry=EntryRef(*map(stored_number, stored_list(document["entry"]))),
            details=dict(document.get("details", {})),
            has_children="has_children" in document,
            origin=origin,
        )


def _last_totals(document: Document) -> Totals:
    """Return the totals of the entry that was joined to a head, or zeros."""
    if not document["last"]:
        return Totals()
    with reading(entry := document["last"][0]):
        check_version(entry, "entry")
        totals = totals_from(entry["totals"])
        if entry["_id"] != entry_id(entry["conversation"], totals.entries):
            raise ValueError("the key does not match the number of the entry")
        return totals


def _listed(document: Document) -> ListedHead:
    """Return a head with totals, or its readable part with the damage, so that a page still has the other heads."""
    try:
        head = head_from(document)
    except (CorruptDocumentError, SchemaVersionError) as error:
        return ListedHead(readable_head(document), Totals(), damage=error)
    try:
        return ListedHead(head, _last_totals(document))
    except (CorruptDocumentError, SchemaVersionError) as error:
        return ListedHead(head, Totals(), damage=error)


def readable_head(document: Document) -> Head:
    """Return the readable part of a head that is damaged or was read in part; missing texts are "", dates in 1970."""
    conversation = document.get("conversation")
    scope = document.get("scope")
    texts = scope.items() if isinstance(scope, Mapping) else ()
    dates = [document.get(name) for name in ("created_at", "updated_at", "written_at")]
    created_at, updated_at, written_at = [
        utc(date) if isinstance(date, datetime) else _EPOCH for date in dates
    ]
    return Head(
        document["_id"],
        conversation if isinstance(conversation, str) else "",
        {name: value for name, value in texts if isinstance(value, str)},
        created_at,
        updated_at,
        written_at,
        EntryRef(),
        has_children="has_children" in document,
    )


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
        millis, _, key = text.partition(":")
        return _EPOCH + timedelta(milliseconds=int(millis)), key
    except (AttributeError, ValueError, OverflowError, binascii.Error) as error:
        raise InvalidCursorError(
            f"{shown_value(cursor)} is not a cursor of this call; start again without a cursor"
        ) from error

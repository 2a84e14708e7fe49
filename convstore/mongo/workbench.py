"""Write the documents that the checks of `constructs` use, in separate collections."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from convstore.mongo.collection import BY_KEY, Collection, Document
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.keys import HEADS, LOG, entry_id, state_id

SCOPE_KEYS = ("user_id", "thread_id")
ENTRIES = 4
"""Number of entries of the conversation; the first ordinal of each equals its number."""

_DUE = {1: datetime(2026, 1, 1, tzinfo=UTC), 2: datetime(2200, 1, 1, tzinfo=UTC)}
_MANY = 200
"""Number of documents without an entry's fields, so that a plan without an index would read many more documents."""


class DifferentAnswerError(Exception):
    """The server accepted a command, but its answer differs from that of MongoDB."""


class Workbench:
    """The collections that checks write to, with the documents of one conversation.

    Attributes:
        driver: The database, with a prefix for these collections.
        owner: The random id of this run, which is also the id of its conversation.
        log: The collection of entries.
        heads: The collection of heads.
    """

    def __init__(self, driver: Driver, owner: str) -> None:
        self.driver = driver
        self.owner = owner
        self.log = Collection(driver, LOG)
        self.heads = Collection(driver, HEADS)

    async def create(self, name: str, **options: Any) -> None:
        """Create a collection with some options."""
        async with driver_errors():
            full_name = self.driver.prefix + name
            await self.driver.database.create_collection(full_name, check_exists=False, **options)

    async def fill(self) -> None:
        """Create missing collections, and write a conversation with a head."""
        for name in (HEADS, LOG):
            await self.driver.create_collection(name)
        entries = [self.entry(number) for number in range(1, ENTRIES + 1)]
        state = {"_id": state_id(self.owner), "conversation": self.owner, "revision": 1}
        others = [
            {"_id": f"{self.owner}#{number:06d}", "conversation": f"{self.owner}#"}
            for number in range(_MANY)
        ]
        async with driver_errors():
            await self.log.driver_collection.insert_many([*entries, state, *others], ordered=True)
        await self.heads.insert(self.head("user"))

    def entry(self, number: int) -> dict[str, Any]:
        """Return an entry with one message, whose size in tokens is the entry's number.

        The first entry is due since 2026, and the second one in 2200.
        """
        message = {"id": f"message-{number}", "tokens": number, "body": "x", "stamp": "s"}
        message["type"] = "human" if number % 2 else "ai"
        entry = {
            "_id": entry_id(self.owner, number),
            "conversation": self.owner,
            "first": number,
            "count": 1,
            "at": datetime.now(UTC),
            "messages": [message],
        }
        return entry | ({"due": _DUE[number]} if number in _DUE else {})

    def head(self, value: str) -> dict[str, Any]:
        """Return a head with one value for all scope keys."""
        return {
            "_id": f"{self.owner}-{value[:1]}",
            "conversation": self.owner,
            "scope": dict.fromkeys(SCOPE_KEYS, value),
            "updated_at": datetime.now(UTC),
        }

    async def numbers(self, query: Document, **how: Any) -> list[int]:
        """Return the first ordinals of the entries that a filter matches, in the order of keys."""
        own = {"conversation": self.owner, "first": {"$exists": True}, "$and": [query]}
        found = await self.log.find(own, {"first": 1}, order=BY_KEY, **how)
        return [document["first"] for document in found]

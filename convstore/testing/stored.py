"""The stored documents of a conversation, which tests read, damage and verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convstore.conversation import Conversation
from convstore.store import ConversationStore
from convstore.values.reports import VerifyReport

__all__ = ["Stored", "kinds"]


def kinds(report: VerifyReport) -> list[tuple[str, str]]:
    """Return kind and document of each finding, without those about schema and indexes."""
    return [
        (finding.kind, finding.document_id)
        for finding in report.findings
        if not finding.kind.startswith("index")
    ]


@dataclass(frozen=True, slots=True)
class Stored:
    """The documents of a conversation.

    Attributes:
        chat: The conversation.
        database: Its database.
        verifier: The store that verifies it.
        conversation: Its id.
    """

    chat: Conversation
    database: Any
    verifier: ConversationStore
    conversation: str

    @classmethod
    async def of(
        cls, chat: Conversation, database: Any, verifier: ConversationStore | None = None
    ) -> Stored:
        """Return the documents of a conversation; by default they are verified by its own store."""
        head = await database["heads"].find_one({"scope": chat.scope})
        return cls(chat, database, verifier or chat.store, str(head["conversation"]))

    @property
    def user(self) -> str:
        """Its user."""
        return self.chat.scope["user_id"]

    @property
    def state_key(self) -> str:
        """The key of its state."""
        return f"{self.conversation}:~"

    def key(self, number: int) -> str:
        """Return the key of an entry, or of the annotations of a message."""
        return f"{self.conversation}:{number:012d}"

    async def head(self) -> dict[str, Any]:
        """Return its head."""
        found: dict[str, Any] = await self.database["heads"].find_one({"scope": self.chat.scope})
        return found

    async def set_head(self, fields: Mapping[str, Any]) -> None:
        """Set fields of its head."""
        query = {"scope": self.chat.scope}
        await self.database["heads"].update_one(query, {"$set": fields})

    async def entry(self, number: int) -> dict[str, Any]:
        """Return an entry."""
        found: dict[str, Any] = await self.database["log"].find_one({"_id": self.key(number)})
        return found

    async def state(self) -> dict[str, Any]:
        """Return its state, empty if it is missing."""
        return await self.database["log"].find_one({"_id": self.state_key}) or {}

    async def change(self, key: str | int, update: Mapping[str, Any]) -> None:
        """Update a document of the log, an entry by its number."""
        key = self.key(key) if isinstance(key, int) else key
        await self.database["log"].update_one({"_id": key}, update)

    async def drop(self, key: str | int) -> None:
        """Delete a document of the log, an entry by its number."""
        key = self.key(key) if isinstance(key, int) else key
        await self.database["log"].delete_one({"_id": key})

    async def all(self, collection: str = "log") -> list[dict[str, Any]]:
        """Return its documents in a collection, in order."""
        found = self.database[collection].find({"conversation": self.conversation}).sort("_id", 1)
        return list(await found.to_list(None))

    async def verify(self, *, repair: bool = False) -> VerifyReport:
        """Verify the conversations of its user."""
        return await self.verifier.verify(user_id=self.user, repair=repair)

    async def found(self, *, repair: bool = False) -> list[tuple[str, str]]:
        """Return the findings of a verification, in the form of `kinds`."""
        return kinds(await self.verify(repair=repair))

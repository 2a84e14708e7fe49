"""Find conversations whose scope is unknown, because their head is missing or damaged.

Only a head names a scope, so no erasure by scope values finds them. Candidates are read in sixteen parts by the first
digit of their random ids, which bounds memory; each one is looked up again, as it may just have begun.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from convstore.mongo.collection import BY_KEY, Collection
from convstore.mongo.driver import Driver
from convstore.mongo.heads import Head, readable_head
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import HEADS, LOG, is_conversation_id
from convstore.mongo.versions import readable

_DIGITS = "0123456789abcdef"


class LostConversations:
    """Commands that find conversations without a usable head."""

    def __init__(self, driver: Driver) -> None:
        self._heads = Collection(driver, HEADS)
        self._log = Collection(driver, LOG)
        self._inspection = Inspection(driver)

    async def logs(self) -> AsyncGenerator[str, None]:
        """Yield the ids of conversations that have entries, but neither a head nor a tombstone.

        Two commands for each part, and one or two for each candidate.
        """
        for digit in _DIGITS:
            inside = {"$gte": digit, "$lt": f"{digit}\x7f"}
            indexed = {"conversation": inside, "first": {"$gte": 0}}  # by that of ordinals
            found = set(await self._log.distinct("conversation", indexed))
            heads = map(
                readable_head, await self._heads.find({"conversation": inside}, {"conversation": 1})
            )
            found -= {head.conversation for head in heads}
            for conversation in sorted(filter(is_conversation_id, found)):
                if not await self._inspection.is_known(conversation):
                    yield conversation

    async def heads(self) -> AsyncGenerator[Head, None]:
        """Yield what can be read of heads that do not name their conversation or their scope. Reads every head.

        Those of a newer version are left out: they may name both in another way.
        """
        async with aclosing(
            self._heads.each({"sweep_at": {"$exists": False}, **readable("head")}, order=BY_KEY)
        ) as documents:
            async for document in documents:
                head = readable_head(document)
                if not (head.conversation and head.has_key_of_scope):
                    yield head

    async def drop_head(self, head: Head) -> bool:
        """Delete a head that names no conversation; False if it names one now or is missing. One command."""
        # or a list
        is_nameless = [
            {"conversation": {"$not": {"$regex": "."}}},
            {"conversation.0": {"$exists": True}},
        ]
        return await self._heads.delete_one({"_id": head.key, "$or": is_nameless})

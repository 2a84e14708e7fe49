"""Read and write the ``annotations`` collection: values that applications attach to single messages.

Floor 2; `readback.annotations` calls it. Each annotated message has one document, found by conversation and ordinal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.bson_values import from_stored, stored_number, stored_text, to_stored
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.key_ranges import count_range, delete_range
from convstore.mongo.keys import ANNOTATIONS, annotation_id, conversation_range

__all__ = ["Annotations"]


class Annotations:
    """Commands on the ``annotations`` collection."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._annotations = driver.collection(prefix + ANNOTATIONS)

    async def change(
        self, conversation: str, ordinal: int, *, given: Mapping[str, str], gone: Iterable[str], at: datetime
    ) -> None:
        """Set some values of a message and remove others; the rest stays. One command."""
        update: dict[str, Any] = {"$set": {"conversation": conversation, "ordinal": ordinal, "at": at}}
        update["$set"] |= {f"values.{name}": to_stored(text) for name, text in given.items()}
        if removed := {f"values.{name}": "" for name in gone}:
            update["$unset"] = removed
        async with driver_errors():
            key = annotation_id(conversation, ordinal)
            await self._annotations.update_one({"_id": key, "conversation": conversation}, update, upsert=True)

    async def find(self, conversation: str, ordinals: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the annotations of some messages by ordinal. One command, none for no messages."""
        if not ordinals:
            return {}
        keys = [annotation_id(conversation, ordinal) for ordinal in ordinals]
        async with driver_errors():
            found = self._annotations.find({"_id": {"$in": keys}, "conversation": conversation})
            documents = await found.batch_size(len(keys) + 1).to_list(None)
        return dict(map(_values_in, documents))

    async def delete(self, conversation: str) -> int:
        """Remove all annotations of a conversation and return the number of documents."""
        return await delete_range(self._annotations, conversation, *conversation_range(conversation))

    async def count(self, conversation: str) -> int:
        """Count the annotated messages of a conversation. One command."""
        return await count_range(self._annotations, conversation, *conversation_range(conversation))


def _values_in(document: Mapping[str, Any]) -> tuple[int, dict[str, str]]:
    """Return the ordinal of a message and its annotations.

    Raises:
        CorruptDocumentError: The document is damaged.
    """
    key = str(document["_id"])
    try:
        ordinal = stored_number(document["ordinal"])
        if key != annotation_id(stored_text(document["conversation"]), ordinal):
            raise ValueError("the key, the conversation and the ordinal do not agree")
        return ordinal, {name: from_stored(text) for name, text in document.get("values", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDocumentError(key, repr(error), collection=ANNOTATIONS) from error

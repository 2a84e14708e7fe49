"""Read and write the ``annotations`` collection: data that the application stores next to the log.

Each message with annotations has a document. The application's state of a conversation is one more, with a revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from convstore.exceptions import CorruptDocumentError, SchemaVersionError
from convstore.mongo.bson_values import reading, sealed, stored_number, stored_text, unsealed
from convstore.mongo.collection import Collection, Document
from convstore.mongo.driver import Driver
from convstore.mongo.keys import ANNOTATIONS, annotation_id, application_state_id
from convstore.mongo.versions import check_version, stamped
from convstore.values.plain import slices

_BATCH = 1_000


class Annotations:
    """Commands on the ``annotations`` collection."""

    def __init__(self, driver: Driver) -> None:
        self._annotations = Collection(driver, ANNOTATIONS)

    async def change(
        self,
        conversation: str,
        ordinal: int,
        *,
        values: Mapping[str, str],
        removed: Iterable[str],
        at: datetime,
    ) -> None:
        """Set some values of a message and remove others; all other values are kept. One command.

        Each value has a checksum, and `names` lists all values, so that the loss of one is detected.
        """
        fields = {"conversation": conversation, "ordinal": ordinal, "at": at}
        change: dict[str, Any] = {"$set": stamped(fields, "annotation")}
        key = annotation_id(conversation, ordinal)
        change["$set"] |= {
            f"values.{name}": sealed(text, key, name) for name, text in values.items()
        }
        change["$set"] |= {f"names.{name}": True for name in values}
        if unset := {f"{field}.{name}": "" for field in ("values", "names") for name in removed}:
            change["$unset"] = unset
        query = {"_id": key, "conversation": conversation}
        await self._annotations.update(query, change, upsert=True)

    async def find(self, conversation: str, ordinals: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the annotations of messages by ordinal. One command, or no command if there are no ordinals."""
        if not ordinals:
            return {}
        keys = [annotation_id(conversation, ordinal) for ordinal in ordinals]
        query = {"_id": {"$in": keys}, "conversation": conversation}
        return dict(map(values_in, await self._annotations.find(query)))

    async def find_named(self, conversations: Sequence[str], name: str) -> list[tuple[str, str]]:
        """Return conversation and value of each annotation with a name, for all messages of some conversations.

        Damaged annotations are left out. One command for each thousand conversations.
        """
        found: list[tuple[str, str]] = []
        for batch in slices(conversations, _BATCH):
            query = {
                "$or": [{"_id": _keys_of(conversation)} for conversation in batch],
                "conversation": {"$in": list(batch)},
                f"names.{name}": True,
            }
            for document in await self._annotations.find(query):
                with suppress(CorruptDocumentError, SchemaVersionError):
                    found.append((document["conversation"], values_in(document)[1][name]))
        return found

    async def find_state(self, conversation: str) -> tuple[int, str]:
        """Return revision and text of the application's state; 0 and "" if it was never written. One command."""
        query = {"_id": application_state_id(conversation), "conversation": conversation}
        found = await self._annotations.find_one(query)
        return (0, "") if found is None else state_in(found)

    async def write_state(self, conversation: str, text: str, *, after: int, at: datetime) -> bool:
        """Write the state that follows the revision `after`; False if another revision is stored. One command."""
        key = application_state_id(conversation)
        revision = after + 1
        fields = {"conversation": conversation, "revision": revision, "at": at}
        document = stamped(fields | {"state": sealed(text, key, str(revision))}, "annotation")
        if not after:
            return await self._annotations.insert({"_id": key, **document})
        query = {"_id": key, "conversation": conversation, "revision": after}
        return await self._annotations.update(query, {"$set": document})


def _keys_of(conversation: str) -> dict[str, str]:
    """Return the bounds of the keys of a conversation's annotations."""
    return {"$gte": annotation_id(conversation, 0), "$lt": application_state_id(conversation)}


def state_in(document: Document) -> tuple[int, str]:
    """Return revision and text of a state.

    Raises:
        CorruptDocumentError, SchemaVersionError: The document is damaged, or a newer convstore wrote it.
    """
    check_version(document, "annotation")
    with reading(document, ANNOTATIONS):
        key = stored_text(document["_id"])
        revision = stored_number(document["revision"], minimum=1)
        if key != application_state_id(stored_text(document["conversation"])):
            raise ValueError("the key and the conversation do not agree")
        return revision, unsealed(document["state"], key, str(revision))


def values_in(document: Document) -> tuple[int, dict[str, str]]:
    """Return the ordinal of a message and its annotations.

    Raises:
        CorruptDocumentError, SchemaVersionError: The document is damaged, or a newer convstore wrote it.
    """
    check_version(document, "annotation")
    with reading(document, ANNOTATIONS):
        ordinal = stored_number(document["ordinal"])
        if document["_id"] != annotation_id(stored_text(document["conversation"]), ordinal):
            raise ValueError("the key, the conversation and the ordinal do not agree")
        values = document.get("values", {})
        if document.get("names", {}) != dict.fromkeys(values, True):
            raise ValueError("its values do not match its list of names")
        return ordinal, {
            name: unsealed(text, document["_id"], name) for name, text in values.items()
        }

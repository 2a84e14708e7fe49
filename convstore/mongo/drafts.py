"""Read and write the ``drafts`` collection: for each conversation at most one reply that is being streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from convstore.exceptions import CorruptDocumentError
from convstore.mongo.bson_values import reading, sealed, stored_text, unsealed
from convstore.mongo.collection import Collection, Document
from convstore.mongo.driver import Driver
from convstore.mongo.keys import DRAFTS, draft_id
from convstore.mongo.versions import readable, stamped
from convstore.values.json_form import valid_text
from convstore.values.plain import slices

_BATCH = 1_000
_ERROR_CHARACTERS = 300


class Draft(NamedTuple):
    """The beginning of a reply.

    Attributes:
        turn: Id of its turn.
        owner: Token of the lease under which it is written.
        after: Ordinal of the log's last message before it.
        text: The text so far.
        variant: Id of the variant that it belongs to, "" for the variant that is shown.
        error: Class and first line of the error that ended the run, or "".
    """

    turn: str
    owner: str
    after: int
    text: str
    variant: str = ""
    error: str = ""

    def stands_at(self, turn: str, variant: str, after: int) -> bool:
        """Return True if it belongs to a variant of a turn, and no message was appended since."""
        return (self.turn, self.variant, self.after) == (turn, variant, after)

    def after_error(self, error: BaseException) -> Draft:
        """Return the draft with the error that ended the run."""
        return self._replace(error=_first_line(error))


class Drafts:
    """Commands on the ``drafts`` collection; each method is one command, unless its docstring says otherwise."""

    def __init__(self, driver: Driver) -> None:
        self._drafts = Collection(driver, DRAFTS)

    async def begin(self, conversation: str, draft: Draft) -> None:
        """Write the first draft of a reply; it replaces any other draft, unless a newer convstore wrote that."""
        query = _query(conversation) | readable("draft")
        fields = stamped(_fields(conversation, draft), "draft")
        await self._drafts.update(query, {"$set": fields}, upsert=True)

    async def write(self, conversation: str, draft: Draft) -> None:
        """Replace the text of a draft, unless the draft was replaced or deleted meanwhile."""
        query = _query(conversation) | {"owner": draft.owner, "after": draft.after}
        await self._drafts.update(query, {"$set": _fields(conversation, draft)})

    async def drop(self, conversation: str, draft: Draft) -> None:
        """Delete a draft whose reply is in the log."""
        await self._drafts.delete_one(
            _query(conversation) | {"owner": draft.owner, "after": draft.after}
        )

    async def find(self, conversation: str) -> Draft | None:
        """Return the draft of a conversation, if there is one; a damaged or newer one is ignored."""
        with suppress(CorruptDocumentError):
            found = await self._drafts.find_one(_query(conversation) | readable("draft"))
            return None if found is None else draft_in(found)
        return None

    async def among(self, conversations: Sequence[str]) -> set[str]:
        """Return the conversations among some that have a draft; one command for each thousand."""
        found: set[str] = set()
        for batch in slices(conversations, _BATCH):
            keys = [draft_id(conversation) for conversation in batch]
            query = {"_id": {"$in": keys}, "conversation": {"$in": list(batch)}}
            documents = await self._drafts.find(query, {"conversation": 1})
            found |= {document["conversation"] for document in documents}
        return found


def draft_in(document: Document) -> Draft:
    """Return the draft in a document.

    Raises:
        CorruptDocumentError: The document is damaged.
    """
    with reading(document, DRAFTS):
        return Draft(
            *json.loads(unsealed(document["draft"], stored_text(document["conversation"])))
        )


def _query(conversation: str) -> dict[str, Any]:
    return {"_id": draft_id(conversation), "conversation": conversation}


def _fields(conversation: str, draft: Draft) -> dict[str, Any]:
    text = json.dumps(draft, ensure_ascii=False)
    return {"owner": draft.owner, "after": draft.after, "draft": sealed(text, conversation)}


def _first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its text; a group with one error counts as that error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - a class of an application may raise anything
        lines = []
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return valid_text(text[:_ERROR_CHARACTERS])

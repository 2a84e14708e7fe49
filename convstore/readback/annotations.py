"""Stores annotations of single messages: feedback, labels, audit notes.

Annotations are stored separately from the log, which never changes. Models never see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from convstore.exceptions import (
    CorruptDocumentError,
    InvalidInputError,
)
from convstore.mongo.annotations import Annotations
from convstore.mongo.keys import ANNOTATIONS, annotation_id
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.values.scope import Scope

_MAX_VALUES = 100
_MAX_BYTES = 1_000_000
_VALUE_CHARACTERS = 100_000
_NAME_CHARACTERS = 100


class Annotator:
    """Writes and reads annotations."""

    def __init__(self, reader: LogReader, annotations: Annotations) -> None:
        self._reader = reader
        self._annotations = annotations
        self._codec = reader.codec
        self._clock = reader.clock

    async def annotate(self, scope: Scope, message_id: str, values: Mapping[str, Any]) -> None:
        """Set or remove annotations of a message; see `Conversation.annotate`."""
        given = self._encode(values)
        cached, row = await self._reader.find_message(scope, message_id)
        ordinal = row.message.ordinal
        stored = (await self._annotations.find(cached.conversation, [ordinal])).get(ordinal, {})
        if len(stored.keys() | given.keys()) > _MAX_VALUES:
            raise InvalidInputError(
                f"a message has at most {_MAX_VALUES} annotations; remove some by setting them to "
                "None"
            )
        removed = values.keys() - given.keys()
        kept = {name: text for name, text in (stored | given).items() if name not in removed}
        if (
            size := sum(len(text.encode("utf-8", "surrogatepass")) for text in kept.values())
        ) > _MAX_BYTES:
            raise InvalidInputError(
                f"the annotations of a message would take {size:,} bytes; the limit is "
                f"{_MAX_BYTES:,}"
            )
        await self._annotations.change(
            cached.conversation, ordinal, values=given, removed=removed, at=self._clock.now()
        )

    async def get(self, scope: Scope, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the annotations of messages, by id; see `Conversation.annotations`."""
        cached = await self._reader.find(scope)
        if cached is None:
            return {}
        rows = await self._reader.messages_by_id(cached, ids)
        found = await self.of(cached, [row.message.ordinal for row in rows.values()])
        return {
            id_: found[rows[id_].message.ordinal]
            for id_ in ids
            if id_ in rows and rows[id_].message.ordinal in found
        }

    async def of(
        self, cached: CachedConversation, ordinals: Sequence[int]
    ) -> dict[int, dict[str, Any]]:
        """Return the annotations of messages, by ordinal; raise a CorruptDocumentError if a value is damaged."""
        found = await self._annotations.find(cached.conversation, ordinals)
        return {
            ordinal: self._decode(cached, ordinal, texts)
            for ordinal, texts in found.items()
            if texts
        }

    async def rated_down(self, conversations: Sequence[str]) -> set[str]:
        """Return the conversations with a message whose annotation `rating` is below 0; damaged ratings do not count.

        One command for each thousand.
        """
        found: set[str] = set()
        for conversation, text in await self._annotations.find_named(conversations, "rating"):
            with suppress(ValueError):
                rating = self._codec.decode(text)
                if isinstance(rating, int | float) and rating < 0:
                    found.add(conversation)
        return found

    def _decode(
        self, cached: CachedConversation, ordinal: int, texts: Mapping[str, str]
    ) -> dict[str, Any]:
        try:
            return {name: self._codec.decode(text) for name, text in texts.items()}
        except ValueError as error:
            key = annotation_id(cached.conversation, ordinal)
            raise CorruptDocumentError(key, str(error), collection=ANNOTATIONS) from error

    def _encode(self, values: Mapping[str, Any]) -> dict[str, str]:
        if not values:
            raise InvalidInputError(
                "pass at least one value, such as rating=1; None removes a value"
            )
        for name in values:
            if not name.isidentifier() or len(name) > _NAME_CHARACTERS:
                raise InvalidInputError(
                    f"{name[:50]!r} is not a valid annotation name; use a Python identifier of at "
                    f"most {_NAME_CHARACTERS} characters"
                )
        given = {
            name: self._codec.encode(value, path=name)
            for name, value in values.items()
            if value is not None
        }
        if too_long := [name for name, text in given.items() if len(text) > _VALUE_CHARACTERS]:
            raise InvalidInputError(
                f"{too_long[0]} is longer than {_VALUE_CHARACTERS:,} characters; shorten it"
            )
        return given

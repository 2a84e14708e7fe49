"""Reads the collection of ``MongoDBChatMessageHistory`` from langchain-mongodb.

One document a message, ``{_id, SessionId: …, History: "<JSON of message_to_dict>"}``, in the order in which that class
reads them. The collection is only read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any

from convstore.edges import collection_of
from convstore.exceptions import InvalidInputError
from convstore.integration import documents_of
from convstore.transfer.dicts import item_of
from convstore.transfer.records import BadRecord, ConversationRecord, merged_fields, where_of
from convstore.values.log_records import RecordItem
from convstore.values.plain import shown_value

_KEYS_AT_ONCE = 1_000


async def read_history_collection(
    collection: Any, *, session_key: str = "SessionId", history_key: str = "History"
) -> AsyncGenerator[ConversationRecord | BadRecord, None]:
    """Yield the conversations of a collection one at a time, ordered by session id.

    A record has the fields of its documents, except the history; see `ConversationRecord.fields`. A message without an
    id gets one that is derived from the ``_id`` of its document. The date of a message is that of the ``_id``.

    Args:
        collection: Of PyMongo's async client, Motor or mongomock-motor.
        session_key: The field with the session id, the class's ``session_id_key``.
        history_key: The field with the message, the class's ``history_key``.

    Raises:
        InvalidInputError: `collection` is not a collection, or a key is not a text.
        StoreError: The server does not answer, or refuses a command.
    """
    _check(collection, session_key=session_key, history_key=history_key)
    async with aclosing(_sessions(collection, session_key)) as sessions_found:
        async for session in sessions_found:
            where = where_of(session_key, session)
            if isinstance(session, bool) or (
                not isinstance(session, str | int) and not hasattr(session, "generation_time")
            ):
                yield BadRecord(
                    where,
                    f"the session id is a value of type {type(session).__name__}; text is needed",
                )
                continue
            yield await _conversation(
                collection, session, where, session_key=session_key, history_key=history_key
            )


def _check(collection: Any, **fields: str) -> None:
    """Raise an InvalidInputError unless `collection` belongs to an async client and each field's name is a text."""
    if not isinstance(getattr(collection, "name", None), str):
        raise InvalidInputError(
            f"collection must be a collection of a database, not {type(collection).__name__}"
        )
    collection_of(getattr(collection, "database", None), collection.name)
    for name, value in fields.items():
        if not isinstance(value, str) or not value:
            raise InvalidInputError(f"{name} must be a non-empty str, not {shown_value(value)}")


async def _sessions(collection: Any, session_key: str) -> AsyncGenerator[Any, None]:
    """Yield each session id once, in the order of the index that langchain-mongodb creates on it."""
    last: Any = _sessions
    cursor = (
        collection.find({}, {session_key: 1, "_id": 0})
        .sort(session_key, 1)
        .batch_size(_KEYS_AT_ONCE)
    )
    if hasattr(cursor, "allow_disk_use"):
        cursor = cursor.allow_disk_use(True)  # the index may be missing
    async with aclosing(documents_of(cursor)) as documents:
        async for document in documents:
            session = document.get(session_key)
            if session != last or type(session) is not type(last):
                last = session
                yield session


async def _conversation(
    collection: Any, session: Any, where: str, *, session_key: str, history_key: str
) -> ConversationRecord:
    # Not sorted, as in langchain-mongodb: several workers may write in the same second, by which `_id` sorts.
    documents = [
        document async for document in documents_of(collection.find({session_key: session}))
    ]
    items = [item for document in documents for item in _items(document, history_key)]
    fields = merged_fields(*documents)
    for name in ("_id", history_key):
        fields.pop(name, None)
    return ConversationRecord(
        id=str(session), messages=items, where=where, fields={**fields, session_key: str(session)}
    )


def _items(document: dict[str, Any], history_key: str) -> list[RecordItem]:
    """Return the messages of a document: one, or several if another writer stored a list."""
    key = str(document["_id"])
    where = f"document {key}"
    at = getattr(document["_id"], "generation_time", None)
    history = document.get(history_key)
    if isinstance(history, str):
        try:
            history = json.loads(history)
        except (ValueError, RecursionError) as error:
            return [
                RecordItem(message=None, problem=f"{history_key} is not JSON: {error}", where=where)
            ]
    if not isinstance(history, list):
        return [_item(history, history_key, where, key, at)]
    return [
        _item(item, history_key, where, f"{key}:{index}", at) for index, item in enumerate(history)
    ]


def _item(raw: Any, history_key: str, where: str, key: str, at: datetime | None) -> RecordItem:
    if raw is None:
        return RecordItem(message=None, problem=f"it has no field {history_key!r}", where=where)
    return item_of(raw, where=where, key=key, at=at)

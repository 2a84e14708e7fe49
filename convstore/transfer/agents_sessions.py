"""Reads the sessions of OpenAI's Agents SDK: collections of ``MongoDBSession``, files of ``SQLiteSession``.

An item of a session is one of OpenAI's Responses API, as JSON text. The sessions are only read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from convstore.edges import collection_of
from convstore.exceptions import InvalidInputError
from convstore.integration import documents_of, is_answer_item, normalize_messages
from convstore.messages.encoding import digest_of
from convstore.transfer.dicts import moment_of
from convstore.transfer.records import BadRecord, ConversationRecord, record_or_bad, where_of
from convstore.transfer.sqlite_table import SQLiteTable
from convstore.values.log_records import RecordItem

_FAKE_ID = "__fake_id__"
_Stored = tuple[str, Any, datetime | None]
"""An item: its location in the session, its JSON text and its date."""


async def read_agents_sessions(
    database: Any, *, sessions: str = "agent_sessions", messages: str = "agent_messages"
) -> AsyncGenerator[ConversationRecord | BadRecord, None]:
    """Yield the conversations of ``MongoDBSession`` one at a time, ordered by session id.

    The field of a record for its scope is ``session_id``. Cleared items are not read.

    Args:
        database: Of PyMongo's async client, Motor or mongomock-motor.
        sessions: Name of the collection of sessions.
        messages: Name of the collection of items.

    Raises:
        InvalidInputError: `database` is not a database, or a name is not a text.
        StoreError: The server does not answer, or refuses a command.
    """
    found = collection_of(database, sessions).find({}).sort("session_id", 1)
    items_found = collection_of(database, messages)
    async with aclosing(documents_of(found)) as sessions_found:
        async for session in sessions_found:
            yield await record_or_bad(
                where_of("session", session["_id"]), _session(session, items_found)
            )


def read_agents_sqlite(
    path: Path | str, *, messages: str = "agent_messages"
) -> Iterator[ConversationRecord | BadRecord]:
    """Yield the conversations in a file of ``SQLiteSession``, ordered by session id; see `read_agents_sessions`.

    If a part of the file cannot be read, a `BadRecord` is the last one.

    Args:
        path: The file.
        messages: Name of the table of items.

    Raises:
        InvalidInputError: The file is not a SQLite database with such a table.
    """
    try:
        with closing(SQLiteTable(Path(path), messages)) as table:
            rows = table.rows("session_id", "id")
            yield from _records(
                table, sorted(rows, key=_order), f"{Path(path).name}, table {messages}"
            )
    except sqlite3.Error as error:
        raise InvalidInputError(
            f"{Path(path).name} is not a database of SQLiteSession: {error}"
        ) from error


def _order(row: Sequence[Any]) -> tuple[str, Any, Any]:
    """Return the sort key of a row: its session, which may have any type, and its number."""
    _, session, number = row
    return type(session).__name__, session or "", number if isinstance(number, int) else 0


def _records(
    table: SQLiteTable, rows: Iterable[Sequence[Any]], where: str
) -> Iterator[ConversationRecord | BadRecord]:
    """Yield the record of each session, and a `BadRecord` if a row cannot be read."""
    try:
        for session, own in groupby(rows, key=itemgetter(1)):
            stored: list[_Stored] = []
            for rowid, _, number in own:
                text, at = table.row(rowid, "message_data", "created_at")
                stored.append((f"row {number}", text, moment_of({"created_at": at})))
            yield _record(str(session), [stored])
    except sqlite3.Error as error:
        yield BadRecord(where, f"it cannot be read from here on: {error}")


async def _session(session: Mapping[str, Any], messages: Any) -> ConversationRecord:
    id_ = str(session["session_id"])
    generation = session.get("_generation") or 0
    documents = documents_of(messages.find({"session_id": id_}).sort("seq", 1))
    found = [
        document async for document in documents if (document.get("generation") or 0) == generation
    ]
    # A document has the items of one call. An older version wrote a document for each item.
    calls = groupby(
        found, lambda each: each["_id"] if isinstance(each.get("message_data"), list) else None
    )
    return _record(
        id_,
        [
            [stored for document in documents for stored in _stored(document)]
            for _, documents in calls
        ],
    )


def _stored(document: dict[str, Any]) -> Iterator[_Stored]:
    """Yield the items of a document: a list, or a single item in an older version."""
    data = document.get("message_data")
    at = getattr(document["_id"], "generation_time", None)
    for index, text in enumerate(data if isinstance(data, list) else [data], 1):
        yield f"document {document['_id']}, item {index}", text, at


def _record(session: str, calls: Iterable[Iterable[_Stored]]) -> ConversationRecord:
    items = [
        item for stored in calls for group in _groups(stored) for item in _items(session, group)
    ]
    where = where_of("session", session)
    return ConversationRecord(
        id=session, messages=items, where=where, fields={"session_id": session}
    )


def _groups(stored: Iterable[_Stored]) -> list[list[_Stored]]:
    """Return the items of each message; adjacent items of an answer belong to one message."""
    groups: list[list[_Stored]] = []
    for where, text, at in stored:
        item = where, _parsed(text), at
        if groups and _is_answer(item) and _is_answer(groups[-1][-1]):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _is_answer(item: _Stored) -> bool:
    return isinstance(item[1], dict) and is_answer_item(item[1])


def _parsed(text: Any) -> Any:
    """Return the value of a JSON text, or the text if it is not JSON; the SDK's placeholder id is removed."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text
    is_fake = isinstance(value, dict) and value.get("id") == _FAKE_ID
    return {name: part for name, part in value.items() if name != "id"} if is_fake else value


def _items(session: str, group: Sequence[_Stored]) -> list[RecordItem]:
    where, value, at = group[0]
    if not isinstance(value, dict):
        return [RecordItem(message=None, problem="not a JSON object", where=where)]
    try:
        messages = normalize_messages(
            [value for _, value, _ in group], key=digest_of(f"{where}:{session}").hex()
        )
    except InvalidInputError as error:
        return [
            RecordItem(message=None, problem=str(error).removeprefix("message 0, "), where=where)
        ]
    return [RecordItem(message=message, where=where, at=at) for message in messages]

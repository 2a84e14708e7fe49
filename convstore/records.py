"""Messages in full by id, with their sources.

Layer 4, on the reader.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.entries import EntrySource
from convstore.exceptions import InvalidInputError
from convstore.known import Scope
from convstore.models import Source, StoredMessage, ToolRecord
from convstore.reader import Reader
from convstore.repository import StoredMessageRow
from convstore.sources import find_sources, parse_json
from convstore.stubs import text_of

__all__ = ["Records"]

_MOST_ON_A_PAGE = 1_000


class Records:
    """Gives messages of the log in full."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def get(self, scope: Scope, ids: Sequence[str]) -> list[ToolRecord]:
        """Those messages that the conversation has, in the order asked for."""
        known = await self._reader.find(scope)
        if known is None:
            return []
        async with self._reader.reading(known):
            rows = await self._reader.messages_by_id(known, ids)
            messages = await self._reader.decode_whole(known, [row.message for row in rows.values()])
        records = {id_: _record(rows[id_], message) for id_, message in zip(rows, messages, strict=True)}
        return [records[id_] for id_ in ids if id_ in records]

    async def page(
        self, scope: Scope, *, before: int | None, after: int | None, limit: int, full: bool
    ) -> list[StoredMessage]:
        """Messages by place, oldest first, in full or as views show them."""
        if before is not None and after is not None:
            raise InvalidInputError("pass before= or after=, not both")
        for name, value, most in (("before", before, None), ("after", after, None), ("limit", limit, _MOST_ON_A_PAGE)):
            if value is not None and (type(value) is not int or not 0 <= value <= (most or 2**53)):
                raise InvalidInputError(f"{name} is a whole number from 0 to {most or 2**53}, not {value!r}")
        known = await self._reader.find(scope)
        if known is None:
            return []
        async with self._reader.reading(known):
            rows = await self._reader.page(known, before=before, after=after, limit=limit)
            if full:
                messages = await self._reader.decode_whole(known, [message for message, _ in rows])
            else:
                messages = [self._reader.shorten(message) for message, _ in rows]
        return [
            StoredMessage(ordinal=row.ordinal, created_at=at, message=message)
            for (row, at), message in zip(rows, messages, strict=True)
        ]


def _record(row: StoredMessageRow, message: BaseMessage) -> ToolRecord:
    record = ToolRecord(
        tool_message_id=row.message.id,
        content=message.content,
        ordinal=row.message.ordinal,
        created_at=row.at,
    )
    if not isinstance(message, ToolMessage):
        return record
    return record.model_copy(
        update={
            "tool_call_id": message.tool_call_id,
            "tool": row.message.tool,
            "status": message.status,
            "artifact": message.artifact,
            "sources": _sources(message, row.sources),
        }
    )


def _sources(message: ToolMessage, numbered: Sequence[EntrySource]) -> list[Source]:
    """The sources of a result as the tool gave them, with the numbers that they were given at append."""
    if not numbered:
        return []
    found = find_sources(message, parse_json(text_of(message.content)))
    return [
        Source(
            source_id=number.id,
            title=source.title,
            url=source.url,
            content=source.text,
            metadata=source.metadata,
            tool_message_id=number.message_id,
        )
        for number, source in zip(numbered, found.items, strict=True)
    ]

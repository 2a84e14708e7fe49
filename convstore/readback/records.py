"""Returns messages in full by id, with their sources as public models, whole or cut for a page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.exceptions import CorruptDocumentError, InvalidInputError
from convstore.log.entry import EntryMessage, EntrySource
from convstore.log.rows import Row
from convstore.log.stored_message import check_source, read_message, stored_stamp
from convstore.messages.provenance import mark
from convstore.messages.values import Codec
from convstore.mongo.log import StoredMessageRow
from convstore.readback.annotations import Annotator
from convstore.readback.passages import in_line
from convstore.readback.stored_turns import turn_shown
from convstore.runtime.active_log import read_page
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.sources.places import read_item
from convstore.sources.source import FoundSource
from convstore.values.json_form import new_model
from convstore.values.models import Source, StoredMessage, ToolRecord
from convstore.values.scope import Scope, check_flags, check_number, check_ordinals

_LEFT_OUT = "too large for a page; get_tool_messages gives it whole"
_MAX_NAMED = 5
_NAME_CHARACTERS = 60


def make_source(source: EntrySource, found: FoundSource | None, *, content: str) -> Source:
    """Convert a stored source to the public model.

    Args:
        source: The source as stored in its entry.
        found: The item that the tool returned; None if it was not read.
        content: Its text, or the requested part of it.
    """
    title, url, metadata = found.label() if found else (source.title, source.url, {})
    values = {
        "source_id": source.id,
        "title": title,
        "url": url,
        "content": content,
        "metadata": metadata,
        "tool_message_id": source.message_id,
        "earlier_id": source.earlier,
        "given_id": None if source.kept else source.given,
        "child_id": "",
    }
    return new_model(Source, values, fields_set=set(values))


def page_source(
    codec: Codec, source: EntrySource, found: FoundSource | None, *, content: str, room: int
) -> tuple[Source, int]:
    """Convert a stored source for a page; return it with the remaining room for items.

    Metadata that does not fit is replaced by a mark that lists the omitted keys.

    Args:
        codec: Measures the metadata.
        source: The source as stored in its entry.
        found: The item that the tool returned; None if it is too large to read.
        content: The part of its text that is on the page.
        room: Maximum number of stored characters of the item.
    """
    whole = make_source(source, found, content=content)
    if found and source.place.rest <= room:
        return whole, room - source.place.rest
    kept: dict[str, Any] = {}
    for key, value in whole.metadata.items():
        size = len(key) + len(codec.encode(value, omitted=[]))
        if size <= room:
            kept[key] = value
            room -= size
    left_out = [name for name in ("title", "url") if getattr(whole, name) != getattr(source, name)]
    left_out += [in_line(key, _NAME_CHARACTERS) for key in whole.metadata if key not in kept]
    if found and not left_out:
        return whole, room
    rest = [f"{len(left_out) - _MAX_NAMED} more"] if len(left_out) > _MAX_NAMED else []
    kept |= mark("left_out", keys=[*left_out[:_MAX_NAMED], *rest], message=_LEFT_OUT)
    return whole.model_copy(
        update={"title": source.title, "url": source.url, "metadata": kept}
    ), room


_MAX_PAGE = 1_000


class Records:
    """Reads messages of the log in full.

    Attributes:
        reader: Reads the logs.
    """

    def __init__(self, reader: LogReader, annotator: Annotator) -> None:
        self.reader = reader
        self._annotator = annotator
        self._codec = reader.codec

    async def get(self, scope: Scope, ids: Sequence[str]) -> list[ToolRecord]:
        """Return the messages with these ids that exist, in the order of `ids`."""
        cached = await self.reader.find(scope)
        if cached is None:
            return []
        async with self.reader.reading(cached):
            rows = await self.reader.messages_by_id(cached, ids)
            messages = [row.message for row in rows.values()]
            payloads = await self.reader.payloads_of(cached, messages)

            def decode() -> dict[str, ToolRecord]:
                return {id_: self._record(row, payloads.get(id_)) for id_, row in rows.items()}

            records = await run_in_thread_if_long(
                decode, characters=characters_of(messages, payloads)
            )
        return [records[id_] for id_ in ids if id_ in records]

    async def all(self, scope: Scope, *, rewound: bool) -> AsyncGenerator[BaseMessage, None]:
        """Yield the messages of the log in order, with or without rewound ones. Reads in batches."""
        check_flags(rewound=rewound)
        async with aclosing(self.reader.walk(scope, rewound=rewound)) as entries:
            async for cached, entry in entries:
                async with self.reader.reading(cached):
                    messages = await self.reader.decode_all(cached, entry.messages)
                for message in messages:
                    yield message

    async def page(
        self, scope: Scope, *, limit: int, full: bool, rewound: bool, **span: int | None
    ) -> list[StoredMessage]:
        """Return messages before, after or around an ordinal, or the last ones, oldest first.

        See `Conversation.list_messages` for the options.
        """
        check_flags(full=full, rewound=rewound)
        given = {name: ordinal for name, ordinal in span.items() if ordinal is not None}
        if len(given) > 1:
            raise InvalidInputError("pass only one of before=, after= and around=")
        check_ordinals(**given)
        check_number(limit, name="limit", minimum=1, maximum=_MAX_PAGE)
        cached = await self.reader.find(scope)
        if cached is None:
            return []
        async with self.reader.reading(cached):
            rows, log = await self._rows(cached, given, limit, everything=rewound)
            return await self.listed(log, rows, full=full)

    async def listed(
        self, log: Snapshot, rows: Sequence[Row], *, full: bool
    ) -> list[StoredMessage]:
        """Return rows as `StoredMessage`, in full or in the form in which views show them."""
        stored = [row.message for row in rows]
        cached = log.cached
        messages = await self.reader.decode_all(cached, stored, whole=full)
        annotations = await self._annotator.of(cached, [message.ordinal for message in stored])
        ids = await self._question_ids(log, stored)
        return [
            StoredMessage(
                ordinal=item.ordinal,
                created_at=row.entry.at,
                message=message,
                turn_id=ids.get(turn_shown(item, log), ""),
                annotations=annotations.get(item.ordinal, {}),
                stamp=stored_stamp(cached.conversation, item),
                tokens=item.tokens,
                is_rewound=not log.active.has(item.ordinal),
                is_failed=item.is_failed,
            )
            for row, item, message in zip(rows, stored, messages, strict=True)
        ]

    async def _question_ids(
        self, log: Snapshot, messages: Sequence[EntryMessage]
    ) -> dict[int, str]:
        """Return the ids of the questions of messages, by ordinal. One round trip for questions that are not given."""
        ids = {message.ordinal: message.id for message in messages if message.begins_turn}
        wanted = {turn_shown(message, log) for message in messages}
        missing = wanted - ids.keys() - {0}
        with suppress(CorruptDocumentError):  # the rest of the log stays readable
            ids |= await self.reader.log.ids_at(log.cached.conversation, missing)
        return ids

    async def _rows(
        self, cached: CachedConversation, given: dict[str, int], limit: int, *, everything: bool
    ) -> tuple[list[Row], Snapshot]:
        page = partial(read_page, self.reader, cached, everything=everything)
        if "around" not in given:
            return await page(before=given.get("before"), after=given.get("after"), limit=limit)
        rows, log = await page(before=given["around"] + 1, limit=limit // 2 + 1)
        if further := limit - len(rows):
            rows += (await page(after=given["around"], limit=further))[0]
        return rows, log

    def _record(self, row: StoredMessageRow, payload: str | None) -> ToolRecord:
        message = read_message(self._codec, row.message, payload or "")
        result = message if isinstance(message, ToolMessage) else None
        values = {
            "tool_message_id": row.message.id,
            "tool_call_id": result.tool_call_id if result else "",
            "tool": row.message.tool,
            "status": result.status if result else "success",
            "is_failed": row.message.is_failed,
            "content": message.content,
            "artifact": result.artifact if result else None,
            "sources": [self._source(source, payload) for source in row.sources],
            "ordinal": row.message.ordinal,
            "created_at": row.entry.at,
        }
        return new_model(ToolRecord, values, fields_set=set(values))

    def _source(self, source: EntrySource, payload: str | None) -> Source:
        """Decode a source from its message's payload, or from its entry if the message is small."""
        held = source.piece or payload or ""
        check_source(source, held)
        place = source.place
        try:
            found = read_item(self._codec, held[place.middle : place.end])
        except ValueError as error:
            raise CorruptDocumentError(source.entry, f"source {source.id}: {error}") from error
        return make_source(source, found, content=held[place.start : place.middle])

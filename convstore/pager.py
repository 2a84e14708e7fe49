"""Reads tool results back page by page, made for a model that reads them.

Layer 4, on the reader. What can be read of a message is a row of passages: its sources, then its content, then what
else its artifact holds. A page is cut from them by size; only the chunks of the payload that it shows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.codec import Codec, PayloadRange, decode_message
from convstore.entries import EntrySource, PayloadRef
from convstore.exceptions import CorruptDocumentError
from convstore.known import Scope
from convstore.models import Source, SourcePage
from convstore.reader import Reader
from convstore.repository import StoredMessageRow
from convstore.scopes import MAX_IDS, id_problem
from convstore.sources import source_in
from convstore.stubs import text_of
from convstore.tokens import CHARACTERS_PER_TOKEN

__all__ = ["Pager"]

_SHORTEST = 200
_SUGGESTED = 5
_LABEL_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class _Passage:
    """Something that is read from its beginning to its end: a text at hand, or a range of a payload."""

    key: str
    label: str
    length: int
    text: str = ""
    ref: PayloadRef | None = None
    start: int = 0
    source: EntrySource | None = None


class Pager:
    """Cuts what a model asks for into pages."""

    def __init__(self, reader: Reader, *, codec: Codec) -> None:
        self._reader, self._codec = reader, codec

    async def read(self, scope: Scope, ids: Sequence[str], *, cursor: str, page_tokens: int) -> tuple[str, SourcePage]:
        """One page of some messages, as text for the model and as values for the program.

        Ids that can not be found are named in both; nothing that a model sends raises.
        """
        wanted = list(dict.fromkeys(ids))[:MAX_IDS]
        rows = await self._reader.messages_by_id(scope, [id_ for id_ in wanted if not id_problem(id_)])
        not_found = [id_ for id_ in wanted if id_ not in rows]
        passages = [passage for id_ in wanted if id_ in rows for passage in self._passages(rows[id_])]
        place, offset = _find(passages, cursor)
        lines: list[str] = []
        sources: list[Source] = []
        following: str | None = None
        if place is None:
            lines.append(f"Unknown cursor {cursor[:50]!r}. Ask again without a cursor.")
        else:
            lines, sources, following = await self._page(scope, passages[place:], offset, page_tokens)
        if not_found:
            lines.append(await self._not_found(scope, not_found))
        lines.append(f'More: cursor="{following}"' if following else "End.")
        return "\n".join(lines), SourcePage(sources=sources, not_found=not_found, next_cursor=following)

    async def _page(
        self, scope: Scope, passages: Sequence[_Passage], offset: int, page_tokens: int
    ) -> tuple[list[str], list[Source], str | None]:
        lines: list[str] = []
        sources: list[Source] = []
        room = page_tokens * CHARACTERS_PER_TOKEN - _SHORTEST
        for passage in passages:
            room -= len(passage.label) + 60
            end = min(passage.length, offset + max(room, 0))
            if lines and (room < _SHORTEST and end < passage.length):
                return lines, sources, f"{passage.key}@{offset}"
            text = await self._text(scope, passage, offset, end)
            lines.append(f"{_one_line(passage.label)}, characters {offset}-{end} of {passage.length}\n{text}")
            if passage.source:
                sources.append(await self._source(scope, passage, text))
            if end < passage.length:
                return lines, sources, f"{passage.key}@{end}"
            room -= end - offset
            offset = 0
        return lines, sources, None

    def _passages(self, row: StoredMessageRow) -> list[_Passage]:
        message, ref = row.message, row.message.payload
        try:
            decoded = decode_message(self._codec, message.body)
        except ValueError as error:
            raise CorruptDocumentError(message.id, str(error)) from error
        placed = [source for source in row.sources if source.place] if ref else []
        texts = [_of_source(source, ref) for source in placed]
        content = _of_value(message.id, message.tool or message.type, decoded.content, ref)
        rest = _rest(decoded, ref, has_places=bool(placed))
        return [*texts, *content, *rest]

    async def _text(self, scope: Scope, passage: _Passage, start: int, end: int) -> str:
        if passage.ref is None:
            return passage.text[start:end]
        return await self._reader.payload_range(scope, passage.ref, passage.start + start, passage.start + end)

    async def _source(self, scope: Scope, passage: _Passage, text: str) -> Source:
        source = passage.source
        assert source is not None  # noqa: S101 - asked by the caller
        return Source(
            source_id=source.id,
            title=source.title,
            url=source.url,
            content=text,
            metadata=await self._metadata(scope, passage),
            tool_message_id=source.message_id,
        )

    async def _metadata(self, scope: Scope, passage: _Passage) -> dict[str, Any]:
        place = passage.source.place if passage.source else None
        if place is None or passage.ref is None:
            return {}
        item = await self._reader.payload_range(scope, passage.ref, place.middle, place.end)
        found = source_in(self._codec.decode(item, fetch=lambda _start, _end: ""))
        return found.metadata if found else {}

    async def _not_found(self, scope: Scope, ids: Sequence[str]) -> str:
        valid = [message.id for message in await self._reader.newest_results(scope, limit=_SUGGESTED)]
        named = ", ".join(id_[:100] if isinstance(id_, str) else repr(id_)[:100] for id_ in ids[:20])
        return f"Not found: {named}." + (f" Valid ids: {', '.join(valid)}." if valid else "")


def _find(passages: Sequence[_Passage], cursor: str) -> tuple[int | None, int]:
    """The passage and character that a cursor names; the beginning for an empty one."""
    if not cursor:
        return 0, 0
    key, _, offset = cursor.rpartition("@")
    place = next((place for place, passage in enumerate(passages) if passage.key == key), None)
    if place is None or not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        return None, 0
    return place, min(int(offset), passages[place].length)


def _one_line(label: str) -> str:
    """A title as part of a header: what a source calls itself can not pass for a line of ours."""
    return " ".join(label.split())


def _of_source(source: EntrySource, ref: PayloadRef | None) -> _Passage:
    place = source.place
    assert place is not None  # noqa: S101 - filtered by the caller
    # An item without a text of its own is read as it is.
    start, end = (place.start, place.middle) if place.middle > place.start else (place.middle, place.end)
    named = " ".join(filter(None, [source.title, f"({source.url})" if source.url else ""]))
    return _Passage(
        key=str(source.id),
        label=f"[{source.id}] {named}".strip()[:_LABEL_CHARACTERS],
        length=end - start,
        ref=ref,
        start=start,
        source=source,
    )


def _of_value(key: str, label: str, value: Any, ref: PayloadRef | None) -> list[_Passage]:
    """A content or an artifact as passages; what lies in the payload in pieces of its own."""
    if isinstance(value, PayloadRange):
        return [_Passage(key=key, label=label, length=value.end - value.start, ref=ref, start=value.start)]
    if isinstance(value, list) and any(isinstance(part, PayloadRange) for part in value):
        return [
            passage
            for place, part in enumerate(value, 1)
            for passage in _of_value(f"{key}#{place}", f"{label}, part {place}", part, ref)
        ]
    text = text_of(value)
    return [_Passage(key=key, label=label, length=len(text), text=text)]


def _rest(message: BaseMessage, ref: PayloadRef | None, *, has_places: bool) -> list[_Passage]:
    """The artifact, unless all that it holds is read as sources; and whatever else stands outside the entry."""
    found: list[tuple[str, Any]] = []
    if isinstance(message, ToolMessage) and message.artifact is not None and not has_places:
        found.append(("artifact", message.artifact))
    calls = [*getattr(message, "tool_calls", []), *getattr(message, "invalid_tool_calls", [])]
    found += [(f"arguments {place} of {call.get('name')}", call.get("args")) for place, call in enumerate(calls, 1)]
    for name, value in {**message.__dict__, **(message.__pydantic_extra__ or {})}.items():
        if name not in ("content", "artifact"):
            parts = {f"{name}.{key}": part for key, part in value.items()} if type(value) is dict else {name: value}
            found += parts.items()
    return [
        passage
        for label, value in found
        if isinstance(value, PayloadRange) or label == "artifact"
        for passage in _of_value(f"{message.id}#{label.replace(' ', '-')}", label, value, ref)
    ]

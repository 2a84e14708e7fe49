"""Reads what views leave out, page by page, made for a model that reads it.

Layer 4, on the reader. What can be read of a message is a row of passages: its sources, then its content, then what
else of it stands outside the entry. A page is cut from passages by size, or shows only what is around the matches of a
text; only the chunks of a payload that it needs are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convstore.codec import Codec, decode_message
from convstore.exceptions import CorruptDocumentError, InvalidCursorError
from convstore.known import Known, Scope
from convstore.models import Source, SourcePage
from convstore.passages import Passage, passage_of_source, passages_of, snippets
from convstore.reader import Reader
from convstore.repository import StoredMessageRow
from convstore.scopes import MAX_IDS, id_problem
from convstore.sources import source_in
from convstore.tokens import CHARACTERS_PER_TOKEN

__all__ = ["Pager", "Request"]

_SHORTEST = 200
_SUGGESTED = 5
_LISTED = 20
_READ_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, in the order in which it is shown.

    Attributes:
        tool_message_ids: Messages, each with its sources.
        source_ids: Single sources.
        find: Show only what is around this text, in any case; "" for everything.
        cursor: Where the page before ended; "" for the first page.
        page_tokens: Size of a page.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = 4_000


class Pager:
    """Cuts what a model or a program asks for into pages."""

    def __init__(self, reader: Reader, *, codec: Codec) -> None:
        self._reader, self._codec = reader, codec

    async def read(self, scope: Scope, request: Request) -> tuple[str, SourcePage]:
        """One page as text for the model and as values for the program.

        What can not be found is named in both; nothing that a model sends raises.
        """
        known = await self._reader.find(scope)
        if not request.tool_message_ids and not request.source_ids:
            return await self._listing(known), SourcePage()
        if known is None:
            missing = _names(request)
            return f"{_not_found(missing, [])}\nEnd.", SourcePage(not_found=missing)
        async with self._reader.reading(known):
            return await self._read(known, request)

    async def sources(self, scope: Scope, request: Request) -> SourcePage:
        """One page of sources alone.

        Raises:
            InvalidCursorError: The cursor is not of this request.
        """
        known = await self._reader.find(scope)
        if known is None:
            return SourcePage(not_found=_names(request))
        async with self._reader.reading(known):
            passages, not_found = await self._collect(known, request)
            passages = [passage for passage in passages if passage.source]
            place, offset = _find(passages, request.cursor)
            if place is None:
                raise InvalidCursorError(
                    f"{request.cursor[:50]!r} is not a cursor of this call; begin again without one"
                )
            page = _Page(room=request.page_tokens * CHARACTERS_PER_TOKEN)
            await self._fill(known, page, passages[place:], offset, request.find)
        return SourcePage(sources=page.sources, not_found=not_found, next_cursor=page.following or None)

    async def _read(self, known: Known, request: Request) -> tuple[str, SourcePage]:
        passages, not_found = await self._collect(known, request)
        place, offset = _find(passages, request.cursor)
        lines: list[str] = []
        page = _Page(room=request.page_tokens * CHARACTERS_PER_TOKEN - _SHORTEST)
        if place is None:
            lines.append(f"Unknown cursor {request.cursor[:50]!r}. Ask again without a cursor.")
        else:
            await self._fill(known, page, passages[place:], offset, request.find)
            lines += page.lines or ([f"No match for {request.find[:50]!r}."] if request.find and passages else [])
        if not_found:
            valid = await self._reader.newest_results(known, limit=_SUGGESTED)
            lines.append(_not_found(not_found, [message.id for message in valid]))
        lines.append(f'More: cursor="{page.following}"' if page.following else "End.")
        following = page.following or None
        return "\n".join(lines), SourcePage(sources=page.sources, not_found=not_found, next_cursor=following)

    async def _collect(self, known: Known, request: Request) -> tuple[list[Passage], list[int | str]]:
        """The passages of what is asked for, and what is not in the conversation."""
        ids = list(dict.fromkeys(request.tool_message_ids))[:MAX_IDS]
        numbers = list(dict.fromkeys(request.source_ids))
        valid = [id_ for id_ in ids if not id_problem(id_)]
        rows = await self._reader.messages_by_id(known, valid) if valid else {}
        found = await self._reader.sources_by_id(known, numbers) if numbers else {}
        passages = [passage for id_ in ids if id_ in rows for passage in self._passages(rows[id_])]
        for number in numbers:
            if number in found:
                row, source = found[number]
                passages.append(passage_of_source(source, row, self._decode(row)))
        missing: list[int | str] = [id_ for id_ in ids if id_ not in rows]
        missing += [number for number in numbers if number not in found]
        return list({passage.key: passage for passage in passages}.values()), missing

    async def _fill(self, known: Known, page: _Page, passages: Sequence[Passage], offset: int, find: str) -> None:
        for passage in passages:
            if find:
                await self._fill_matches(known, page, passage, offset, find)
            else:
                await self._fill_text(known, page, passage, offset)
            if page.following:
                return
            offset = 0

    async def _fill_text(self, known: Known, page: _Page, passage: Passage, offset: int) -> None:
        page.room -= passage.overhead
        end = min(passage.length, offset + max(page.room, 0))
        if page.lines and page.room < _SHORTEST and end < passage.length:
            page.following = f"{passage.key}@{offset}"
            return
        await self._show(known, page, passage, offset, end)
        if end < passage.length:
            page.following = f"{passage.key}@{end}"

    async def _fill_matches(self, known: Known, page: _Page, passage: Passage, offset: int, find: str) -> None:
        """Show what is around each match from a place on; reads a long passage piece by piece."""
        while offset < passage.length:
            end = min(passage.length, offset + _READ_AT_ONCE)
            text = await self._text(known, passage, offset, end)
            for start, stop in snippets(text, find):
                if page.lines and page.room < min(stop - start, _SHORTEST) + passage.overhead:
                    page.following = f"{passage.key}@{offset + start}"
                    return
                page.room -= passage.overhead
                shown = min(stop, start + max(page.room, _SHORTEST))
                await self._show(known, page, passage, offset + start, offset + shown)
                if shown < stop:
                    page.following = f"{passage.key}@{offset + max(start + 1, shown - len(find))}"
                    return
            # A match may lie across the end of a piece.
            offset = end if end == passage.length else end - len(find)

    async def _show(self, known: Known, page: _Page, passage: Passage, start: int, end: int) -> None:
        text = await self._text(known, passage, start, end)
        page.room -= end - start
        page.lines.append(f"{passage.label}, characters {start}-{end} of {passage.length}\n{text}")
        if passage.source:
            page.sources.append(await self._source(known, passage, text))

    def _passages(self, row: StoredMessageRow) -> list[Passage]:
        return passages_of(row, self._decode(row))

    def _decode(self, row: StoredMessageRow) -> Any:
        try:
            return decode_message(self._codec, row.message.body)
        except ValueError as error:
            raise CorruptDocumentError(row.message.id, str(error)) from error

    async def _text(self, known: Known, passage: Passage, start: int, end: int) -> str:
        if passage.ref is None:
            return passage.text[start:end]
        return await self._reader.payload_range(known, passage.ref, passage.start + start, passage.start + end)

    async def _source(self, known: Known, passage: Passage, text: str) -> Source:
        source = passage.source
        assert source is not None  # noqa: S101 - asked by the caller
        return Source(
            source_id=source.id,
            title=source.title,
            url=source.url,
            content=text,
            metadata=await self._metadata(known, passage),
            tool_message_id=source.message_id,
        )

    async def _metadata(self, known: Known, passage: Passage) -> dict[str, Any]:
        place = passage.source.place if passage.source else None
        if place is None or passage.ref is None:
            return passage.metadata
        item = await self._reader.payload_range(known, passage.ref, place.middle, place.end)
        found = source_in(self._codec.decode(item, fetch=lambda _start, _end: ""))
        return found.metadata if found else {}

    async def _listing(self, known: Known | None) -> str:
        """What can be read, for a model that names nothing."""
        results = await self._reader.newest_results(known, limit=_LISTED) if known else []
        if not results:
            return "There are no tool results in this conversation yet."
        lines = [
            f"{result.id}: {result.tool or 'tool'}" + (f", source ids {result.sources}" if result.sources else "")
            for result in results
        ]
        return "\n".join(["Tool results that can be read, newest first (tool_message_id: tool, source ids):", *lines])


def _names(request: Request) -> list[int | str]:
    return [*request.tool_message_ids[:MAX_IDS], *request.source_ids]


def _not_found(names: Sequence[int | str], valid: Sequence[str]) -> str:
    named = ", ".join(str(name)[:100] for name in names[:20])
    return f"Not found: {named}." + (f" Valid ids: {', '.join(valid)}." if valid else "")


@dataclass(slots=True)
class _Page:
    """A page that is being filled."""

    room: int
    lines: list[str]
    sources: list[Source]
    following: str

    def __init__(self, *, room: int) -> None:
        self.room, self.lines, self.sources, self.following = room, [], [], ""


def _find(passages: Sequence[Passage], cursor: str) -> tuple[int | None, int]:
    """The passage and character that a cursor names; the beginning for an empty one."""
    if not cursor:
        return 0, 0
    key, _, offset = cursor.rpartition("@")
    place = next((place for place, passage in enumerate(passages) if passage.key == key), None)
    if place is None or not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        return None, 0
    return place, min(int(offset), passages[place].length)

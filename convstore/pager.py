"""Reads what views leave out, page by page, made for a model that reads it.

Layer 4, on the reader. What can be read of a message is a row of passages: its sources, then its content, then what
else of it stands outside the entry. A page is cut from passages by size, or shows only what is around the matches of a
text; what it shows is then read at once, and only the chunks of payloads that hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from convstore.codec import Codec, decode_message
from convstore.entries import PayloadRef
from convstore.exceptions import CorruptDocumentError, InvalidCursorError
from convstore.known import Known, Scope
from convstore.models import Source, SourcePage
from convstore.passages import Cursor, Passage, make_source, passage_of_source, passages_of, read_cursor, snippets
from convstore.reader import Reader
from convstore.repository import StoredMessageRow
from convstore.scopes import MAX_IDS, id_problem
from convstore.tokens import CHARACTERS_PER_TOKEN

__all__ = ["Pager", "Request"]

_LEAST_TEXT = 200
_LAST_LINE = 60
_SUGGESTED = 5
_LISTED = 20
_READ_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, in the order in which it is shown.

    Attributes:
        tool_message_ids: Messages, each with its sources; or tool calls, each with its results.
        source_ids: Single sources.
        find: Show only what is around this text, in any case; "" for everything.
        cursor: Where the page before ended; "" for the first page. Alone it goes on in its passage.
        page_tokens: Size of a page.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = 4_000

    @property
    def characters(self) -> int:
        """Size of a page."""
        return self.page_tokens * CHARACTERS_PER_TOKEN

    @property
    def names(self) -> list[int | str]:
        """Everything that is asked for by name."""
        return [*dict.fromkeys(self.tool_message_ids[:MAX_IDS]), *dict.fromkeys(self.source_ids)]


@dataclass(slots=True)
class _Part:
    """What a page shows of a passage."""

    passage: Passage
    start: int
    end: int
    text: str = ""
    item: str = ""

    @property
    def header(self) -> str:
        return f"{self.passage.label}, characters {self.start}-{self.end} of {self.passage.length}"


@dataclass(slots=True)
class _Page:
    """A page that is being filled; `room` is what is left of it, in characters."""

    room: int
    parts: list[_Part] = field(default_factory=list)
    following: str = ""

    def add(self, passage: Passage, start: int, end: int) -> None:
        self.room -= passage.overhead + end - start
        self.parts.append(_Part(passage, start, end))


class Pager:
    """Cuts what a model or a program asks for into pages."""

    def __init__(self, reader: Reader, *, codec: Codec) -> None:
        self._reader, self._codec = reader, codec

    async def read(self, scope: Scope, request: Request) -> tuple[str, SourcePage]:
        """One page as text for the model and as values for the program.

        What can not be found is named in both; nothing that a model sends raises.
        """
        known = await self._reader.find(scope)
        if not request.names and not request.cursor:
            return await self._listing(known, request.characters), SourcePage()
        if known is None:
            missing = request.names
            return "\n".join([*_not_found(missing, [], request), "End."]), SourcePage(not_found=missing)
        async with self._reader.reading(known):
            return await self._read(known, request)

    async def sources(self, scope: Scope, request: Request) -> SourcePage:
        """One page of sources alone.

        Raises:
            InvalidCursorError: The cursor is not of this request.
        """
        known = await self._reader.find(scope)
        if known is None:
            return SourcePage(not_found=request.names)
        async with self._reader.reading(known):
            passages, not_found = await self._collect(known, request)
            passages = [passage for passage in passages if passage.source]
            page = await self._page(known, request, passages, room=request.characters)
            if page is None:
                raise InvalidCursorError(
                    f"{request.cursor[:50]!r} is not a cursor of this call; begin again without one"
                )
            return SourcePage(sources=self._sources(page), not_found=not_found, next_cursor=page.following or None)

    async def _read(self, known: Known, request: Request) -> tuple[str, SourcePage]:
        passages, not_found = await self._collect(known, request)
        valid = await self._reader.newest_results(known, limit=_SUGGESTED) if not_found else []
        lines = _not_found(not_found, [message.id for message in valid], request)
        room = request.characters - sum(len(line) + 1 for line in lines) - _LAST_LINE
        page = await self._page(known, request, passages, room=room)
        if page is None:
            shown = [f"Unknown cursor {request.cursor[:50]!r}. Ask again without a cursor."]
            return "\n".join([*shown, *lines, "End."]), SourcePage(not_found=not_found)
        shown = [f"{part.header}\n{part.text}" for part in page.parts]
        if request.find and passages and not shown:
            shown = [f"No match for {request.find[:50]!r}."]
        last = f'More: cursor="{page.following}"' if page.following else "End."
        artifact = SourcePage(sources=self._sources(page), not_found=not_found, next_cursor=page.following or None)
        return "\n".join([*shown, *lines, last]), artifact

    async def _collect(self, known: Known, request: Request) -> tuple[list[Passage], list[int | str]]:
        """The passages of what is asked for, and what is not in the conversation."""
        if not request.names:
            return await self._collect_at(known, read_cursor(request.cursor)), []
        rows, missing_ids = await self._find_messages(known, request.tool_message_ids[:MAX_IDS])
        numbers = list(dict.fromkeys(request.source_ids))
        found = await self._reader.sources_by_id(known, numbers) if numbers else {}
        passages = [passage for row in rows for passage in self._passages(row)]
        passages += [passage_of_source(found[number][1], found[number][0]) for number in numbers if number in found]
        missing_numbers = [number for number in numbers if number not in found]
        return list({passage.key: passage for passage in passages}.values()), [*missing_ids, *missing_numbers]

    async def _collect_at(self, known: Known, cursor: Cursor | None) -> list[Passage]:
        """The passage that a cursor goes on in."""
        if cursor is None:
            return []
        if cursor.source_id is not None:
            found = await self._reader.sources_by_id(known, [cursor.source_id])
            return [passage_of_source(source, row) for row, source in found.values()]
        rows = await self._reader.message_at(known, cursor.ordinal or 0)
        return [passage for row in rows for passage in self._passages(row) if passage.key == cursor.key]

    async def _find_messages(self, known: Known, ids: Sequence[str]) -> tuple[list[StoredMessageRow], list[str]]:
        """Messages by their ids, and results by those of their calls; and the ids that are of neither."""
        ids = list(dict.fromkeys(ids))
        valid = [id_ for id_ in ids if not id_problem(id_)]
        by_id = await self._reader.messages_by_id(known, valid) if valid else {}
        calls = [id_ for id_ in valid if id_ not in by_id]
        results = await self._reader.messages_by_call(known, calls) if calls else []
        rows: list[StoredMessageRow] = []
        missing = []
        for id_ in ids:
            found = [by_id[id_]] if id_ in by_id else [row for row in results if row.message.call == id_]
            rows += found
            missing += [] if found else [id_]
        return rows, missing

    async def _page(self, known: Known, request: Request, passages: Sequence[Passage], *, room: int) -> _Page | None:
        """The page that begins at the request's cursor; None if that names no place in these passages."""
        place, offset = 0, 0
        if request.cursor:
            cursor = read_cursor(request.cursor)
            keys = [passage.key for passage in passages]
            if cursor is None or cursor.key not in keys:
                return None
            place, offset = keys.index(cursor.key), cursor.offset
        page = _Page(room)
        for passage in passages[place:]:
            if request.find:
                await self._fill_matches(known, page, passage, min(offset, passage.length), request.find)
            else:
                _fill_text(page, passage, min(offset, passage.length))
            if page.following:
                break
            offset = 0
        await self._load(known, page)
        return page

    async def _fill_matches(self, known: Known, page: _Page, passage: Passage, offset: int, find: str) -> None:
        """Show what is around each match from a place on; reads a long passage piece by piece."""
        while offset < passage.length:
            end = min(passage.length, offset + _READ_AT_ONCE)
            text = await self._text(known, passage, offset, end)
            for start, stop in ((offset + start, offset + stop) for start, stop in snippets(text, find)):
                room = page.room - passage.overhead
                if page.parts and room < min(stop - start, _LEAST_TEXT):
                    page.following = f"{passage.key}@{start}"
                    return
                shown = min(stop, start + max(room, len(find)))
                page.add(passage, start, shown)
                if shown < stop:
                    page.following = f"{passage.key}@{max(start + 1, shown - len(find))}"
                    return
            # A match may lie across the end of a piece.
            offset = end if end == passage.length else end - len(find)

    async def _text(self, known: Known, passage: Passage, start: int, end: int) -> str:
        if passage.ref is None:
            return passage.text[start:end]
        [text] = await self._reader.payload_ranges(known, [(passage.ref, passage.start + start, passage.start + end)])
        return text

    async def _load(self, known: Known, page: _Page) -> None:
        """Read what the page shows, and what the tool said of the sources on it; at once for each append."""
        wanted: list[tuple[PayloadRef, int, int]] = []
        for part in page.parts:
            passage = part.passage
            if passage.ref is not None:
                wanted.append((passage.ref, passage.start + part.start, passage.start + part.end))
                wanted += [(passage.ref, *passage.item_range)] if passage.source else []
        texts = iter(await self._reader.payload_ranges(known, wanted))
        for part in page.parts:
            passage = part.passage
            if passage.ref is not None:
                part.text = next(texts)
                part.item = next(texts) if passage.source else ""
            else:
                part.text = passage.text[part.start : part.end]
                part.item = passage.source.piece[slice(*passage.item_range)] if passage.source else ""

    def _passages(self, row: StoredMessageRow) -> list[Passage]:
        try:
            return passages_of(row, decode_message(self._codec, row.message.body))
        except ValueError as error:
            raise CorruptDocumentError(row.message.id, str(error)) from error

    def _sources(self, page: _Page) -> list[Source]:
        return [self._source(part) for part in page.parts if part.passage.source]

    def _source(self, part: _Part) -> Source:
        source = part.passage.source
        assert source is not None  # noqa: S101 - asked by the caller
        try:
            return make_source(self._codec, source, content=part.text, item=part.item)
        except ValueError as error:
            raise CorruptDocumentError(source.message_id, str(error)) from error

    async def _listing(self, known: Known | None, characters: int) -> str:
        """What can be read, for a model that names nothing."""
        results = await self._reader.newest_results(known, limit=_LISTED) if known else []
        if not results:
            return "There are no tool results in this conversation yet."
        text = "Tool results that can be read, newest first (tool_message_id: tool and its arguments, source ids):"
        for result in results:
            called = f"{result.tool or 'tool'} {result.arguments}".strip()
            line = f"\n{result.id}: {called}" + (f", source ids {result.sources}" if result.sources else "")
            if len(text) + len(line) > characters:
                break
            text += line
        return text


def _fill_text(page: _Page, passage: Passage, offset: int) -> None:
    """Show as much of a passage as there is room for."""
    room = page.room - passage.overhead
    left = passage.length - offset
    if page.parts and room < min(left, _LEAST_TEXT):
        page.following = f"{passage.key}@{offset}"
        return
    end = min(passage.length, offset + max(room, 1))
    page.add(passage, offset, end)
    if end < passage.length:
        page.following = f"{passage.key}@{end}"


def _not_found(names: Sequence[int | str], valid: Sequence[str], request: Request) -> list[str]:
    """A line that says what is not there and what could be asked for, in a quarter of a page; none if all is there."""
    if not names:
        return []
    room = request.characters // 4
    line = "Not found: " + ", ".join(str(name)[:60] for name in names[:20])[: room // 2] + "."
    ids = [id_ for place, id_ in enumerate(valid) if sum(map(len, valid[: place + 1])) < room // 2]
    return [line + (f" Valid ids: {', '.join(ids)}." if ids else "")]

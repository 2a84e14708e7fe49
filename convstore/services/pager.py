"""Reads what views leave out, page by page, made for a model that reads it.

Layer 4, on the reader. What can be read of a message is a row of passages: its sources, then its content, then what
else of it stands outside the entry. A page is cut from passages by size, or shows only what is around the matches of a
text; what it shows is then read at once, and only the chunks of payloads that hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from convstore.codec import Codec
from convstore.entries import PayloadRef
from convstore.entries.reading import read_message
from convstore.exceptions import CorruptDocumentError, InvalidCursorError, InvalidInputError
from convstore.models import Source, SourcePage
from convstore.repository import StoredMessageRow
from convstore.scopes import MAX_IDS, id_problem
from convstore.services.known import Known, Scope
from convstore.services.passages import (
    LABEL_CHARACTERS,
    Cursor,
    Passage,
    fold,
    in_line,
    make_source,
    matches,
    passage_of_source,
    passages_of,
    read_cursor,
    snippets,
)
from convstore.services.reader import Reader
from convstore.stubs import in_one_line
from convstore.tokens import CHARACTERS_PER_TOKEN

__all__ = ["Pager", "Request"]

_LEAST_TEXT = 200
_LAST_LINE = len('More: cursor="m1234567890.123@123456789"')
_SUGGESTED = 5
_REPEATED = "What follows is the result as the tool wrote it, most likely the same texts."
_LISTED = 20
_NAMED = 20
_NAME_CHARACTERS, _CALL_CHARACTERS = 60, 300
_MOST_APPENDS = 8
"""A page shows payloads of so many appends, as each of them is a command; a text is looked for in so many."""
_READ_AT_ONCE = 4_000_000
_MOST_ROUNDS = 4
"""A text is looked for in so many times so many characters; beyond, the page says where to go on."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, in the order in which it is shown.

    Attributes:
        tool_message_ids: Messages, each with its sources; or tool calls, each with its results.
        source_ids: Single sources.
        find: Show only what is around this text, in any case; "" for everything.
        cursor: Where the page before ended; "" for the first page. Alone it goes on in its passage.
        page_tokens: Size of a page.
        remarks: Lines for the model: what of its call is not done.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = 4_000
    remarks: Sequence[str] = ()

    @property
    def characters(self) -> int:
        """Size of a page."""
        return self.page_tokens * CHARACTERS_PER_TOKEN

    @property
    def names(self) -> list[int | str]:
        """Everything that is asked for by name."""
        return [*dict.fromkeys(self.tool_message_ids[:MAX_IDS]), *dict.fromkeys(self.source_ids)]


@dataclass(slots=True)
class _Piece:
    """A part of a passage, and what the tool said of the source that it is of; both are empty until they are read."""

    passage: Passage
    start: int
    end: int
    text: str = ""
    item: str = ""


@dataclass(slots=True)
class _Page:
    """A page that is being filled.

    Attributes:
        room: What is left of it, in characters.
        label: Most characters of the name of a passage.
        parts: What it shows.
        following: Where the next page begins, "" on the last.
        appends: Those that came with payloads it has to read.
    """

    room: int
    label: int
    parts: list[_Piece] = field(default_factory=list)
    following: str = ""
    appends: set[str] = field(default_factory=set)

    def room_for(self, passage: Passage) -> int:
        """Characters that are left for the text of a passage."""
        return self.room - passage.overhead(self.label)

    def add(self, part: _Piece) -> None:
        self.room -= part.passage.overhead(self.label) + part.end - part.start
        self.parts.append(part)
        if part.passage.ref is not None:
            self.appends.add(part.passage.ref.token)

    def may_read(self, passage: Passage) -> bool:
        """Whether a passage costs no command too many."""
        if passage.ref is None or passage.ref.token in self.appends:
            return True
        return len(self.appends) < _MOST_APPENDS

    @property
    def text(self) -> Iterator[str]:
        """The page as a model reads it."""
        for part in self.parts:
            yield f"{part.passage.header(part.start, part.end, most=self.label)}\n{part.text}"


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
            unknown = [] if missing else [_unknown_cursor(request)]
            return "\n".join([*unknown, *_remarks(missing, [], request), "End."]), SourcePage(not_found=missing)
        async with self._reader.reading(known):
            return await self._read(known, request)

    async def sources(self, scope: Scope, request: Request) -> SourcePage:
        """One page of sources alone.

        Raises:
            InvalidInputError: `find` is not a text of at most a quarter of a page.
            InvalidCursorError: The cursor is not of this request.
        """
        if not isinstance(request.find, str) or len(request.find) > request.characters // 4:
            raise InvalidInputError(
                f"find is a text of at most {request.characters // 4:,} characters, a quarter of a page"
            )
        known = await self._reader.find(scope)
        if known is None:
            return SourcePage(not_found=request.names)
        async with self._reader.reading(known):
            passages, not_found = await self._collect(known, request)
            passages = [passage for passage in passages if passage.source]
            page = await self._page(known, request, passages, room=request.characters)
            if page is None:
                raise InvalidCursorError(
                    f"{str(request.cursor)[:50]!r} is not a cursor of this call; begin again without one"
                )
            return SourcePage(sources=self._sources(page), not_found=not_found, next_cursor=page.following or None)

    async def _read(self, known: Known, request: Request) -> tuple[str, SourcePage]:
        passages, not_found = await self._collect(known, request)
        valid = await self._reader.newest_results(known, limit=_SUGGESTED) if not_found else []
        lines = _remarks(not_found, [message.id for message in valid], request)
        room = request.characters - sum(len(line) + 1 for line in lines) - _LAST_LINE
        page = await self._page(known, request, passages, room=room)
        if page is None:
            return "\n".join([_unknown_cursor(request), *lines, "End."]), SourcePage(not_found=not_found)
        shown, repeated = list(page.text), [f"{passage.key}@0" for passage in passages if passage.repeats]
        if request.find and passages and not shown:
            so_far = " in what was read so far" if page.following else ""
            shown = [f"No match for '{in_line(request.find, 50)}'{so_far}."]
        if page.following in repeated and not request.find and page.room > len(_REPEATED):
            lines.append(_REPEATED)
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
        by_id = await self._reader.messages_by_id(known, valid, is_sure=False) if valid else {}
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
        page = _Page(room, min(LABEL_CHARACTERS, request.characters // 8))
        if request.find:
            await self._fill_matches(known, page, passages[place:], offset, request.find)
        else:
            _fill_text(page, passages[place:], offset)
            await self._read_pieces(known, page.parts)
        return page

    async def _fill_matches(
        self, known: Known, page: _Page, passages: Sequence[Passage], offset: int, find: str
    ) -> None:
        """Show what is around each match, from a place of the first passage on; reads no more than is bounded."""
        for _ in range(_MOST_ROUNDS):
            pieces = _next_pieces(page, passages, offset)
            if not pieces:
                break
            await self._read_pieces(known, pieces)
            for piece in pieces:
                _fill_piece(page, piece, find)
                if page.following:
                    return
            last = pieces[-1]
            passages = passages[len({piece.passage.key for piece in pieces}) - 1 :]
            # A match may lie across the end of a piece.
            offset = last.end if last.end == last.passage.length else last.end - len(fold(find)) + 1
        left = [passage for place, passage in enumerate(passages) if place or offset < passage.length]
        if left:
            page.following = f"{left[0].key}@{offset if left[0] is passages[0] else 0}"

    async def _read_pieces(self, known: Known, pieces: Sequence[_Piece]) -> None:
        """Read the texts of some pieces, and what the tool said of their sources; at once for each append."""
        wanted: list[tuple[PayloadRef, int, int]] = []
        for piece in pieces:
            passage = piece.passage
            if passage.ref is not None:
                wanted.append((passage.ref, passage.start + piece.start, passage.start + piece.end))
                wanted += [(passage.ref, *passage.item_range)] if passage.source else []
        texts = iter(await self._reader.payload_ranges(known, wanted))
        for piece in pieces:
            passage = piece.passage
            if passage.ref is not None:
                piece.text = next(texts)
                piece.item = next(texts) if passage.source else ""
            else:
                piece.text = passage.text[piece.start : piece.end]
                piece.item = passage.source.piece[slice(*passage.item_range)] if passage.source else ""

    def _passages(self, row: StoredMessageRow) -> list[Passage]:
        return passages_of(row, read_message(self._codec, row.message))

    def _sources(self, page: _Page) -> list[Source]:
        return [self._source(part) for part in page.parts if part.passage.source]

    def _source(self, part: _Piece) -> Source:
        source = part.passage.source
        assert source is not None  # noqa: S101 - asked by the caller
        try:
            return make_source(self._codec, source, content=part.text, item=part.item)
        except ValueError as error:
            raise CorruptDocumentError(source.entry, f"source {source.id}: {error}") from error

    async def _listing(self, known: Known | None, characters: int) -> str:
        """What can be read, for a model that names nothing."""
        results = await self._reader.newest_results(known, limit=_LISTED) if known else []
        if not results:
            return "There are no tool results in this conversation yet."
        text = "Tool results that can be read, newest first (tool_message_id: tool and its arguments, source ids):"
        for result in results:
            called = in_line(f"{result.tool or 'tool'} {result.arguments}".strip(), _CALL_CHARACTERS)
            sources = f", source ids {result.sources}" if result.sources else ""
            line = f"\n{in_one_line(result.id)}: {called}{sources}"
            if len(text) + len(line) > characters:
                break
            text += line
        return text


def _fill_text(page: _Page, passages: Sequence[Passage], offset: int) -> None:
    """Show as much as there is room for, from a place of the first passage on."""
    for passage in passages:
        offset = min(offset, passage.length)
        room, left = page.room_for(passage), passage.length - offset
        repeats = passage.repeats and not offset
        if page.parts and (repeats or room < min(left, _LEAST_TEXT) or not page.may_read(passage)):
            page.following = f"{passage.key}@{offset}"
            return
        end = min(passage.length, offset + max(room, 1))
        page.add(_Piece(passage, offset, end))
        if end < passage.length:
            page.following = f"{passage.key}@{end}"
            return
        offset = 0


def _next_pieces(page: _Page, passages: Sequence[Passage], offset: int) -> list[_Piece]:
    """What to look into next: as much as is read at once, and of no more appends than a page may read."""
    pieces: list[_Piece] = []
    size = 0
    for passage in passages:
        if size >= _READ_AT_ONCE or not page.may_read(passage):
            break
        start = min(offset, passage.length)
        pieces.append(_Piece(passage, start, min(passage.length, start + _READ_AT_ONCE)))
        size += pieces[-1].end - start
        if passage.ref is not None:
            page.appends.add(passage.ref.token)
        offset = 0
    return pieces if any(piece.start < piece.end for piece in pieces) or len(pieces) < len(passages) else []


def _fill_piece(page: _Page, piece: _Piece, find: str) -> None:
    """Show what is around each match in a piece that is read, as long as there is room."""
    passage = piece.passage
    for start, stop in snippets(piece.text, find, most=page.room):
        room = page.room_for(passage)
        if page.parts and room < min(stop - start, _LEAST_TEXT):
            page.following = f"{passage.key}@{piece.start + start}"
            return
        end = _whole(piece.text, find, start, min(stop, start + room))
        page.add(_Piece(passage, piece.start + start, piece.start + end, piece.text[start:end], piece.item))
        if end < stop:
            page.following = f"{passage.key}@{piece.start + end}"
            return


def _whole(text: str, find: str, start: int, end: int) -> int:
    """Where to cut a text at the latest so that no match is cut in two."""
    around = text[start : end + len(fold(find))]
    cut = next((first for first, last in matches(around, find) if start + last > end), len(around))
    return min(end, start + cut) if cut else end


def _unknown_cursor(request: Request) -> str:
    return f"Unknown cursor '{in_line(request.cursor, 50)}'. Ask again without a cursor."


def _remarks(names: Sequence[int | str], valid: Sequence[str], request: Request) -> list[str]:
    """Lines that say what of a call is not done, in three eighths of a page at most."""
    lines = _not_found(names, valid, room=request.characters // 4)
    room = request.characters * 3 // 8 - sum(len(line) + 1 for line in lines)
    for remark in request.remarks:
        room -= len(remark) + 1
        lines += [remark] if room >= 0 else []
    return lines


def _not_found(names: Sequence[int | str], valid: Sequence[str], *, room: int) -> list[str]:
    """A line that says what is not there and what could be asked for; none if all is there."""
    if not names:
        return []
    named: list[str] = []
    left = room // 2 - len("Not found: , and 10000 more.")
    for name in names[:_NAMED]:
        text = in_line(name, min(_NAME_CHARACTERS, left)) if not named else in_line(name, _NAME_CHARACTERS)
        left -= len(text) + 2
        if named and left < 0:
            break
        named.append(text)
    more = f", and {len(names) - len(named)} more" if len(names) > len(named) else ""
    ids, left = list[str](), room // 2 - len(" Valid ids: .")
    for id_ in map(in_one_line, valid):
        left -= len(id_) + 2
        ids += [id_] if left >= 0 else []
    line = f"Not found: {', '.join(named)}{more}."
    return [line + (f" Valid ids: {', '.join(ids)}." if ids else "")]

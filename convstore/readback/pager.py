"""Serves the content that views leave out, as pages for a model or a program.

A message is read as a list of passages: its sources, its content, then other parts stored outside its entry. A page is
cut from passages by size, or shows only the text around matches. All texts of a page are read together, and only the
payload chunks that hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from convstore.exceptions import CorruptDocumentError, InvalidCursorError, InvalidInputError
from convstore.log.entry import EntryMessage, EntrySource, PayloadRef
from convstore.log.stored_message import read_message
from convstore.messages.text import fold
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, weight
from convstore.messages.values import Codec
from convstore.mongo.log import StoredMessageRow
from convstore.readback.page import (
    MAX_APPENDS,
    Page,
    Piece,
    fill_matches,
    fill_texts,
    next_texts,
    no_match,
    remarks,
    unknown_cursor,
)
from convstore.readback.passages import (
    Cursor,
    Passage,
    in_order,
    is_compared,
    passage_of_source,
    passages_of,
    read_cursor,
)
from convstore.readback.request import Request
from convstore.readback.source_values import page_source
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.places import read_item
from convstore.values.models import Source, SourcePage
from convstore.values.scope import MAX_IDS, Scope, id_problem

_LAST_LINE = len('More: cursor="m1234567890.123@123456789"')
_MESSAGE = 4 * CHARACTERS_PER_TOKEN
"""Characters that a message takes in addition to its text, by `approximate_tokens`."""
_MAX_SUGGESTED = 5
_READ_AT_ONCE = 4_000_000
_ITEMS_AT_ONCE = 1_000_000
"""Maximum number of characters read for the items of the sources on a page."""
_MAX_ROUNDS = 4
"""Maximum number of reads in one search of passages; then the page ends with a cursor to continue."""

_Range = tuple[PayloadRef, int, int]


class Pager:
    """Answers requests of a model or a program with pages."""

    def __init__(self, reader: LogReader, *, codec: Codec) -> None:
        self._reader, self._codec = reader, codec

    async def read(self, scope: Scope, request: Request) -> tuple[str, SourcePage]:
        """Return one page for some ids or a cursor, as text for the model and as values for the program.

        Both name the ids that were not found. The method never raises on invalid arguments from a model.
        """
        cached = await self._reader.find(scope)
        if cached is None:
            missing = request.names
            unknown = [] if missing else [unknown_cursor(request)]
            return "\n".join([*unknown, *remarks(missing, [], request), "End."]), SourcePage(not_found=missing)
        async with self._reader.reading(cached):
            return await self._read(cached, request)

    async def sources(self, scope: Scope, request: Request) -> SourcePage:
        """Return one page of sources only.

        Raises:
            InvalidInputError: `find` is not a text of at most a quarter of a page.
            InvalidCursorError: The cursor does not belong to this request.
        """
        if not isinstance(request.find, str) or weight(request.find) > request.characters // 4:
            raise InvalidInputError(
                f"find must be a text of at most {request.characters // 4:,} characters, a quarter of a page"
            )
        cached = await self._reader.find(scope)
        if cached is None:
            return SourcePage(not_found=request.names)
        async with self._reader.reading(cached):
            passages, not_found = await self._collect(cached, request, sources_only=True)
            page = await self._page(cached, request, passages, room=request.characters)
            if page is None:
                raise InvalidCursorError(
                    f"{str(request.cursor)[:50]!r} is not a cursor of this call; start again without a cursor"
                )
            return self._source_page(page, not_found, request)

    async def _read(self, cached: CachedConversation, request: Request) -> tuple[str, SourcePage]:
        passages, not_found = await self._collect(cached, request)
        valid = await self._reader.newest_results(cached, limit=_MAX_SUGGESTED) if not_found else []
        lines = remarks(not_found, [message.id for message in valid], request)
        room = request.characters - sum(weight(line) + 1 for line in lines) - _LAST_LINE - _MESSAGE
        page = await self._page(cached, request, passages, room=room)
        if page is None:
            return "\n".join([unknown_cursor(request), *lines, "End."]), SourcePage(not_found=not_found)
        shown, remark_of = list(page.text), {f"{passage.key}@0": passage.remark for passage in passages}
        if request.find and passages and not shown:
            shown = [no_match(request, page)]
        remark = remark_of.get(page.following, "")
        if remark and not request.find and page.room > len(remark):
            lines.append(remark)
        last = f'More: cursor="{page.following}"' if page.following else "End."
        return "\n".join([*shown, *lines, last]), self._source_page(page, not_found, request)

    async def _collect(
        self, cached: CachedConversation, request: Request, *, sources_only: bool = False
    ) -> tuple[list[Passage], list[int | str]]:
        """Return the passages of the requested ids, and the ids that the conversation does not have."""
        if not request.names:
            passages = await self._collect_at(cached, read_cursor(request.cursor))
            return [passage for passage in passages if passage.source or not sources_only], []
        rows, missing_ids = await self._find_messages(cached, request.tool_message_ids[:MAX_IDS])
        numbers = list(dict.fromkeys(request.source_ids))
        found = await self._reader.log.sources_by_id(cached.conversation, numbers) if numbers else {}
        if sources_only:
            passages = [passage_of_source(source, row, self._codec) for row in rows for source in row.sources]
        else:
            passages = await self._passages(rows, await self._compared(cached, rows, request))
        named = [found[number] for number in numbers if number in found]
        passages += [passage_of_source(source, row, self._codec) for row, source in named]
        missing_numbers = [number for number in numbers if number not in found]
        return in_order(passages), [*missing_ids, *missing_numbers]

    async def _collect_at(self, cached: CachedConversation, cursor: Cursor | None) -> list[Passage]:
        """Return the passage that a cursor continues."""
        if cursor is None:
            return []
        if cursor.source_id is not None:
            found = await self._reader.log.sources_by_id(cached.conversation, [cursor.source_id])
            return [passage_of_source(source, row, self._codec) for row, source in found.values()]
        row = await self._reader.log.message_at(cached.conversation, cursor.ordinal or 0)
        if row is None:
            return []
        payloads = await self._compared(cached, [row], Request(cursor=cursor.key))
        return [passage for passage in await self._passages([row], payloads) if passage.key == cursor.key]

    async def _find_messages(
        self, cached: CachedConversation, ids: Sequence[str]
    ) -> tuple[list[StoredMessageRow], list[str]]:
        """Return messages by message id or by the id of their call, and the ids that match neither."""
        ids = list(dict.fromkeys(ids))
        valid = [id_ for id_ in ids if not id_problem(id_)]
        by_id = await self._reader.messages_by_id(cached, valid, retry_if_stale=False) if valid else {}
        calls = [id_ for id_ in valid if id_ not in by_id]
        results = await self._reader.log.messages_by_call(cached.conversation, calls) if calls else []
        rows: list[StoredMessageRow] = []
        missing = []
        for id_ in ids:
            found = [by_id[id_]] if id_ in by_id else [row for row in results if row.message.call == id_]
            rows += found
            missing += [] if found else [id_]
        return rows, missing

    async def _page(
        self, cached: CachedConversation, request: Request, passages: Sequence[Passage], *, room: int
    ) -> Page | None:
        """Return the page that begins at the request's cursor; None if the cursor names none of these passages."""
        index, offset = 0, 0
        if request.cursor:
            cursor = read_cursor(request.cursor)
            keys = [passage.key for passage in passages]
            if cursor is None or cursor.key not in keys:
                return None
            index, offset = keys.index(cursor.key), cursor.offset
        offset = 0 if passages and passages[index].is_repeated else offset
        passages = [passage for passage in passages[index:] if not passage.is_repeated]
        page = Page(
            room, request.characters // 8, appends={one.compared_append for one in passages if one.compared_append}
        )
        if request.find:
            await self._fill_matches(cached, page, passages, offset, request.find)
        else:
            pieces, following = next_texts(page, passages, offset)
            await self._read_pieces(cached, pieces)
            fill_texts(page, pieces, following)
        return page

    async def _fill_matches(
        self, cached: CachedConversation, page: Page, passages: Sequence[Passage], offset: int, find: str
    ) -> None:
        """Add the text around each match, starting at an offset of the first passage; the reads are bounded."""
        for _ in range(_MAX_ROUNDS):
            pieces = _next_pieces(page, passages, offset)
            if not pieces:
                break
            await self._read_pieces(cached, pieces)
            await run_in_thread_if_long(
                partial(_fill, page, pieces, find), characters=sum(len(piece.text) for piece in pieces)
            )
            if page.following:
                return
            last = pieces[-1]
            passages = passages[len({piece.passage.key for piece in pieces}) - 1 :]
            # A match may extend across the end of a piece.
            offset = last.end if last.end == last.passage.length else last.end - len(fold(find)) + 1
        remaining = [passage for index, passage in enumerate(passages) if index or offset < passage.length]
        if remaining:
            page.following = f"{remaining[0].key}@{offset if remaining[0] is passages[0] else 0}"

    async def _read_pieces(self, cached: CachedConversation, pieces: Sequence[Piece]) -> None:
        """Read the texts of pieces and the items of their sources, with one read for each append."""
        wanted: list[_Range] = []
        room = _ITEMS_AT_ONCE
        for piece in pieces:
            passage = piece.passage
            if passage.ref is None:
                piece.text = passage.text[piece.start : piece.end]
                if passage.source:
                    self._read_item(piece, passage.source, passage.source.piece[slice(*_item(passage.source))])
                continue
            if not (passage.source and passage.source.place.is_inside):
                wanted.append((passage.ref, passage.start + piece.start, passage.start + piece.end))
            if passage.source and (passage.source.place.is_inside or passage.source.place.rest <= room):
                wanted.append((passage.ref, *_item(passage.source)))
                room -= passage.source.place.rest
        found = dict(zip(wanted, await self._reader.log.payload_ranges(cached.conversation, wanted), strict=True))
        for piece in pieces:
            passage = piece.passage
            if passage.ref is None:
                continue
            if passage.source and (item := found.get((passage.ref, *_item(passage.source)))) is not None:
                self._read_item(piece, passage.source, item)
            if passage.source and passage.source.place.is_inside:
                piece.text = piece.found.text[piece.start : piece.end] if piece.found else ""
            else:
                piece.text = found[passage.ref, passage.start + piece.start, passage.start + piece.end]

    def _read_item(self, piece: Piece, source: EntrySource, item: str) -> None:
        try:
            piece.found = read_item(self._codec, source.place, item)
        except ValueError as error:
            raise CorruptDocumentError(source.entry, f"source {source.id}: {error}") from error

    async def _compared(
        self, cached: CachedConversation, rows: Sequence[StoredMessageRow], request: Request
    ) -> dict[int, str]:
        """Read the payloads of rows that a page may reach and whose content may repeat their sources, by ordinal.

        Reads no more than a page can show; the sizes of sources are known in advance.
        """
        cursor, room = read_cursor(request.cursor), 2**62 if request.find else request.characters
        first_row = next(
            (index for index, row in enumerate(rows) if not cursor or _names_part_of(row, cursor)), len(rows)
        )
        wanted: list[EntryMessage] = []
        tokens, remaining = set[str](), _READ_AT_ONCE
        for row in rows[first_row:]:
            ref = row.message.payload
            if room <= 0 or remaining <= 0 or len(tokens) >= MAX_APPENDS:
                break
            if ref is not None and is_compared(row, read_message(self._codec, row.message)):
                wanted.append(row.message)
                tokens.add(ref.token)
                remaining -= ref.ends[-1]
            room -= sum(source.place.length for source in row.sources)
        payloads = await self._reader.payloads_of(cached, wanted)
        return {message.ordinal: payloads[message.id] for message in wanted}

    async def _passages(self, rows: Sequence[StoredMessageRow], payloads: Mapping[int, str]) -> list[Passage]:
        def made() -> list[Passage]:
            texts = [payloads.get(row.message.ordinal) for row in rows]
            found = zip(rows, texts, strict=True)
            return [one for row, text in found for one in self._passages_of(row, text)]

        return await run_in_thread_if_long(made, characters=2 * sum(map(len, payloads.values())))

    def _passages_of(self, row: StoredMessageRow, payload: str | None) -> list[Passage]:
        return passages_of(row, read_message(self._codec, row.message), self._codec, payload)

    def _source_page(self, page: Page, not_found: list[int | str], request: Request) -> SourcePage:
        """Return a page for a program; the items of its sources take at most as much room as its text."""
        sources: list[Source] = []
        room = request.characters
        for part in page.parts:
            if part.passage.source:
                source, room = page_source(self._codec, part.passage.source, part.found, content=part.text, room=room)
                sources.append(source)
        return SourcePage(sources=sources, not_found=not_found, next_cursor=page.following or None)


def _item(source: EntrySource) -> tuple[int, int]:
    return source.place.middle, source.place.end


def _fill(page: Page, pieces: Sequence[Piece], find: str) -> None:
    for piece in pieces:
        fill_matches(page, piece, find)
        if page.following:
            return


def _next_pieces(page: Page, passages: Sequence[Passage], offset: int) -> list[Piece]:
    """Return the pieces to search next, limited by the size of one read and the number of appends."""
    pieces: list[Piece] = []
    size = 0
    for passage in passages:
        if size >= _READ_AT_ONCE or passage.is_deferred or not page.may_read(passage):
            break
        start = min(offset, passage.length)
        pieces.append(Piece(passage, start, min(passage.length, start + _READ_AT_ONCE)))
        size += pieces[-1].end - start
        page.will_read(passage)
        offset = 0
    return pieces if any(piece.start < piece.end for piece in pieces) or len(pieces) < len(passages) else []


def _names_part_of(row: StoredMessageRow, cursor: Cursor) -> bool:
    """Return True if a cursor names a passage of a message."""
    return row.message.ordinal == cursor.ordinal or any(source.id == cursor.source_id for source in row.sources)

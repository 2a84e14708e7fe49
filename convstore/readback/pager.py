"""Serves the content that views leave out, as pages for a model or a program.

A message is read as a list of passages: its sources, its content, then other parts stored outside its entry. A page has
as much of the passages as fits, or only the text around matches. All texts of a page are read together, and only the
payload chunks that contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from convstore.exceptions import CorruptDocumentError, InvalidCursorError, InvalidInputError
from convstore.log.entry import EntryMessage, EntrySource, PayloadRef
from convstore.log.rows import tool_results_in
from convstore.log.stored_message import read_message
from convstore.messages.media import shown_block
from convstore.messages.text import fold, in_one_line
from convstore.messages.tokens import weight
from convstore.mongo.log import StoredMessageRow
from convstore.readback.names import ResolvedNames, resolve_names
from convstore.readback.own_numbers import explain_citations
from convstore.readback.page import (
    MAX_APPENDS,
    Excerpt,
    Page,
    compose_page,
    fill,
    fill_words,
    fitting_lines,
    next_excerpts,
    no_match,
    passages_from,
    remark_on_next,
    remarks,
    unknown_cursor,
)
from convstore.readback.passages import (
    PageMedia,
    Passage,
    in_line,
    in_reading_order,
    is_compared,
    passage_of_source,
    passages_of,
)
from convstore.readback.records import Records, page_source
from convstore.readback.request import MessageRef, Request, read_cursor
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.naming import named_fields
from convstore.sources.places import read_item
from convstore.sources.source import read_ids
from convstore.values.models import Source, SourcePage
from convstore.values.plain import shown_value
from convstore.values.scope import Scope

_MAX_SUGGESTED = 5
_MAX_NUMBERED = 100
"""Number of newest results whose ids and source numbers are suggested if requested ones were not found."""
_READ_AT_ONCE = 4_000_000
_FIELDS_CHARACTERS = 1_000
_ITEMS_AT_ONCE = 1_000_000
"""Maximum number of characters read for the items of the sources on a page."""
_MAX_ROUNDS = 4
"""Maximum number of reads in one search of passages; then the page ends with a cursor to continue."""

_Range = tuple[PayloadRef, int, int]


class Pager:
    """Answers requests of a model or a program with pages.

    Args:
        reader: Reads the logs.
        records: Reads results whole.
        visible_metadata: Names of the metadata fields that are shown to a model with a source.
    """

    def __init__(
        self, reader: LogReader, records: Records, visible_metadata: Sequence[str] = ()
    ) -> None:
        self._reader = reader
        self._records = records
        self._codec = reader.codec
        self._visible = visible_metadata

    async def read(self, scope: Scope, request: Request) -> tuple[Any, SourcePage]:
        """Return one page for names or a cursor. The page lists names that were not found; arguments never raise."""
        cached = await self._reader.find(scope)
        if cached is None:
            if request.cursor:
                return unknown_cursor(request)
            lines = remarks(request.names, [], [], request)
            return compose_page([], lines, SourcePage(not_found=request.names), Request())
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
                f"find must be a text of at most {request.characters // 4:,} characters, a "
                "quarter of a page"
            )
        cached = await self._reader.find(scope)
        if cached is None:
            return SourcePage(not_found=request.names)
        async with self._reader.reading(cached):
            resolved = await resolve_names(self._reader, cached, request, exactly=True)
            each = [
                *((row, source) for row in resolved.rows for source in row.sources),
                *resolved.sources,
            ]
            passages = in_reading_order(
                [passage_of_source(source, row, artifact=True) for row, source in each]
            )
            page = await self._page(cached, request, passages, room=request.characters)
            if page is None:
                raise InvalidCursorError(
                    f"{shown_value(request.cursor)} is not a cursor of this call; start again "
                    "without a cursor"
                )
            return self._source_page(cached, page, resolved.missing, request)

    async def _read(self, cached: CachedConversation, request: Request) -> tuple[Any, SourcePage]:
        resolved = await resolve_names(self._reader, cached, request)
        message_refs = [MessageRef(row.message.ordinal, row.entry.first) for row in resolved.rows]
        numbers = [source.id for _, source in resolved.sources]
        said = [*resolved.remarks, *request.remarks]
        request = replace(
            request,
            tool_message_ids=(),
            message_refs=message_refs,
            source_ids=numbers,
            remarks=said,
        )
        request = request.cut_for_cursor()
        lines = await self._remarks(cached, resolved.missing, request)
        page, passages, request = await self._fill_page(cached, resolved, request, lines)
        if page is None:
            return unknown_cursor(request)
        if request.find and passages and not page.has_match:
            lines.insert(0, no_match(request, page))
        said = await self._numbers_of_answers(cached, page, resolved.rows)
        if not request.find:
            said.append(remark_on_next(page, passages))
        lines += fitting_lines(said, page.room)
        values = self._source_page(cached, page, resolved.missing, request)
        return compose_page(page.shown, lines, values, request)

    async def _numbers_of_answers(
        self, cached: CachedConversation, page: Page, rows: Sequence[StoredMessageRow]
    ) -> list[str]:
        """Return a line for each answer on a page whose citations use numbers other than source ids."""
        answers = [row for row in rows if row.message.type == "ai"]
        lines: list[str] = []
        for row in answers[:MAX_APPENDS]:
            texts = [part.text for part in page.parts if _has_part(row, part.passage.key)]
            id_ = row.message.id
            ordinal = row.message.ordinal
            lines.append(await explain_citations(self._records, cached.scope, id_, ordinal, texts))
        return lines

    async def _fill_page(
        self,
        cached: CachedConversation,
        resolved: ResolvedNames,
        request: Request,
        lines: Sequence[str],
    ) -> tuple[Page | None, list[Passage], Request]:
        """Return the page, its passages, and the request with the position at which the page begins.

        Passages that only repeat others are left out. If that leaves a page empty, the next one is returned instead.
        """
        rows = resolved.rows[: len(request.message_refs)]
        sources = resolved.sources[: len(request.source_ids)]
        room = request.room_after(lines)
        page: Page | None = None
        passages: list[Passage] = []
        for _ in range(_MAX_ROUNDS):
            payloads = await self._read_compared(cached, rows, request)
            passages = await self._passages(rows, payloads, artifact=request.artifact)
            passages += [
                passage_of_source(source, row, artifact=request.artifact) for row, source in sources
            ]
            passages = in_reading_order(passages)
            page = await self._page(cached, request, passages, room=room)
            if page is None or page.parts or request.find or not page.following:
                break
            request = replace(request, cursor=page.following)
        return page, passages, request

    async def _remarks(
        self, cached: CachedConversation, missing: Sequence[int | str], request: Request
    ) -> list[str]:
        """Return the lines about unfulfilled parts of a request, and valid ids and numbers for missing ones."""
        newest: list[EntryMessage] = []
        if missing:
            log = await self._reader.snapshot(cached)
            entries = await self._reader.newest_results(log, limit=_MAX_NUMBERED, tools_only=True)
            newest = tool_results_in(entries)[:_MAX_NUMBERED]
        valid = [in_one_line(message.id) for message in newest[:_MAX_SUGGESTED]]
        numbers = (number for message in newest for number in read_ids(message.sources))
        return remarks(missing, valid, numbers, request)

    async def _page(
        self,
        cached: CachedConversation,
        request: Request,
        passages: Sequence[Passage],
        *,
        room: int,
    ) -> Page | None:
        """Return the page that begins at the request's cursor; None if the cursor names another passage."""
        begin = passages_from(request, passages)
        if begin is None:
            return None
        passages, offset = begin
        page = Page(
            room,
            request.characters // 8,
            appends={part.compared_append for part in passages if part.compared_append},
        )
        largest = 0 if request.find else room
        fits = [part.overhead(page.label) + part.length < largest for part in passages]
        # An image or file that does not fit is left out; its description is shown.
        passages = [
            part if fit or not part.media else replace(part, media=None)
            for part, fit in zip(passages, fits, strict=True)
        ]
        if request.find:
            await self._fill_matches(cached, page, passages, offset, request.find)
        else:
            excerpts, following = next_excerpts(page, passages, offset)
            await self._read_excerpts(cached, excerpts)
            fill(page, excerpts, following=following)
        return page

    async def _fill_matches(
        self,
        cached: CachedConversation,
        page: Page,
        passages: Sequence[Passage],
        offset: int,
        find: str,
    ) -> None:
        """Add the text around each match, from an offset of the first passage on; the number of reads is limited."""
        first: list[Excerpt] = []
        for _ in range(_MAX_ROUNDS):
            excerpts = _next_excerpts(page, passages, offset)
            if not excerpts:
                break
            await self._read_excerpts(cached, excerpts)
            first = first or excerpts
            await run_in_thread_if_long(
                partial(fill, page, excerpts, find=find),
                characters=sum(len(excerpt.text) for excerpt in excerpts),
            )
            if page.following:
                return
            last = excerpts[-1]
            passages = passages[len({excerpt.passage.key for excerpt in excerpts}) - 1 :]
            # A match may extend across the end of an excerpt.
            offset = last.end if last.end == last.passage.length else last.end - len(fold(find)) + 1
        remaining = [
            passage for index, passage in enumerate(passages) if index or offset < passage.length
        ]
        if remaining:
            page.following = f"{remaining[0].key}@{offset if remaining[0] is passages[0] else 0}"
        else:
            await run_in_thread_if_long(
                partial(fill_words, page, first, find),
                characters=4 * sum(len(excerpt.text) for excerpt in first),
            )

    async def _read_excerpts(self, cached: CachedConversation, excerpts: Sequence[Excerpt]) -> None:
        """Read the texts of excerpts and the items of their sources, with one read for each append."""
        wanted: list[_Range] = []
        room = _ITEMS_AT_ONCE
        for excerpt in excerpts:
            ranges = _ranges_of(excerpt, room)
            wanted += ranges
            source = excerpt.passage.source
            if source and ranges and ranges[-1][1:] == _item(source):
                room -= source.place.rest
        found = dict(zip(wanted, await self._reader.payload_ranges(cached, wanted), strict=True))
        for excerpt in excerpts:
            if excerpt.passage.media:
                excerpt.block = self._block(excerpt.passage.media, found)
            if excerpt.passage.ref is None:
                self._take_text(excerpt)
            else:
                self._take_ranges(excerpt, excerpt.passage.ref, found)

    def _block(self, media: PageMedia, found: Mapping[_Range, str]) -> Any:
        block = self._codec.decode(found[media.stored]) if media.stored else media.block
        return shown_block(block)

    def _take_text(self, excerpt: Excerpt) -> None:
        """Take a text that is in memory, and the item of its source."""
        passage = excerpt.passage
        excerpt.text = passage.text[excerpt.start : excerpt.end]
        source = passage.source
        if source and source.piece:
            self._read_item(excerpt, source, source.piece[slice(*_item(source))])

    def _take_ranges(self, excerpt: Excerpt, ref: PayloadRef, found: Mapping[_Range, str]) -> None:
        """Take a text and the item of its source from the ranges of the payload that were read."""
        passage = excerpt.passage
        source = passage.source
        item = found.get((ref, *_item(source))) if source else None
        if source and item is not None:
            self._read_item(excerpt, source, item)
        if excerpt.start < excerpt.end:
            excerpt.text = found[ref, passage.start + excerpt.start, passage.start + excerpt.end]

    def _read_item(self, excerpt: Excerpt, source: EntrySource, item: str) -> None:
        try:
            excerpt.found = read_item(self._codec, item)
        except ValueError as error:
            raise CorruptDocumentError(source.entry, f"source {source.id}: {error}") from error
        if excerpt.found and self._visible:
            passage = excerpt.passage
            fields = named_fields(excerpt.found.fields, self._visible, passage.label)
            excerpt.passage = replace(passage, fields=in_line(fields, _FIELDS_CHARACTERS))

    async def _read_compared(
        self, cached: CachedConversation, rows: Sequence[StoredMessageRow], request: Request
    ) -> dict[int, str]:
        """Read the payloads that must be compared with their sources, of rows that a page may reach, by ordinal.

        It reads no more than a page can show, because the sizes of sources are known in advance.
        """
        cursor = read_cursor(request.cursor)
        room = 2**62 if request.find else request.characters
        first_row = next(
            (index for index, row in enumerate(rows) if not cursor or _has_part(row, cursor.key)),
            len(rows),
        )
        wanted: list[EntryMessage] = []
        tokens: set[str] = set()
        remaining = _READ_AT_ONCE
        for row in rows[first_row:]:
            ref = row.message.payload
            if room <= 0 or remaining <= 0 or len(tokens) >= MAX_APPENDS:
                break
            message = read_message(self._codec, row.message)
            if ref is not None and is_compared(row, message, artifact=request.artifact):
                wanted.append(row.message)
                tokens.add(ref.token)
                remaining -= ref.ends[-1]
            room -= sum(source.place.length for source in row.sources)
        payloads = await self._reader.payloads_of(cached, wanted)
        return {message.ordinal: payloads[message.id] for message in wanted}

    async def _passages(
        self, rows: Sequence[StoredMessageRow], payloads: Mapping[int, str], *, artifact: bool
    ) -> list[Passage]:
        def made() -> list[Passage]:
            passages: list[Passage] = []
            for row in rows:
                message = read_message(self._codec, row.message)
                payload = payloads.get(row.message.ordinal)
                passages += passages_of(row, message, self._codec, payload, artifact=artifact)
            return passages

        return await run_in_thread_if_long(made, characters=2 * sum(map(len, payloads.values())))

    def _source_page(
        self, cached: CachedConversation, page: Page, not_found: list[int | str], request: Request
    ) -> SourcePage:
        """Return a page as public values; the metadata of its sources takes at most as much room as its text."""
        sources: list[Source] = []
        room = request.characters
        for part in page.parts:
            if part.passage.source:
                source, room = page_source(
                    self._codec, part.passage.source, part.found, content=part.text, room=room
                )
                owner = part.passage.source.entry.partition(":")[0]
                child = {} if owner == cached.conversation else {"child_id": owner}
                sources.append(source.model_copy(update=child))
        return SourcePage(sources=sources, not_found=not_found, next_cursor=page.following or None)


def _ranges_of(excerpt: Excerpt, room: int) -> list[_Range]:
    """Return the ranges of payloads to read for an excerpt; if there is room, the item of its source comes last."""
    passage = excerpt.passage
    source = passage.source
    ranges: list[_Range] = []
    if passage.media and passage.media.stored:
        ranges.append(passage.media.stored)
    if passage.ref is None:
        return ranges
    if excerpt.start < excerpt.end:
        ranges.append((passage.ref, passage.start + excerpt.start, passage.start + excerpt.end))
    if source and source.place.rest <= room:
        ranges.append((passage.ref, *_item(source)))
    return ranges


def _item(source: EntrySource) -> tuple[int, int]:
    return source.place.middle, source.place.end


def _next_excerpts(page: Page, passages: Sequence[Passage], offset: int) -> list[Excerpt]:
    """Return the excerpts to search next, limited by the size of one read and the number of appends."""
    excerpts: list[Excerpt] = []
    size = 0
    for passage in passages:
        if size >= _READ_AT_ONCE or passage.is_deferred or not page.may_read(passage):
            break
        start = min(offset, passage.length)
        excerpts.append(Excerpt(passage, start, min(passage.length, start + _READ_AT_ONCE)))
        size += excerpts[-1].end - start
        page.will_read(passage)
        offset = 0
    is_last = len(excerpts) == len(passages)
    return [] if is_last and all(excerpt.start == excerpt.end for excerpt in excerpts) else excerpts


def _has_part(row: StoredMessageRow, key: str) -> bool:
    """Return True if a message has the passage with this key."""
    return key.partition(".")[0] == f"m{row.message.ordinal}" or any(
        str(source.id) == key for source in row.sources
    )

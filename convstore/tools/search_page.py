"""Show a model the passages of its conversation that match a query, page by page.

The header of a passage has the ids with which the whole message can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convstore.index.words import query_groups
from convstore.messages.text import in_one_line
from convstore.messages.tokens import fitting, weight
from convstore.mongo.parallel import together
from convstore.readback.own_numbers import explain_citations
from convstore.readback.page import compose_page, fitting_lines, no_match, remarks
from convstore.readback.passages import in_line
from convstore.readback.records import Records
from convstore.readback.request import Request, read_cursor
from convstore.search.request import SearchRequest
from convstore.search.searcher import Match, Searcher
from convstore.values.models import Source, SourcePage
from convstore.values.reports import SearchHit
from convstore.values.scope import Scope

_PASSAGE_CHARACTERS = 800
_SOURCE_CHARACTERS = 2_000
"""Maximum length of a source's passage. Shorter sources are shown whole, as the answer is often not near the words."""
_MAX_PASSAGES = 40
"""Number of passages read for a page, which shows as many as fit; short passages take little room, some are equal."""
_MAX_OFFSET = 200
"""A search ends after this many passages. Each page reads the passages before it again, and leaves them out."""
_LABEL_CHARACTERS = 200
_MAX_EXPLAINED = 3
"""Maximum number of answers on a page whose citations are explained, with two commands each."""


async def search_page(
    searcher: Searcher, records: Records, scope: Scope, request: Request
) -> tuple[Any, SourcePage]:
    """Return one page of the best passages of the conversation. Arguments never raise."""
    cursor = read_cursor(request.cursor)
    through, offset = (int(cursor.key[1:]), cursor.offset) if cursor else (0, 0)
    lines = remarks([], [], [], request)
    room = request.room_after(lines)
    found = await searcher.search(
        scope,
        SearchRequest(
            tuple(query_groups(request.find)),
            limit=min(offset, _MAX_OFFSET) + _MAX_PASSAGES,
            before=through + 1 if through else 2**53,
            is_for_model=True,
            characters=min(_PASSAGE_CHARACTERS, room // 2),
            source_characters=min(_SOURCE_CHARACTERS, room // 2),
        ),
    )
    texts: list[str] = []
    answers: list[SearchHit] = []
    sources: list[Source] = []
    whole = room
    position = 0
    for position, match in _distinct(found.matches):
        if position < offset:
            continue
        text = _render_passage(match, whole)
        if texts and weight(text) + 1 > room:
            break
        room -= weight(text) + 1
        texts.append(text)
        sources += _sources(match)
        answers += [match.hit] if match.hit.type == "ai" else []
    else:
        position = len(found.matches)
    is_last = not texts or (
        position == len(found.matches) and (found.is_last or position > _MAX_OFFSET)
    )
    following = None if is_last else f"f{through or found.last}@{position}"
    lines += fitting_lines(await _explain_answers(records, scope, answers), room)
    values = SourcePage(sources=sources, next_cursor=following)
    return compose_page(texts or [no_match(request)], lines, values, request)


async def _explain_answers(
    records: Records, scope: Scope, answers: Sequence[SearchHit]
) -> list[str]:
    """Return a line for each of the best answers whose citations use numbers other than source ids."""
    lines = [
        explain_citations(records, scope, hit.message_id, hit.ordinal, [hit.snippet])
        for hit in answers[:_MAX_EXPLAINED]
    ]
    return list(await together(*lines))


def _distinct(matches: Sequence[Match]) -> Iterator[tuple[int, Match]]:
    """Yield the matches with their positions; equal passages of several results are yielded once."""
    seen: set[str] = set()
    for position, match in enumerate(matches):
        text = " ".join(match.hit.snippet.split()) if match.hit.type == "tool" else ""
        if text not in seen:
            yield position, match
        seen |= {text} if text else set()


def _render_passage(match: Match, room: int) -> str:
    """Return a passage under its header, cut to `room`."""
    hit = match.hit
    where = f"{hit.type} message {in_one_line(hit.message_id)}"
    if hit.type == "tool":
        where = f"result {in_one_line(hit.message_id)} of {in_line(hit.tool, 100)}"
    where += f", m{hit.ordinal}, {hit.created_at:%Y-%m-%d}"
    for number in hit.source_ids[:1]:
        source = f"[{number}] {_title(match)}"
        where = f"{source[: fitting(source, room // 4)].rstrip()}, in {where}"
    header = where[: fitting(where, room * 2 // 3)]
    return f"{header}\n{hit.snippet[: fitting(hit.snippet, room - weight(header) - 2)]}"


def _sources(match: Match) -> list[Source]:
    """Return the source of a passage with its text on the page; [] for a passage without a source."""
    hit = match.hit
    title = _title(match)
    return [
        Source(source_id=number, title=title, content=hit.snippet, tool_message_id=hit.message_id)
        for number in hit.source_ids[:1]
    ]


def _title(match: Match) -> str:
    return in_line(" ".join(match.label.split()), _LABEL_CHARACTERS)

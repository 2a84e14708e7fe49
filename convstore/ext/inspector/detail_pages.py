"""The pages of one message, slice by slice, of one source, and of one summary; the images of a message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import HumanMessage
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.edges import find_source
from convstore.ext.inspector.call_page import load_view, message_at, moment_of, titled_info
from convstore.ext.inspector.comparison import begins_turn
from convstore.ext.inspector.images import image_in, images_in
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import as_json, body_of, own_numbers, rendered, whole_parts
from convstore.sources.marks import marks_in
from convstore.types import StoredMessage, Summary, ToolRecord

_SLICE = 6_000
"""Characters of one part on a page."""

_VIEW_BYTES = 4_000
_COVERED_BYTES = 600
_SUMMARY_CHARACTERS = 20_000
_LOOKED_AT = 200
_COVERED = 40
"""Number of messages after a source that are searched for citations, and of messages on a page of a summary."""


@dataclass(frozen=True, slots=True)
class _PartSlice:
    name: str
    text: str
    length: int
    slice: int
    slices: int


async def message_page(request: Request, chat: Conversation) -> Response:
    """Return the page of a message."""
    ordinal = number_in(request, "ordinal") or 0
    moment = await moment_of(request, chat)
    reading = message_at(chat, ordinal, full=True)
    viewing = load_view(request, chat, moment, before=ordinal + 1)
    info, stored, view = await asyncio.gather(titled_info(chat), reading, viewing)
    message_id = str(stored.message.id)
    [record] = await chat.get_tool_messages([message_id])
    variants = await chat.variants(message_id) if begins_turn(stored) else []
    given = view.given(stored)
    parts = whole_parts(stored.message, record.artifact)
    return render(
        "message.html",
        request,
        info=info,
        stored=stored,
        record=record,
        own_numbers=await asyncio.to_thread(own_numbers, record),
        variants=variants if variants[1:] else [],
        moment=moment,
        view=view,
        given=given,
        shown=body_of(given.message, _VIEW_BYTES) if given.message is not None else None,
        images=list(images_in(stored.message)),
        stored_parts=[_slice(request, name, text) for name, text in parts.items()],
        annotations={name: as_json(value) for name, value in stored.annotations.items()},
    )


def _slice(request: Request, name: str, text: str) -> _PartSlice:
    """Return the slice of a part that the address names, by default the first; HTTPException if it does not exist."""
    slices = max(1, -(-len(text) // _SLICE))
    number = 1
    if request.query_params.get("part", "content") == name:
        number = number_in(request, "slice", 1) or 0
    if not 1 <= number <= slices:
        raise HTTPException(404)
    return _PartSlice(
        name, text[(number - 1) * _SLICE : number * _SLICE], len(text), number, slices
    )


async def image_page(request: Request, chat: Conversation) -> Response:
    """Return the image in a content block of a message; HTTPException unless it is an image of the four types."""
    found = await chat.get_tool_messages([request.path_params["message_id"]])
    message = HumanMessage(found[0].content if found else "")
    data, kind = await asyncio.to_thread(image_in, message, number_in(request, "number") or 0)
    if not kind:
        raise HTTPException(404)
    return Response(data, media_type=kind)


async def source_page(request: Request, chat: Conversation) -> Response:
    """Return the page of a source, with the answers that cite it in a range of messages after the result."""
    number = number_in(request, "number") or 0
    if not (found := await find_source(chat, number)):
        raise HTTPException(404)
    chat, record, source = found  # the conversation may be a child
    after = number_in(request, "after") or record.ordinal
    info, messages = await asyncio.gather(
        titled_info(chat), chat.list_messages(after=after, limit=_LOOKED_AT, rewound=True)
    )
    is_link = re.fullmatch(r"https?://\S+", source.url, re.IGNORECASE)
    return render(
        "source.html",
        request,
        info=info,
        source=source,
        record=record,
        part=_slice(request, "content", source.content),
        metadata={name: as_json(value) for name, value in source.metadata.items()},
        link=source.url if is_link else "",
        cited=await _citing(chat, messages, record, number),
        shown_again=await _shown_again(chat, number, messages),
        looked_until=messages[-1].ordinal if messages else after,
        looks_on=len(messages) == _LOOKED_AT,
    )


async def _citing(
    chat: Conversation, messages: Sequence[StoredMessage], record: ToolRecord, number: int
) -> list[StoredMessage]:
    """Return the answers that cite a source of a result, by its number or by its number in the result's text."""
    marked = await asyncio.to_thread(_marked, messages, record, number)
    cited = await asyncio.gather(*(chat.citations(stored.message) for stored in marked))
    return [
        stored
        for stored, citations in zip(marked, cited, strict=True)
        if any(citation.source_id == number for citation in citations)
    ]


def _marked(
    messages: Sequence[StoredMessage], record: ToolRecord, number: int
) -> list[StoredMessage]:
    """Return the answers with a mark that may cite a source. Slow for long answers."""
    shown = own_numbers(record).items()
    numbers = {number, *(other for other, source in shown if source == number)}
    answers = [stored for stored in messages if stored.message.type == "ai"]
    return [
        answer
        for answer in answers
        if any(not numbers.isdisjoint(mark.numbers) for mark in marks_in(answer.message.text))
    ]


async def _shown_again(
    chat: Conversation, number: int, messages: Sequence[StoredMessage]
) -> list[tuple[StoredMessage, int]]:
    """Return the later results with the same source text, each with the number of the source there."""
    tools = {
        str(message.message.id): message for message in messages if message.message.type == "tool"
    }
    records = await chat.get_tool_messages(list(tools)) if tools else []
    return [
        (tools[record.tool_message_id], source.source_id)
        for record in records
        for source in record.sources
        if source.earlier_id == number
    ]


def _next_after(covered: Sequence[StoredMessage], summary: Summary) -> int | None:
    """Return the ordinal after which the next page of a summary's messages begins; None on the last page."""
    if covered and covered[-1].ordinal < summary.last:
        return covered[-1].ordinal
    return None


async def summary_page(request: Request, chat: Conversation) -> Response:
    """Return the page of a summary, with a page of the messages that it covers."""
    info, summaries = await asyncio.gather(titled_info(chat), chat.summaries())
    version = number_in(request, "version")
    found = [summary for summary in summaries if summary.version == version]
    if not found:
        raise HTTPException(404)
    summary = found[0]
    after = max(number_in(request, "after", 0) or 0, summary.first - 1)
    stored = await chat.list_messages(after=after, limit=_COVERED, rewound=True)
    covered = [message for message in stored if message.ordinal <= summary.last]
    text = summary.text[:_SUMMARY_CHARACTERS]
    return render(
        "summary.html",
        request,
        info=info,
        summary=summary,
        others=[other for other in summaries if other is not summary],
        text=rendered(text),
        left=len(summary.text) - len(text),
        messages=[
            (message, body_of(message.message, _COVERED_BYTES, is_stored=True))
            for message in covered
        ],
        next_after=_next_after(covered, summary),
    )

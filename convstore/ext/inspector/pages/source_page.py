"""The page of one source: its text, the result that brought it, answers that cite it, and results that repeat it.

Floor 7. Citations are looked for in a number of messages after the result; the page says how far it looked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from langchain_core.messages import BaseMessage
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.body import as_json
from convstore.ext.inspector.pages.message_page import SLICE
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import slices_of
from convstore.values.models import Source, StoredMessage

__all__ = ["cited_in", "page"]

_LOOKED_AT = 200
_CITATION = re.compile(r"[\[【]([\d\s,;\u2013-]{1,200})[\]】]")
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:[-\u2013]\s*(\d{1,9})\s*)?")


async def page(request: Request, chat: Conversation) -> Response:
    """Return the page of a source."""
    number = request.path_params["number"]
    if not 0 < number < 2**53:
        raise HTTPException(404)
    source = await _whole(chat, number)
    [record] = await chat.get_tool_messages([source.tool_message_id])
    after = number_in(request, "after") or record.ordinal
    info, messages = await asyncio.gather(chat.info(), chat.list_messages(after=after, limit=_LOOKED_AT, rewound=True))
    slices = slices_of(len(source.content), SLICE)
    at = number_in(request, "slice", 1) or 0
    if not 1 <= at <= slices:
        raise HTTPException(404)
    content = render(
        "source.html",
        request,
        info=info,
        source=source,
        record=record,
        text=source.content[(at - 1) * SLICE : at * SLICE],
        slice=at,
        slices=slices,
        metadata={name: as_json(value) for name, value in source.metadata.items()},
        link=source.url if re.fullmatch(r"https?://\S+", source.url, re.IGNORECASE) else "",
        cited=[one for one in messages if number in cited_in(one.message)],
        shown_again=await _shown_again(chat, number, messages),
        looked_until=messages[-1].ordinal if messages else after,
        looks_on=len(messages) == _LOOKED_AT,
    )
    return HTMLResponse(content)


async def _whole(chat: Conversation, number: int) -> Source:
    """Return a source with its whole text.

    Raises:
        HTTPException: The conversation has no source with this number.
    """
    page = await chat.get_sources([number], page_tokens=16_000)
    if not page.sources:
        raise HTTPException(404)
    if page.next_cursor is None:
        return page.sources[0]
    [record] = await chat.get_tool_messages([page.sources[0].tool_message_id])
    return next(source for source in record.sources if source.source_id == number)


async def _shown_again(
    chat: Conversation, number: int, messages: Sequence[StoredMessage]
) -> list[tuple[StoredMessage, int]]:
    """Return the later results that contain the same text, each with the number that it has there."""
    tools = {str(one.message.id): one for one in messages if one.message.type == "tool"}
    records = await chat.get_tool_messages(list(tools)) if tools else []
    return [
        (tools[record.tool_message_id], source.source_id)
        for record in records
        for source in record.sources
        if source.earlier_id == number
    ]


def cited_in(message: BaseMessage) -> set[int]:
    """Return the source numbers that an answer cites: single numbers, lists and ranges in brackets.

    >>> from langchain_core.messages import AIMessage
    >>> sorted(cited_in(AIMessage("Fish [1]. Squid [3, 5-7]; a list[0].")))
    [0, 1, 3, 5, 6, 7]
    """
    numbers: set[int] = set()
    if message.type != "ai":
        return numbers
    for found in _CITATION.finditer(message.text):
        for item in re.split(r"[,;]", found[1]):
            if ends := _RANGE.fullmatch(item):
                first, last = int(ends[1]), int(ends[2] or ends[1])
                numbers.update(range(first, min(last, first + 1_000) + 1))
    return numbers

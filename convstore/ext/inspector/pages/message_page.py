"""The page of one message: everything that is stored of it, slice by slice, and what the model gets.

Floor 7.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.body import as_json, body_of, whole_parts
from convstore.ext.inspector.moments import load_view
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import slices_of

__all__ = ["SLICE", "page"]

SLICE = 6_000
"""Characters of one part on a page."""

_VIEW_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class _Part:
    """A slice of one part of a message."""

    name: str
    text: str
    length: int
    slice: int
    slices: int


async def page(request: Request, chat: Conversation) -> Response:
    """Return the page of a message."""
    ordinal = request.path_params["ordinal"]
    if not 0 < ordinal < 2**53:
        raise HTTPException(404)
    reading = chat.list_messages(after=ordinal - 1, limit=1, full=True, rewound=True)
    info, found, view = await asyncio.gather(chat.info(), reading, load_view(chat, before=ordinal + 1))
    if not found or found[0].ordinal != ordinal:
        raise HTTPException(404)
    [record] = await chat.get_tool_messages([str(found[0].message.id)])
    given = view.given(found[0])
    parts = whole_parts(found[0].message, record.artifact)
    content = render(
        "message.html",
        request,
        info=info,
        stored=found[0],
        record=record,
        given=given,
        shown=body_of(given.message, _VIEW_BYTES) if given.message is not None else None,
        stored_parts=[_slice(request, name, text) for name, text in parts.items()],
        annotations={name: as_json(value) for name, value in found[0].annotations.items()},
    )
    return HTMLResponse(content)


def _slice(request: Request, name: str, text: str) -> _Part:
    """Return the slice of a part that the address asks for, by default the first.

    Raises:
        HTTPException: The part has no such slice.
    """
    slices = slices_of(len(text), SLICE)
    number = (number_in(request, "slice", 1) or 0) if request.query_params.get("part", "content") == name else 1
    if not 1 <= number <= slices:
        raise HTTPException(404)
    return _Part(name, text[(number - 1) * SLICE : number * SLICE], len(text), number, slices)

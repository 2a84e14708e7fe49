"""The page of one summary: its text, and the messages that it covers.

Floor 7.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.body import body_of
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import rendered

__all__ = ["page"]

_PAGE = 40
_BYTES = 600
_SUMMARY_CHARACTERS = 20_000


async def page(request: Request, chat: Conversation) -> Response:
    """Return the page of a summary, with a page of the messages that it covers."""
    info, summaries = await asyncio.gather(chat.info(), chat.summaries())
    summary = next((one for one in summaries if one.version == request.path_params["version"]), None)
    if summary is None:
        raise HTTPException(404)
    after = max(number_in(request, "after", 0) or 0, summary.first - 1)
    stored = await chat.list_messages(after=after, limit=_PAGE, rewound=True)
    covered = [one for one in stored if one.ordinal <= summary.last]
    text = summary.text[:_SUMMARY_CHARACTERS]
    content = render(
        "summary.html",
        request,
        info=info,
        summary=summary,
        others=[one for one in summaries if one is not summary],
        text=rendered(text),
        left=len(summary.text) - len(text),
        messages=[(one, body_of(one.message, _BYTES)) for one in covered],
        next_after=covered[-1].ordinal if covered and covered[-1].ordinal < summary.last else None,
    )
    return HTMLResponse(content)

"""The page of a search in one conversation: the messages that match best, each leading to its position in the log.

Floor 7.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.rendering import render

__all__ = ["page"]

_LIMIT = 30
_CHARACTERS = 500


async def page(request: Request, chat: Conversation) -> Response:
    """Return the messages that match the words of the query."""
    text = request.query_params.get("q", "")[:_CHARACTERS]
    info, hits = await asyncio.gather(chat.info(), chat.search(text, limit=_LIMIT))
    return HTMLResponse(render("search.html", request, info=info, text=text, hits=hits))

"""The pages of a search, in one conversation or in all that the request may see. Each hit leads to the log.

Floor 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.pages.listing_page import Choice, choice_of
from convstore.ext.inspector.rendering import render
from convstore.store import ConversationStore
from convstore.values.hits import ConversationHits, SearchResult

__all__ = ["everywhere", "page"]

_LIMIT = 30
_CHARACTERS = 500


async def page(request: Request, chat: Conversation) -> Response:
    """Return the messages of a conversation that match the words of the query."""
    text = _text(request)
    info, hits = await asyncio.gather(chat.info(), chat.search(text, limit=_LIMIT))
    groups = [ConversationHits(scope=info.scope, conversation_id=info.conversation_id, title=info.title, hits=hits)]
    found = SearchResult(conversations=groups if hits else [], searched=1)
    return _page(request, text, found, info=info, choice=Choice())


async def everywhere(request: Request, store: ConversationStore, permitted: Mapping[str, str]) -> Response:
    """Return the messages that match the words of the query, from the conversations that the request may see."""
    text, choice = _text(request), await choice_of(request, store, permitted)
    scope: dict[str, Any] = {**permitted, **choice.scope}
    searching = store.search(text, limit=_LIMIT, **scope) if scope else store.search_everything(text, limit=_LIMIT)
    found = await searching
    return _page(request, text, found, info=None, choice=choice)


def _text(request: Request) -> str:
    return request.query_params.get("q", "")[:_CHARACTERS]


def _page(request: Request, text: str, found: SearchResult, **context: object) -> Response:
    return HTMLResponse(render("search.html", request, text=text, found=found, **context))

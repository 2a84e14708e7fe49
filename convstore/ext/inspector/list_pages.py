"""The pages with lists: conversations, and hits of a search.

Addresses hold no scope values: the conversations of one user are found by one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidInputError
from convstore.ext.inspector.call_page import titled_info
from convstore.ext.inspector.rendering import number_in, render
from convstore.integration import marks_of, titled, with_children
from convstore.values.models import ConversationInfo
from convstore.values.reports import ConversationHits, SearchResult

_PAGE = 50
_CHILDREN = 5
_HITS = 30
_QUERY_CHARACTERS = 500
_NO_END = 2**53 - 1


@dataclass(frozen=True, slots=True)
class _Choice:
    """The conversations that have the same value of a scope key as the one with the id `like`; all without a key."""

    key: str = ""
    like: str = ""
    scope: dict[str, str] = field(default_factory=dict)


async def _choice_of(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> _Choice:
    """Return the choice that ``key=`` and ``like=`` in the address name; HTTPException if they do not exist."""
    key, like = (request.query_params.get(name, "") for name in ("key", "like"))
    if not key and not like:
        return _Choice()
    chat = await store.find_conversation(like, **permitted) if like else None
    if chat is None or key not in store.scope_keys:
        raise HTTPException(404)
    return _Choice(key, like, {key: chat.scope[key]})


async def listing_page(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return a page of the conversations that a request may see."""
    choice = await _choice_of(request, store, permitted)
    cursor = request.query_params.get("cursor")
    scope: dict[str, Any] = {**permitted, **choice.scope}
    found = await store.list_conversations(
        limit=_PAGE, cursor=cursor, everything=not scope, **scope
    )
    families = [
        [member async for member in with_children(store, info)] for info in found.conversations
    ]
    shown = [member for family in families for member in family[: 1 + _CHILDREN]]
    return render(
        "listing.html",
        request,
        rows=[(info, _budget_of(info)) for info in await titled(store, shown)],
        more={
            family[_CHILDREN].conversation_id: len(family[1 + _CHILDREN :])
            for family in families
            if family[_CHILDREN:]
        },
        next_cursor=found.next_cursor,
        choice=choice,
        is_first=cursor is None,
        scope_keys=store.scope_keys,
    )


def _budget_of(info: ConversationInfo) -> int | None:
    """Return the budget of the last call, None for no limit or if it is not known."""
    with suppress(InvalidInputError):  # a policy of a later version
        return info.stamp.history_policy.max_tokens if info.stamp else None
    return None


async def search_page(request: Request, chat: Conversation) -> Response:
    """Return the messages of a conversation that match the words of the query."""
    text = _text(request)
    end = (number_in(request, "at") or _NO_END) + 1
    info, hits = await asyncio.gather(titled_info(chat), chat.search(text, limit=_HITS, before=end))
    groups = [
        ConversationHits(
            scope=info.scope, conversation_id=info.conversation_id, title=info.title, hits=hits
        )
    ]
    found = SearchResult(conversations=groups if hits else [], searched=1)
    return _hits(request, text, found, info=info, choice=_Choice())


async def search_all_page(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the messages that match the words of the query, from the conversations that the request may see."""
    text = _text(request)
    choice = await _choice_of(request, store, permitted)
    scope: dict[str, Any] = {**permitted, **choice.scope}
    found = await store.search(text, limit=_HITS, everything=not scope, **scope)
    found = found.model_copy(update={"conversations": await titled(store, found.conversations)})
    return _hits(request, text, found, info=None, choice=choice)


def _hits(request: Request, text: str, found: SearchResult, **context: Any) -> Response:
    """Return the page of the messages found, with the words of the query marked."""
    hits = sum(len(conversation.hits) for conversation in found.conversations)
    marks = marks_of(text)
    return render(
        "search.html",
        request,
        text=text,
        found=found,
        hits=hits,
        is_cut=hits == _HITS,
        marks=marks,
        **context,
    )


def _text(request: Request) -> str:
    return request.query_params.get("q", "")[:_QUERY_CHARACTERS]

"""The page that lists conversations, newest first.

Floor 7. Addresses hold no scope values: the conversations of one user are found by one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.ext.inspector.rendering import render
from convstore.store import ConversationStore

__all__ = ["Choice", "choice_of", "page"]

_PAGE = 50


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of the conversations that have the same value as one of them.

    Attributes:
        key: A scope key, "" for no choice.
        like: Id of the conversation that has the value.
        scope: The key with the value.
    """

    key: str = ""
    like: str = ""
    scope: dict[str, str] = field(default_factory=dict)


async def choice_of(request: Request, store: ConversationStore, permitted: Mapping[str, str]) -> Choice:
    """Return the choice that ``key=`` and ``like=`` in the address name.

    Raises:
        HTTPException: There is no such conversation or key.
    """
    key, like = (request.query_params.get(name, "") for name in ("key", "like"))
    if not key and not like:
        return Choice()
    chat = await store.find_conversation(like, **permitted) if like else None
    if chat is None or key not in store.scope_keys:
        raise HTTPException(404)
    return Choice(key, like, {key: chat.scope[key]})


async def page(request: Request, store: ConversationStore, permitted: Mapping[str, str]) -> Response:
    """Return a page of the conversations that a request may see."""
    choice = await choice_of(request, store, permitted)
    cursor = request.query_params.get("cursor")
    found = await store.list_conversations(limit=_PAGE, cursor=cursor, **{**permitted, **choice.scope})
    content = render(
        "listing.html",
        request,
        conversations=found.conversations,
        next_cursor=found.next_cursor,
        choice=choice,
        is_first=cursor is None,
        scope_keys=store.scope_keys,
    )
    return HTMLResponse(content)

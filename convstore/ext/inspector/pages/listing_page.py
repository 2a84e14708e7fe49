"""The page that lists conversations, newest first.

Floor 7. Addresses hold no scope values: the conversations of one user are found by one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request

from convstore.ext.inspector.rendering import render
from convstore.store import ConversationStore

__all__ = ["page"]

_PAGE = 50


async def page(request: Request, store: ConversationStore, permitted: Mapping[str, str]) -> str:
    """Return a page of the conversations that a request may see."""
    like, key = request.query_params.get("like", ""), request.query_params.get("key", "")
    chosen = await _like(store, like, key, permitted) if like or key else {}
    cursor = request.query_params.get("cursor")
    found = await store.list_conversations(limit=_PAGE, cursor=cursor, **{**permitted, **chosen})
    return render(
        "listing.html",
        request,
        conversations=found.conversations,
        next_cursor=found.next_cursor,
        chosen=chosen,
        like=like,
        key=key,
        is_first=cursor is None,
        scope_keys=store.scope_keys,
    )


async def _like(
    store: ConversationStore, conversation_id: str, key: str, permitted: Mapping[str, str]
) -> dict[str, str]:
    """Return a scope key with the value that a conversation has.

    Raises:
        HTTPException: There is no such conversation or key.
    """
    chat = await store.find_conversation(conversation_id, **permitted) if conversation_id else None
    if chat is None or key not in store.scope_keys:
        raise HTTPException(404)
    return {key: chat.scope[key]}

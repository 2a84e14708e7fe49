"""The model calls around the moment that the address of a page names."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from convstore import Conversation
from convstore.ext.inspector.rendering import number_in
from convstore.ext.model_calls import AROUND, Calls
from convstore.types import StoredMessage


async def moment_of(request: Request, chat: Conversation) -> StoredMessage | None:
    """Return the message that ``at=`` in the address names by its ordinal, None for now; HTTPException if invalid."""
    ordinal = number_in(request, "at")
    if ordinal is None:
        return None
    page = await chat.list_messages(before=ordinal + 1, limit=1, rewound=True)
    if not page or page[0].ordinal != ordinal:
        raise HTTPException(404)
    return page[0]


async def calls_of(request: Request, chat: Conversation) -> Calls:
    """Return the calls around the moment that the address names; HTTPException if there is no such message."""
    at = number_in(request, "at")
    near = await chat.list_messages(around=at, limit=AROUND, rewound=True)
    moment = next((message for message in near if message.ordinal == at), None)
    if at is not None and moment is None:
        raise HTTPException(404)
    return Calls(near, moment)

"""The view of a conversation as JSON, to run it again elsewhere.

Floor 7.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, message_to_dict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore.conversation import Conversation
from convstore.ext.inspector.moments import load_view, moment_of
from convstore.transfer.openai_lines import openai_message

__all__ = ["page"]


async def page(request: Request, chat: Conversation) -> Response:
    """Return the messages of the view as a JSON list, in LangChain's form or OpenAI's."""
    form = request.query_params.get("form", "langchain")
    if form not in ("langchain", "openai"):
        raise HTTPException(404)
    view = await load_view(chat, (await moment_of(request, chat)).stored)
    headers = {"Content-Disposition": f'attachment; filename="view-{form}.json"'}
    return Response(_as_json(view.history.messages, form), media_type="application/json", headers=headers)


def _as_json(messages: Sequence[BaseMessage], form: str) -> str:
    """Return messages as JSON in ASCII, so that lone surrogates survive; bytes and dates as Python writes them."""
    values: list[Any] = [message_to_dict(message) for message in messages]
    if form == "openai":
        values = [openai_message(message, bare=True)[0] for message in messages]
    return json.dumps(values, indent=1, default=repr)

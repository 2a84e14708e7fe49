"""What all tabs of a call share: the view that the model got, its size, and the calls around it.

An answer that was appended with a stamp gives exactly the view that it answers. Any other message gives the view
directly after it.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import message_to_dict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.ext.inspector.calls import Calls, moment_of
from convstore.ext.inspector.comparison import PARTS, View
from convstore.ext.inspector.rendering import render
from convstore.ext.inspector.text import as_json
from convstore.integration import with_children
from convstore.transfer.openai_lines import openai_message
from convstore.types import StoredMessage

MATCHES = {
    "exact": "Message for message what the model was given: the digest is equal.",
    "rebuilt": "No stamp of that call is stored. This is the view directly after the message.",
    "counter": "This store counts tokens with another counter than the one of that call, so the view begins elsewhere.",
    "view format": "That call was made by a version of convstore that builds views by other rules.",
    "type": "The view has values of types that are not registered here; they are shown as they are stored.",
    "adapted": "The model got this view with changes: with messages appended with the answer, or with results that a "
    "middleware shortened.",
    "log": "The log is not as it was then, as after a repair.",
}
"""Whether a past view is what the model was given, in words."""


async def load_view(
    request: Request, chat: Conversation, stored: StoredMessage | None = None, *, before: int | None = None
) -> View:
    """Load the view of a message, or of now, with the reasons that begin before an ordinal."""
    stamp, policy, origin = stored.stamp if stored else None, request.state.policy, "chosen for these pages"
    if stamp is not None:
        policy, origin = None, "that of the call"
    elif policy is None:
        policy = await chat.last_policy()
        origin = "from the newest answer with a stamp" if policy else "from the store, because no answer has a stamp"
    at = stamp or (stored.ordinal if stored else None)
    history = await chat.view_at(at, policy=policy, reasons_before=before)
    return View(history, chat.store.token_counter, origin=origin, answer=stored.ordinal if stored and stamp else 0)


async def render_call(
    request: Request, chat: Conversation, tab: str, calls: Calls, view: View, **more: Any
) -> Response:
    """Return the page of a tab, with the header that all tabs share."""
    info, history = await chat.info(), view.history
    full = history.report.tokens_before or info.tokens
    return render(
        f"{tab}.html",
        request,
        tab=tab,
        tab_path="" if tab == "conversation" else f"/{tab}",
        info=info,
        metadata=as_json(info.metadata),
        children=[one async for one in with_children(chat.store, info)][1:],
        calls=calls,
        view=view,
        match=MATCHES.get(history.difference or history.match, ""),
        parts_of={title: (key, view.parts()[key]) for key, title in PARTS.items() if view.parts()[key]},
        full=full,
        saved=max(0, full - history.tokens) * 100 // max(1, full),
        **more,
    )


async def export_page(request: Request, chat: Conversation) -> Response:
    """Return the messages of the view as a JSON list, in LangChain's form or OpenAI's."""
    form = request.query_params.get("form", "langchain")
    if form not in ("langchain", "openai"):
        raise HTTPException(404)
    view = await load_view(request, chat, await moment_of(request, chat))
    values: list[Any] = [message_to_dict(one) for one in view.history.messages]
    if form == "openai":
        values = [openai_message(one, bare=True)[0] for one in view.history.messages]
    # In ASCII, so that lone surrogates survive; bytes and dates as Python writes them.
    text, headers = (
        json.dumps(values, indent=1, default=repr),
        {"Content-Disposition": f'attachment; filename="view-{form}.json"'},
    )
    return Response(text, media_type="application/json", headers=headers)

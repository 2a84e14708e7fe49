"""A chat page in plain HTML and JavaScript with the AI SDK's protocol: streams, reloads, stops, edits, variants.

    CONVSTORE_URI=mongodb://localhost:27017/app uvicorn --app-dir examples/ui_chat ui_chat_app:app

Without CONVSTORE_URI the conversations are in memory. A page on `useChat` calls the same endpoints.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from langchain_core.documents import Document

from convstore import ConflictError, Conversation, ConversationStore, InvalidInputError
from convstore.ext.ui import HEADERS, UIPage, read_request, resume_stream, ui_messages, ui_stream
from convstore.types import SourcePage, TurnSession, Variant

sys.path.append(str(Path(__file__).parents[1]))

from scripted_sdk import MODEL, Calls, client

USER = "ada"  # your authentication
STORY = (
    "Once upon a time there was an orca that liked "
    + ", ".join(f"fish number {n}" for n in range(1, 500))
    + "."
)
PASSAGES = [
    Document(
        "Orcas eat fish, seals and squid.",
        metadata={"title": "Food", "url": "https://sea.example/food"},
    ),
    Document(
        "They hunt in groups of up to 40.",
        metadata={"title": "Hunting", "url": "https://sea.example/hunting"},
    ),
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "search", "parameters": {"properties": {"query": {"type": "string"}}}},
    },
    {
        "type": "function",
        "function": {
            "name": "refund",
            "parameters": {"properties": {"euros": {"type": "integer"}}},
        },
    },
]
_answers = count(1)


def script(messages: list[dict[str, Any]]) -> str | Calls:
    """Return the reply of a scripted model."""
    said = str(messages[-1]["content"])
    if messages[-1]["role"] == "tool":
        found = re.findall(r"^\[(\d+)\]", said, re.MULTILINE)
        cited = (
            f"They eat fish [{found[0]}] and hunt in groups [{found[1]}]."
            if len(found) > 1
            else said
        )
        return f"Answer {next(_answers)}. {cited}"
    if "refund" in said:
        return [("refund", {"euros": 90})]
    return STORY if "story" in said else [("search", {"query": said})]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one store for the lifetime of a worker."""
    async with await ConversationStore.connect(
        os.environ.get("CONVSTORE_URI", "memory://")
    ) as store:
        await store.setup()
        app.state.store, app.state.model = store, client(script, pause=0.02)
        yield


app = FastAPI(lifespan=lifespan)


def conversation(request: Request, thread_id: str) -> Conversation:
    """Return the conversation of the logged-in user; the client chooses only the thread."""
    chat: Conversation = request.app.state.store.conversation(user_id=USER, thread_id=thread_id)
    return chat


Chat = Annotated[Conversation, Depends(conversation)]


@app.exception_handler(ConflictError)
@app.exception_handler(InvalidInputError)
async def refuse(_request: Request, error: Exception) -> JSONResponse:
    """Respond with 409 while another answer is being made, and with 422 to an invalid request."""
    return JSONResponse({"detail": str(error)}, 409 if isinstance(error, ConflictError) else 422)


@app.post("/api/chat")
async def ask(
    request: Request, request_id: Annotated[str | None, Header(alias="X-Request-ID")] = None
) -> Response:
    """Stream the answer to a question or an edit, another answer, or the rest of a turn after a decision."""
    asked = read_request(await request.body(), request_id=request_id)
    turn = await asked.turn(conversation(request, asked.thread_id), by=USER)
    return StreamingResponse(
        ui_stream(turn, answer(turn, request.app.state.model), asked), headers=dict(HEADERS)
    )


async def answer(turn: TurnSession, model: Any) -> AsyncGenerator[Any, None]:
    """Run the tools and the model until the turn has its answer, or a person has to decide."""
    while turn.is_running:
        for call in turn.open_calls:
            if call.error or call.name not in ("search", "refund"):
                error = call.error or f"There is no tool {call.name!r}."
                await turn.add_result(call, error, error=True)
            elif call.name == "search":
                await turn.add_result(
                    call, "\n".join(passage.page_content for passage in PASSAGES), sources=PASSAGES
                )
            elif call.decision is None:
                await turn.wait_for(call)
            else:
                await turn.add_result(call, f"Refunded {call.args['euros']} euros.")
        if turn.is_running:
            history = await turn.load_history()
            stream = model.chat.completions.create(
                model=MODEL, messages=history.to_openai(), tools=TOOLS, stream=True
            )
            async for chunk in turn.stream(stream):
                yield chunk


@app.get("/api/chat/{thread_id}")
async def load(chat: Chat, before: int | None = None) -> UIPage:
    """Return the messages that a page shows after a reload, or the page before them."""
    return await ui_messages(chat, before=before, limit=20)


@app.get("/api/chat/{thread_id}/stream")
async def resume(chat: Chat) -> Response:
    """Stream an answer that is being made, from its beginning; 204 if no turn runs."""
    events = await resume_stream(chat)
    return StreamingResponse(events, headers=dict(HEADERS)) if events else Response(status_code=204)


@app.post("/api/chat/{thread_id}/{turn_id}/stop")
async def stop(chat: Chat, turn_id: str) -> bool:
    """Stop an answer, whichever worker makes it."""
    return await chat.stop(turn_id)


@app.get("/api/chat/{thread_id}/{turn_id}/variants")
async def variants(chat: Chat, turn_id: str) -> list[Variant]:
    """Return the answers and questions that the page can switch between."""
    return await chat.variants(turn_id)


@app.post("/api/chat/{thread_id}/activate")
async def activate(chat: Chat, variant: Variant) -> None:
    """Show the variant that the user chose."""
    await chat.activate(variant)


@app.get("/api/chat/{thread_id}/sources/{number}")
async def source(chat: Chat, number: int, cited_by: str = "") -> SourcePage:
    """Return the source with a number, or the source that a message cites by it, as in an imported answer."""
    if not cited_by:
        return await chat.get_sources([number])
    cited = {each.number: each.source_id for each in await chat.citations(cited_by)}
    source_id = cited.get(number, number)
    return await chat.get_sources([source_id] if source_id else [])


@app.get("/")
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(Path(__file__).with_name("page.html"))

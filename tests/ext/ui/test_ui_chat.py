"""A chat of the AI SDK against the endpoints of a backend: each thing that a user does, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
from browsing import served
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from langchain_core.messages import AIMessage

from convstore import Conversation
from convstore.ext.ui import HEADERS, read_request, resume_stream, ui_messages, ui_stream
from convstore.types import TurnSession

pytestmark = pytest.mark.slow

TOOLS = {"refund": "Refunded.", "pick": ""}


async def model(question: str, messages: list[Any], number: int) -> AsyncIterator[Any]:
    """Calls the tool that a question names, then answers with the result, else with the question and a number."""
    if question in TOOLS and messages[-1].type != "tool":
        yield {"choices": [{"delta": {"content": "Wait."}}]}
        call = {"index": 0, "id": f"c{number}", "function": {"name": question, "arguments": "{}"}}
        yield {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    else:
        said = messages[-1].text
        if messages[-1].type == "human":
            said = f"{said} {number}"
        yield {"choices": [{"delta": {"content": said}, "finish_reason": "stop"}]}


def application(chat: Conversation, resumed: asyncio.Event) -> FastAPI:
    """The endpoints of one conversation; the event tells that a page follows it."""
    app, numbers = FastAPI(), iter(range(1, 100))

    async def answer(turn: TurnSession) -> AsyncGenerator[Any, None]:
        while turn.is_running:
            for call in turn.open_calls:
                if call.decision is None:
                    await turn.wait_for(call)
                else:
                    await turn.add_result(call, TOOLS[call.name])
            if turn.is_running:
                await turn.load_history()
                async for chunk in turn.stream(
                    model(turn.messages[0].text, turn.messages, next(numbers))
                ):
                    yield chunk

    @app.post("/api/chat")
    async def post(http: Request) -> StreamingResponse:
        request = read_request(
            await http.body(), client_tools={"pick"}, request_id=http.headers["x-request-id"]
        )
        turn = await request.turn(chat)
        return StreamingResponse(ui_stream(turn, answer(turn), request), headers=HEADERS)

    @app.get("/api/chat/{thread_id}/stream")
    async def resume(thread_id: str) -> Response:
        stream = await resume_stream(chat)
        resumed.set()
        return StreamingResponse(stream, headers=HEADERS) if stream else Response(status_code=204)

    return app


async def use(
    run_js: Callable[..., Any],
    chat: Conversation,
    *steps: list[Any],
    resumed: asyncio.Event | None = None,
    **given: Any,
) -> Any:
    """Let a page do the steps; return what it has shown after each."""
    async with served(lambda _port: application(chat, resumed or asyncio.Event())) as port:
        asked = {"api": f"http://127.0.0.1:{port}/api/chat", "steps": steps, **given}
        return await asyncio.to_thread(run_js, "chat_session.mjs", asked)


async def reloaded(chat: Conversation) -> list[list[Any]]:
    """Return the roles and texts that the page shows after a reload."""
    page = await ui_messages(chat, client_tools={"pick"})
    parts = [(message["role"], message["parts"]) for message in page.messages]
    return [
        [
            role,
            *(part.get("text", part.get("state")) for part in own if part["type"] != "step-start"),
        ]
        for role, own in parts
    ]


async def test_a_user_asks_regenerates_and_edits(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """Twice each, without a reload; at the end the log shows the same."""
    done = await use(
        run_js,
        chat,
        ["send", "Hi"],
        ["regenerate"],
        ["send", "So"],
        ["edit", "Oh"],
        ["edit", "Ah"],
        ["regenerate"],
    )
    assert done["errors"] == []
    hi = [["user", "Hi"], ["assistant", "Hi 2"]]
    assert done["shown"][:3] == [
        [["user", "Hi"], ["assistant", "Hi 1"]],
        hi,
        [*hi, ["user", "So"], ["assistant", "So 3"]],
    ]
    assert [shown[3] for shown in done["shown"][3:]] == [
        ["assistant", "Oh 4"],
        ["assistant", "Ah 5"],
        ["assistant", "Ah 6"],
    ]
    assert await reloaded(chat) == done["shown"][-1]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_user_decides(
    approved: bool, chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """The page sends the decision by itself, and the answer goes on in the same message."""
    done = await use(run_js, chat, ["send", "refund"], ["approve", approved])
    assert done["errors"] == []
    assert done["shown"][0][1] == ["assistant", "Wait.", "approval-requested"]
    state = "output-available" if approved else "output-error"
    assert done["shown"][1][1][:3] == ["assistant", "Wait.", state]
    assert await reloaded(chat) == done["shown"][1]


async def test_a_tool_runs_on_the_page(chat: Conversation, run_js: Callable[..., Any]) -> None:
    """The output of a tool that ran on the page becomes the result of the call."""
    done = await use(run_js, chat, ["send", "pick"], ["give", {"colour": "blue"}])
    assert done["errors"] == []
    assert done["shown"][1][1] == ["assistant", "Wait.", "output-available", '{"colour": "blue"}']
    assert await reloaded(chat) == done["shown"][1]


async def test_a_reloaded_page_resumes(chat: Conversation, run_js: Callable[..., Any]) -> None:
    """A reloaded page shows the answer that another worker is streaming to its end. Without one it shows nothing."""
    assert (await use(run_js, chat, ["resume"]))["shown"] == [[]]
    async with await chat.turn("q1", human="Hi") as turn:
        await turn.append(AIMessage("", tool_calls=[{"name": "refund", "args": {}, "id": "c1"}]))
        resumed, page = asyncio.Event(), (await ui_messages(chat)).messages
        resuming = asyncio.ensure_future(
            use(run_js, chat, ["resume"], resumed=resumed, messages=page)
        )
        await resumed.wait()
        await turn.add_result(turn.open_calls[0], json.dumps({"done": True}))
        await turn.append(AIMessage("Done."))
    done = await resuming
    assert done["errors"] == []
    assert done["shown"] == [await reloaded(chat)]

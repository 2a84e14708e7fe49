"""A chat backend with FastAPI: streams, repeated requests, a stop, a reloaded page, other answers, edits, approval.

    python examples/fastapi_chat.py [mongodb://localhost:27017/app]       # calls its endpoints
    CONVSTORE_URI=mongodb://localhost:27017/app uvicorn --app-dir examples fastapi_chat:app --workers 2

Several workers need the address of a server, not memory. MODEL names a real model, as in openai_loop.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, Literal

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from scripted_sdk import MODEL, Calls, client

from convstore import (
    ConflictError,
    Conversation,
    ConversationStore,
    InvalidInputError,
    StoreUnavailableError,
)
from convstore.exceptions import UnknownMessageError
from convstore.ext.inspector import inspector
from convstore.types import ConversationUpdate, TurnSession, Variant

USERS = {"Bearer token-of-ada": "ada"}  # your authentication
STATUSES = {  # FastAPI uses the handler of the nearest class
    ConflictError: 409,  # a second question while a turn runs, or another question under the same request id
    InvalidInputError: 422,
    UnknownMessageError: 404,
    StoreUnavailableError: 503,
}
BROKEN_OFF = "\n\nThe answer broke off. Please send the question again."
STORY = (
    "Once upon a time there was an orca that liked "
    + ", ".join(f"fish number {n}" for n in range(1, 2_000))
    + "."
)


def refund(euros: int) -> str:
    """Refund money: an example of a tool with an effect, which a person has to approve."""
    return f"Refunded {euros} euros."


TOOLS = {"refund": refund}
REFUND: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "refund",
        "parameters": {"type": "object", "properties": {"euros": {"type": "integer"}}},
    },
}


def script(messages: list[dict[str, Any]]) -> str | Calls:
    """Return the reply of a scripted model."""
    if messages[-1]["role"] == "tool":
        return str(messages[-1]["content"])
    if "overload" in messages[-1]["content"]:
        raise RuntimeError("the provider is overloaded")
    if "refund" in messages[-1]["content"]:
        return [("refund", {"euros": 90})]
    return STORY if "story" in messages[-1]["content"] else "Half of it does."


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one store for the lifetime of a worker; all workers may call `setup` at once."""
    uri = os.environ.get("CONVSTORE_URI", "memory://")
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        app.state.store = store
        app.state.model = client(script, pause=0.005)
        app.mount("/conversations", inspector(store, authorize=_own_conversations))
        yield


app = FastAPI(lifespan=lifespan)


def _user(request: Request) -> str | None:
    return USERS.get(request.headers.get("authorization", ""))


def _own_conversations(request: Request) -> dict[str, str] | None:
    """Let the inspector show the conversations of the logged-in user."""
    return {"user_id": user} if (user := _user(request)) else None


def conversation(request: Request, thread_id: str) -> Conversation:
    """Return the conversation of the logged-in user; the client chooses only the thread."""
    if (user := _user(request)) is None:
        raise HTTPException(401)
    chat: Conversation = request.app.state.store.conversation(user_id=user, thread_id=thread_id)
    return chat


Chat = Annotated[Conversation, Depends(conversation)]
RequestId = Annotated[str, Header(alias="X-Request-ID")]


def answers_with(status: int) -> Callable[[Request, Exception], JSONResponse]:
    """Return an error handler that responds with a status."""
    return lambda _request, error: JSONResponse({"detail": str(error)}, status)


for kind, status in STATUSES.items():
    app.add_exception_handler(kind, answers_with(status))


@app.post("/chat/{thread_id}")
async def ask(
    chat: Chat, request: Request, message: str, request_id: RequestId, instead_of: str | None = None
) -> StreamingResponse:
    """Stream the answer to a question; an edited question replaces that of the turn `instead_of`."""
    return answer(request, await chat.turn(request_id, human=message, instead_of=instead_of))


@app.post("/chat/{thread_id}/{turn_id}/regenerate")
async def regenerate(
    chat: Chat, request: Request, turn_id: str, request_id: RequestId
) -> StreamingResponse:
    """Stream another answer; readers see the old one until this one is finished."""
    return answer(request, await chat.turn(turn_id, regenerate=request_id))


def answer(request: Request, turn: TurnSession) -> StreamingResponse:
    """Stream an answer. The turn was entered before the response begins, so a conflict becomes a status."""

    async def words() -> AsyncIterator[str]:
        try:
            async with turn, aclosing(words_of(turn, request.app.state.model)) as found:
                async for word in found:
                    yield word
        except Exception as error:  # noqa: BLE001 - a provider's error or a TurnLostError; status 200 was sent
            logging.getLogger("chat").warning(
                "turn %s broke off: %s", turn.turn_id, type(error).__name__
            )
            yield BROKEN_OFF

    return StreamingResponse(words(), media_type="text/plain")


async def words_of(turn: TurnSession, model: Any) -> AsyncGenerator[str]:
    """Stream the answer, or yield the stored answer of a repeated request."""
    if turn.answer:
        yield turn.answer.text
    while turn.is_running:
        await run_calls(turn)
        if not turn.is_running:  # a call waits for a person, or the user stopped the turn
            break
        history = await turn.load_history()
        stream = await model.chat.completions.create(
            model=MODEL, messages=history.to_openai(), tools=[REFUND], stream=True
        )
        async for chunk in turn.stream(stream):
            if chunk.choices:
                yield getattr(chunk.choices[0].delta, "content", None) or ""


async def run_calls(turn: TurnSession) -> None:
    """Add the result of each call, or let a person decide about it."""
    for call in turn.open_calls:
        if call.error or call.name not in TOOLS:  # invalid arguments, or an unknown tool
            error = call.error or f"There is no tool {call.name!r}."
            await turn.add_result(call, error, error=True)
        elif call.decision is None:
            await turn.wait_for(call)
        else:
            await turn.add_result(call, TOOLS[call.name](**call.args))


def for_browser(update: ConversationUpdate) -> str:
    """Return an update as JSON for a page, without system prompts, stamps and the provider's metadata."""
    shown = [stored for stored in update.messages if stored.message.type != "system"]
    hidden: Any = {"messages": {"__all__": {"stamp": True, "message": {"response_metadata"}}}}
    return update.model_copy(update={"messages": shown}).model_dump_json(exclude=hidden)


@app.get("/chat/{thread_id}")
async def follow(chat: Chat, after: int | None = None) -> StreamingResponse:
    """Send a reloaded page the newest messages, then each change and the growing draft, until the turn is over."""

    async def events() -> AsyncIterator[str]:
        async with aclosing(chat.watch(after=after)) as updates:
            async for update in updates:
                yield f"data: {for_browser(update)}\n\n"
                if update.turn and update.turn.status != "running":
                    break

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/chat/{thread_id}/{turn_id}/decide")
async def decide(
    chat: Chat,
    request: Request,
    turn_id: str,
    result_id: str,
    verdict: Literal["approve", "reject"],
    *,
    variant_id: str | None = None,
) -> StreamingResponse:
    """Record a person's decision, and stream the rest of the answer. Check here that this user may decide.

    A page passes `turn_id` and `variant_id` of the state that `follow` sent.
    """
    await chat.decide(turn_id, result_id, verdict, by=_user(request) or "")
    return answer(request, await chat.turn(turn_id, regenerate=variant_id or None))


@app.post("/chat/{thread_id}/{turn_id}/stop")
async def stop(chat: Chat, turn_id: str) -> bool:
    """Stop a turn, whichever worker runs it."""
    return await chat.stop(turn_id)


@app.get("/chat/{thread_id}/{turn_id}/variants")
async def variants(chat: Chat, turn_id: str) -> list[Variant]:
    """Return the variants of a turn, for a page that shows "2 of 3"."""
    return await chat.variants(turn_id)


@app.post("/chat/{thread_id}/activate")
async def activate(chat: Chat, variant: Variant) -> None:
    """Show the variant that the user chose."""
    await chat.activate(variant)


@app.get("/")
async def index() -> PlainTextResponse:
    """Describe the first request; the inspector is at /conversations."""
    return PlainTextResponse("POST /chat/{thread_id}?message=..., with an X-Request-ID")


async def main() -> None:
    """Call the endpoints as a client does."""
    logging.getLogger("chat").addHandler(logging.StreamHandler(sys.stdout))
    transport, headers = httpx.ASGITransport(app), {"Authorization": "Bearer token-of-ada"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=transport, base_url="http://chat.example", headers=headers
        ) as http,
    ):

        async def say(request_id: str, message: str) -> httpx.Response:
            return await http.post(
                "/chat/t1", params={"message": message}, headers={"X-Request-ID": request_id}
            )

        chat = app.state.store.conversation(user_id="ada", thread_id="t1")
        await chat.append({"role": "system", "content": "Be kind."}, key="system")
        for request_id, message in (
            ("r1", "Does it sleep?"),
            ("r1", "Does it sleep?"),
            ("r1", "Does it eat?"),
        ):
            response = await say(request_id, message)
            print(response.status_code, response.text if response.is_success else "")
        unknown = await http.post("/chat/t1/r9/regenerate", headers={"X-Request-ID": "click-0"})
        print("nothing asked:", (await say("r9", " ")).status_code, unknown.status_code)
        other = (
            await http.post("/chat/t1/r1/regenerate", headers={"X-Request-ID": "click-1"})
        ).text
        found = (await http.get("/chat/t1/r1/variants")).json()
        [active] = [variant for variant in found if variant["is_active"]]
        print("another answer:", other, f"{active['number']} of {active['count']}")
        print("the first again:", (await http.post("/chat/t1/activate", json=found[0])).status_code)
        telling = asyncio.ensure_future(say("r2", "Tell me a story"))
        while await chat.get_turn("r2") is None:  # noqa: ASYNC110 - wait until the other task has asked
            await asyncio.sleep(0.01)
        events = (
            await follow(chat)
        ).body_iterator  # read directly, because this httpx client waits for the end of a stream
        page = (json.loads(str(event).removeprefix("data: ")) async for event in events)
        # drafts are stored once a second
        drafts = (update["turn"]["draft"] async for update in page if update["turn"]["draft"])
        draft = await anext(drafts)
        print("another question meanwhile:", (await say("r3", "And?")).status_code)
        print("after a reload:", draft[:46])
        print("stopped:", (await http.post("/chat/t1/r2/stop")).json())
        told, last = (await telling).text, [update async for update in page][-1]
        kept = last["messages"][-1]["message"]["content"]
        print("kept:", last["turn"]["status"], kept == told, 0 < len(told) < len(STORY))
        await say("r4", "I want a refund")
        waiting = json.loads((await http.get("/chat/t1")).text.removeprefix("data: "))["turn"][
            "waiting_calls"
        ]
        decided = {"result_id": waiting[0]["result_id"], "verdict": "approve"}
        print("approved:", (await http.post("/chat/t1/r4/decide", params=decided)).text)
        print("the page got the prompt:", "Be kind" in (await http.get("/chat/t1")).text)
        print("an overload:", (await say("r5", "Now overload it")).text.strip())
        await chat.delete()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ["CONVSTORE_URI"] = sys.argv[1]
    asyncio.run(main())

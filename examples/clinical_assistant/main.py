"""A clinical assistant behind FastAPI, driven through HTTP without a network.

    python examples/clinical_assistant/main.py [mongodb://localhost:27017/app]

Needs fastapi, httpx and langgraph. The address defaults to CONVSTORE_URI, then to memory. `app.py` says how to serve
it. Only the model is scripted, and its handbook is invented; see `model.py` and `knowledge.py`. Failures are shown
too: a repeated request, a client that disconnects, two concurrent questions, another user's session, a tool that does
not exist, a model that does not answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx

# this file runs as a script; the others are a package
sys.path.insert(0, str(Path(__file__).parents[1]))

from clinical_assistant.app import create_app
from clinical_assistant.model import ScriptedModel

__all__ = ["main"]


class Client:
    """A user with a token."""

    def __init__(self, app: Any, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://assistant.example", headers=headers
        )

    async def ask(self, session: str, request: str, message: str) -> httpx.Response:
        """Ask a question and print the response."""
        body = {"session_id": session, "message": message}
        response = await self._http.post("/chat", json=body, headers={"X-Request-ID": request})
        print(f"  POST /chat {message!r} -> {response.status_code} {_describe(response)}")
        return response

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """Send a GET request and print the outcome."""
        response = await self._http.get(path, params=query)
        print(f"  GET {response.request.url.raw_path.decode()} -> {response.status_code}")
        return response

    async def delete(self, path: str) -> None:
        """Send a DELETE request."""
        (await self._http.delete(path)).raise_for_status()


def _describe(response: httpx.Response) -> str:
    body = response.json()
    if response.status_code != httpx.codes.OK:
        return str(body["detail"])
    error = f" (error_message: {body['error_message']})" if body["error_message"] else ""
    return f"{body['response']!r}{error}{', from the log' if body['is_repeated'] else ''}"


async def talk(
    ada: Client, grace: Client, stranger: Client, model: ScriptedModel, session: str
) -> None:
    """Show questions and answers, and the separation of users."""
    print("Ada asks:")
    await stranger.ask(session, "r0", "hello")
    await ada.ask(session, "r1", "How is Velorin given by mouth?")
    await ada.ask(session, "r2", "What is to be done about moonlace rash?")
    print(
        f"  the model saw {', '.join(message.type for message in model.seen[-1])}; of the first result only this:"
    )
    print(f"    {model.seen[-1][3].text}")
    await ada.ask(session, "r3", "How was the dose of Velorin again?")
    await ada.ask(session, "r4", "Please order it.")
    await ada.ask(session, "r5", "Is there an outage?")

    print("\nGrace asks for Ada's session, then for one that there is not:")
    for name in (session, "no-such-session"):
        await grace.get(f"/sessions/{name}/history")


async def fail(ada: Client, model: ScriptedModel, session: str) -> None:
    """Show repeated, cancelled and concurrent requests."""
    print("\nA request comes again:")
    calls = len(model.seen)
    await ada.ask(session, "r1", "How is Velorin given by mouth?")
    print(f"  calls of the model for it: {len(model.seen) - calls}")
    await ada.ask(session, "r1", "Under this id something else?")

    print("\nThe server dies while the model thinks; the client asks again:")
    thinking = asyncio.Event()

    async def think(question: str) -> None:
        if "scale" in question:
            thinking.set()
            await asyncio.Event().wait()

    model.before_reply = think
    dying = asyncio.create_task(ada.ask(session, "r6", "What does the Larkmoor scale count?"))
    await thinking.wait()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    model.before_reply = None
    await ada.ask(session, "r6", "What does the Larkmoor scale count?")

    print(
        "\nTwo questions at once: one is answered, the other has no place for its answer any more:"
    )
    asked_first, answered = asyncio.Event(), asyncio.Event()

    async def wait_for_the_other(question: str) -> None:
        if "socks" in question:
            asked_first.set()
            await answered.wait()

    model.before_reply = wait_for_the_other
    first = asyncio.create_task(ada.ask(session, "r7", "Who gets yellow socks?"))
    await asked_first.wait()
    await ada.ask(session, "r8", "Where does a shift hand over?")
    answered.set()
    await first
    model.before_reply = None


async def read(ada: Client, session: str) -> None:
    """Show pages and exports."""
    print("\nThe history by pages, the newest first:")
    cursor: int | None = None
    while True:
        query = {"limit": 10} | ({"cursor": cursor} if cursor else {})
        page = (await ada.get(f"/sessions/{session}/history", **query)).json()
        for message in page["messages"]:
            print(f"    {message['ordinal']:>2} {message['author']:<5} {message['text'][:70]}")
        if (cursor := page["next_cursor"]) is None:
            break
    listed = (await ada.get("/sessions")).json()["sessions"]
    print(f"    {', '.join(session['session_id'] for session in listed)}")

    print("\nExports:")
    examples = (await ada.get(f"/sessions/{session}/fine-tuning.jsonl")).text.splitlines()
    roles = [message["role"] for message in json.loads(examples[0])["messages"]]
    print(f"    {len(examples)} examples; the first: {', '.join(roles)}")
    for line in (await ada.get(f"/sessions/{session}/audit.jsonl")).text.splitlines():
        entry = json.loads(line)
        tools = [
            f"{tool['tool']} ({tool['status']}) found {tool['source_ids']}"
            for tool in entry["tools"]
        ]
        used = [source["source_id"] for source in entry["sources_used"]]
        print(
            f"    {entry['interaction_id']} {entry['user_id']}: {entry['question']!r} {'; '.join(tools)}",
            end="",
        )
        print(f" used {used}" + (f", error: {entry['error']}" if entry["error"] else ""))


async def main(uri: str) -> None:
    """Run the application from start to shutdown."""
    # new users in each run
    ada, grace = (
        f"ada-{uuid.uuid4().hex[:8]}",
        f"grace-{uuid.uuid4().hex[:8]}",
    )
    tokens = {secrets.token_urlsafe(32): user for user in (ada, grace)}
    model, session = ScriptedModel(), "night-shift"
    app = create_app(uri, model=model, tokens=tokens)
    async with app.router.lifespan_context(app):
        first, second, stranger = (
            Client(app, token) for token in (*tokens, "a token that nobody was given")
        )
        await talk(first, second, stranger, model, session)
        await fail(first, model, session)
        await read(first, session)
        await first.delete(f"/sessions/{session}")


if __name__ == "__main__":
    logging.disable()  # hides the operators' log of the model's failure; the client's view of it is shown
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )

"""A backend whose endpoints answer with `chat.turn`, and one worker of it under uvicorn.

``python turn_worker.py URI DATABASE JOURNAL SOCKET`` serves it on a socket that its parent listens on, so that callers
wait for the worker that replaces a killed one. What it yields of a reply is in its journal before, and what was
acknowledged right after, so that both are known whoever is killed. So is each error that asyncio or uvicorn logs.
Leases are short, so that the turns of a killed worker are taken over soon.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import uvicorn
from pymongo import AsyncMongoClient
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from convstore import Conversation, ConversationStore
from convstore.exceptions import ConflictError, StoreUnavailableError, UnknownMessageError
from convstore.testing.fixtures import result_id_of
from convstore.turns import drafting, held_lease
from convstore.types import TurnSession

__all__ = ["LEASE_SECONDS", "goes_on", "question"]

LEASE_SECONDS = 3.0
_WORDS, _PAUSE = 8, 0.08
_MOST_PROBLEM = 3_000
_KINDS = ("say", "say", "look", "pay") * 2 + ("tell",)
"""What a model does first: it answers, calls a tool, or one about which a person decides, or tells without an end."""


def question(turn_id: str) -> str:
    """The question of a turn."""
    return f"What is {turn_id}?"


def goes_on(variant: str) -> bool:
    """Return True for a reply that goes on until somebody stops it."""
    return _kind(variant) == "tell"


def _kind(variant: str) -> str:
    return random.Random(variant).choice(_KINDS)


class Journal(logging.Handler):
    """Keeps what happened in a worker, and the errors that are logged there."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(logging.ERROR)
        self._file = file

    def note(self, what: str, **values: Any) -> None:
        """Write a line; it is with the system when this returns."""
        self._file.write(json.dumps({"what": what, "at": time.monotonic(), **values}) + "\n")
        self._file.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write an error that was logged."""
        self.note("wrong", problem=self.format(record)[-_MOST_PROBLEM:])


class Backend:
    """The endpoints."""

    def __init__(self, store: ConversationStore, journal: Journal) -> None:
        self._store, self._journal = store, journal

    def application(self) -> Starlette:
        """Return the application that has them."""
        actions = (self.ask, self.edit, self.regenerate, self.stop, self.decide, self.switch)
        routes = [
            Route(f"/{{turn}}/{action.__name__}", action, methods=["POST"]) for action in actions
        ]
        refused = dict.fromkeys(
            (ConflictError, StoreUnavailableError, UnknownMessageError), _refuse
        )
        return Starlette(routes=routes, exception_handlers=refused, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self._store.close()
        self._journal.note("closed")

    def _chat(self, request: Request) -> Conversation:
        thread = request.path_params["turn"].partition("-")[0]
        return self._store.conversation(user_id="crowd", thread_id=thread)

    async def ask(self, request: Request) -> Response:
        """Stream the answer to a question; the last line is the state of the turn."""
        id_ = request.path_params["turn"]
        return self._answer(await self._chat(request).turn(id_, human=question(id_)), id_)

    async def edit(self, request: Request) -> Response:
        """Stream the answer to a question that replaces another one, as `ask` does."""
        id_, replaced = request.path_params["turn"], request.query_params["instead_of"]
        return self._answer(
            await self._chat(request).turn(id_, human=question(id_), instead_of=replaced), id_
        )

    async def regenerate(self, request: Request) -> Response:
        """Stream another answer, as `ask` does."""
        key = request.query_params["variant"]
        return self._answer(
            await self._chat(request).turn(request.path_params["turn"], regenerate=key), key
        )

    async def stop(self, request: Request) -> Response:
        """Stop a turn."""
        turn = request.path_params["turn"]
        if is_stopped := await self._chat(request).stop(turn):
            self._journal.note("stopped", turn=turn)
        return PlainTextResponse(str(is_stopped))

    async def decide(self, request: Request) -> Response:
        """Decide about the call of a variant."""
        id_, values = request.path_params["turn"], request.query_params
        verdict: Any = values["verdict"]
        chat = self._chat(request)
        call = await result_id_of(chat, f"pay {values['variant']}")
        await chat.decide(id_, call, verdict, message="no")
        return PlainTextResponse("decided")

    async def switch(self, request: Request) -> Response:
        """Show another variant."""
        chat, wanted = self._chat(request), request.query_params["variant"]
        for variant in await chat.variants(request.path_params["turn"]):
            if variant.variant_id == wanted:
                await chat.activate(variant)
                return PlainTextResponse("switched")
        raise HTTPException(404)

    def _answer(self, turn: TurnSession, variant: str) -> Response:
        return StreamingResponse(self._words(turn, variant), media_type="text/plain")

    async def _words(self, turn: TurnSession, variant: str) -> AsyncIterator[str]:
        state = "stopping"  # the exit of the session swallows that it was stopped
        try:
            async with turn:
                if turn.draft:
                    self._journal.note("draft", text=turn.draft)
                if turn.answer:
                    yield turn.answer.text
                while turn.is_running:
                    async for word in self._step(turn, variant):
                        yield word
                state = (
                    "waiting" if turn.is_waiting else "finished" if turn.is_finished else "stopping"
                )
        except (ConflictError, StoreUnavailableError) as error:
            state = type(error).__name__
        yield f"\n{state}"

    async def _step(self, turn: TurnSession, variant: str) -> AsyncIterator[str]:
        for call in turn.open_calls:
            if call.name == "pay" and not call.decision:
                await turn.wait_for(call)
                return
            receipt = await turn.add_result(call, f"found for {turn.turn_id}")
            self._journal.note("acknowledged", ids=receipt.message_ids)
        await turn.load_history()
        kind = _kind(variant)
        if kind in {"look", "pay"} and len(turn.messages) == 1:
            function = {"name": kind, "arguments": "{}"}
            calls = [{"id": f"{kind} {variant}", "type": "function", "function": function}]
            receipt = await turn.append({"role": "assistant", "content": "", "tool_calls": calls})
            self._journal.note("acknowledged", ids=receipt.message_ids)
            return
        async for word in turn.stream(self._say(turn.turn_id, variant)):
            yield word
        if turn.answer is not None:
            self._journal.note("acknowledged", ids=[turn.answer.id])

    async def _say(self, turn_id: str, variant: str) -> AsyncIterator[str]:
        reply = f"{turn_id} {variant} {random.randrange(10**12)}"
        numbers = itertools.count() if goes_on(variant) else range(_WORDS)
        for word in itertools.chain([reply], (f" word{number}" for number in numbers)):
            self._journal.note("yielded", reply=reply, text=word)
            yield word
            await asyncio.sleep(random.uniform(0, 2 * _PAUSE))


async def _refuse(_: Request, error: Exception) -> Response:
    return PlainTextResponse(type(error).__name__, 409)


async def main(uri: str, database: str, journal: Journal, listening: socket.socket) -> None:
    """Serve until a signal comes."""
    held_lease.LEASE = timedelta(seconds=LEASE_SECONDS)
    held_lease.RENEW_SECONDS, held_lease.CHECK_SECONDS, drafting.DRAFT_SECONDS = 0.9, 0.3, 0.2
    # uvicorn's own handler ends it, and asyncio may then log what is left
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        app = Backend(ConversationStore(client[database]), journal).application()
        await uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on")).serve(
            sockets=[listening]
        )


if __name__ == "__main__":
    with Path(sys.argv[3]).open("a", encoding="utf-8") as file:
        handler = Journal(file)
        logging.getLogger().addHandler(handler)
        asyncio.run(main(sys.argv[1], sys.argv[2], handler, socket.socket(fileno=int(sys.argv[4]))))

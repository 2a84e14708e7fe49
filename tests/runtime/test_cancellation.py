"""An append in flight survives a caller that is cancelled again and again, as anyio and Starlette do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from langchain_core.messages import AIMessage, HumanMessage
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from convstore import Conversation, ConversationStore
from convstore.mongo.log import Log
from convstore.runtime import background
from convstore.runtime.background import settle

FLIGHT = 0.3


@pytest.fixture
async def in_flight(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once an insert has begun, which then takes `FLIGHT` seconds before it reaches the server."""
    insert, began = Log.insert, asyncio.Event()

    async def slow(log: Log, *arguments: Any, **options: Any) -> None:
        began.set()
        await asyncio.sleep(FLIGHT)
        await insert(log, *arguments, **options)

    monkeypatch.setattr(Log, "insert", slow)
    return began


async def texts(chat: Conversation) -> list[Any]:
    """The contents in the log."""
    return [message.content async for message in chat.messages()]


async def test_work_ends_whole_under_a_hundred_cancellations() -> None:
    """The caller is told of its cancellation once the work has ended."""
    done: list[int] = []

    async def work() -> None:
        for step in range(400):
            await asyncio.sleep(0)
            done.append(step)

    task = asyncio.ensure_future(settle(work()))
    for _ in range(100):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(done) == 400


async def test_work_that_takes_too_long_is_cut_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time begins with the first cancellation; later ones neither shorten nor lengthen it."""
    monkeypatch.setattr(background, "SETTLE_SECONDS", 0.2)
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(loop.time())

    task = asyncio.ensure_future(settle(work()))
    await asyncio.sleep(0)
    began = loop.time()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.02)
    with suppress(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.02)
    assert [0.15 < number - began < 1 for number in ended] == [True]


async def test_a_work_that_fails_after_the_cancellation_is_quiet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cancellation is the outcome; asyncio logs nothing."""

    async def work() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("too late")

    task = asyncio.ensure_future(settle(work()))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caplog.records == []


@pytest.mark.slow
async def test_an_append_survives_a_cancel_scope(
    chat: Conversation, in_flight: asyncio.Event
) -> None:
    """A scope cancels in each cycle of the loop; the scope ends after the insert, so a retry writes nothing."""
    message = HumanMessage("What about orcas?")
    cancellations = 0

    async def append() -> None:
        nonlocal cancellations
        task = asyncio.current_task()
        assert task is not None
        try:
            await chat.append(message)
        finally:
            cancellations = task.cancelling()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(append)
            await in_flight.wait()
            scope.cancel()
    assert cancellations > 100
    assert await texts(chat) == ["What about orcas?"]
    assert (await chat.append(message)).written == 0


@pytest.fixture
async def server(chat: Conversation) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An application on a real HTTP server that appends while it streams; its address, and the end of its handler."""
    cancelled = asyncio.Event()

    async def stream() -> AsyncIterator[bytes]:
        yield b"begun"
        try:
            await chat.append(HumanMessage("streamed"))
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def answer(_: Request) -> StreamingResponse:
        return StreamingResponse(stream())

    config = uvicorn.Config(
        Starlette(routes=[Route("/", answer)]), port=0, log_level="critical", lifespan="off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/", cancelled
    server.should_exit = True
    await serving


@pytest.mark.slow
async def test_an_append_survives_a_client_that_goes_away(
    chat: Conversation, in_flight: asyncio.Event, server: tuple[str, asyncio.Event]
) -> None:
    """Starlette cancels the response of a client that disconnects; what was being appended is stored."""
    address, ended = server
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("GET", address) as response,
    ):
        received = response.aiter_bytes()  # a stream that nothing refers to is closed at once
        assert await anext(received) == b"begun"
        await in_flight.wait()
    async with asyncio.timeout(5):
        await ended.wait()
    assert await texts(chat) == ["streamed"]


async def test_a_compaction_gives_its_lease_back_under_a_cancel_scope(
    database: Any, scope: dict[str, str]
) -> None:
    """The next worker need not wait a minute for the lease to end."""
    asked = asyncio.Event()

    async def never(_messages: Any, _summary: str | None) -> str:
        asked.set()
        await asyncio.sleep(30)
        return ""

    chat = ConversationStore(database, summarizer=never).conversation(**scope)
    for _ in range(6):
        await chat.append([HumanMessage("why " * 500), AIMessage("so " * 500)])
    async with anyio.create_task_group() as group:
        group.start_soon(partial(chat.compact, force=True))
        await asked.wait()
        group.cancel_scope.cancel()
    query = {"conversation": (await chat.info()).conversation_id, "lease": {"$exists": True}}
    assert await database["log"].count_documents(query) == 0

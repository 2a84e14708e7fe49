"""Read a stream until its end or a request to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any

from convstore.exceptions import InvalidInputError
from convstore.runtime.background import SETTLE_SECONDS, settle

_IS_READING: ContextVar[bool] = ContextVar("_IS_READING", default=False)


def is_streaming() -> bool:
    """Return True in the task that reads the source of a session's stream, which keeps the draft and ends at a stop."""
    return _IS_READING.get()


async def read_until(source: Any, ended: asyncio.Event) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a stream as they come, until it ends or an event is set; the source is closed then.

    One task reads the source from its beginning to its end, because contexts and scopes of some sources belong to one.
    """
    chunks = asyncio.Queue[list[Any]](maxsize=1)
    error: list[BaseException] = []

    async def pump() -> None:
        nonlocal source
        _IS_READING.set(True)
        try:
            if isawaitable(source):
                source = await source
            if not hasattr(source, "__aiter__"):
                given = type(source).__name__
                source = None  # it may be a client or a store, which stays the caller's to close
                raise InvalidInputError(
                    f"turn.stream takes an async iterator of chunks, not {given}"
                )
            async for chunk in source:
                await chunks.put([chunk])
        except BaseException as raised:  # raised again by the reader; a source may cancel itself
            if pumping.cancelling():
                raise
            error.append(raised)
        await chunks.put([])

    pumping = asyncio.create_task(pump())
    stopping = asyncio.create_task(ended.wait())
    try:
        while (found := await _next(chunks, stopping)) and not ended.is_set():
            yield found[0]
        if error and not ended.is_set():
            raise error[0]
    finally:
        await settle(_close(source, pumping, stopping))


async def _next(chunks: asyncio.Queue[list[Any]], stopping: asyncio.Future[Any]) -> list[Any]:
    """Return the next chunk in a list, or an empty one at the end."""
    getting: asyncio.Future[Any] = asyncio.ensure_future(chunks.get())
    try:
        await asyncio.wait({getting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else []
    finally:
        getting.cancel()


async def _close(source: Any, *tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
    close = getattr(source, "aclose", None) or getattr(source, "close", None)
    if callable(close):
        # the source closes itself just now, or ignores that it is closed
        with suppress(RuntimeError, TimeoutError):
            closing = close()
            if isawaitable(closing):
                await asyncio.wait_for(closing, SETTLE_SECONDS)

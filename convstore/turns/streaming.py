"""Read a stream until its end or a request to stop, and keep a draft of it meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from inspect import isawaitable
from typing import Any

from convstore.exceptions import InvalidInputError, StoreError
from convstore.mongo.drafts import Draft, Drafts
from convstore.runtime.background import SETTLE_SECONDS, settle

_LOGGER = logging.getLogger("convstore")
DRAFT_SECONDS = 1.0
"""How often a draft is written."""

DRAFT_CHARACTERS = 250_000
"""Characters that a draft keeps, so that it takes 1 MB at most."""


_IS_READING: ContextVar[bool] = ContextVar("_IS_READING", default=False)


def is_streaming() -> bool:
    """Return True in the task that reads the source of a session's stream, which keeps the draft and ends at a stop."""
    return _IS_READING.get()


async def read_until(source: Any, ended: asyncio.Event) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a stream as they come, until it ends or an event is set; the source is closed then.

    One task reads the source from its beginning to its end, because contexts and scopes of some sources belong to one.
    """
    chunks = asyncio.Queue[list[Any]](maxsize=1)
    error = list[BaseException]()

    async def pump() -> None:
        nonlocal source
        _IS_READING.set(True)
        try:
            if isawaitable(source):
                source = await source
            if not hasattr(source, "__aiter__"):
                raise InvalidInputError(
                    f"turn.stream takes an async iterator of chunks, not {type(source).__name__}"
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


@dataclass(eq=False)
class Drafting:
    """Writes what `text` returns as a draft, once a second, and once more after an error; drops it at the end.

    ``async with`` gives the function that drops it, for a reply that is appended later: with `keeps` the end writes it
    once more. The end waits for a write in progress, also after an error of its caller: one that is cut may be stored
    after the draft was dropped. A draft that cannot be written is no reason to end a stream: its reply is appended all
    the same. An error of the application's redactor is logged once. None is begun if `is_held` is false: it would
    replace that of another worker, or outlive its conversation. Nothing is written while `check` raises a StoreError.
    """

    drafts: Drafts
    conversation: str
    begun: Draft
    text: Callable[[], str]
    _: KW_ONLY
    is_held: Callable[[], Awaitable[bool]]
    check: Callable[[], Awaitable[None]]
    sleep: Callable[[float], Awaitable[None]]
    keeps: bool = False
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _written: str | None = None
    _may_exist: bool = False  # also after a write whose outcome is unknown
    _is_logged: bool = False

    async def __aenter__(self) -> Callable[[], Awaitable[None]]:
        self._repeating = asyncio.ensure_future(self._repeat())
        return self.drop

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await settle(self._end(is_whole=error is None and not self.keeps))

    async def _repeat(self) -> None:
        while True:
            await self.sleep(DRAFT_SECONDS)
            async with self._writing:
                await self.write()

    async def _end(self, *, is_whole: bool) -> None:
        try:
            await self._writing.acquire()
        finally:
            self._repeating.cancel()
        await asyncio.wait({self._repeating})
        await (self.drop() if is_whole else self.write())

    async def write(self) -> None:
        """Write what the text is now, unless it was written already."""
        try:
            now = self.text()[:DRAFT_CHARACTERS]
            await self.check()
            if now and now != self._written:
                await self._store(now)
        except StoreError:
            pass  # written again in a second; the append of the reply reports what lasts
        except Exception as error:  # noqa: BLE001 - a redactor may raise anything
            self._log(error)

    async def _store(self, now: str) -> None:
        draft = self.begun._replace(text=now)
        if self._written is not None:
            await self.drafts.write(self.conversation, draft)
        elif await self.is_held():
            self._may_exist = True
            await self.drafts.begin(self.conversation, draft)
        else:
            return
        self._written = now

    def _log(self, error: Exception) -> None:
        if not self._is_logged:
            self._is_logged = True
            _LOGGER.warning(
                "conversation %s has no drafts, as their redactor raises %s",
                self.conversation,
                type(error).__name__,
            )

    async def drop(self) -> None:
        """Delete the draft, if there may be one."""
        if self._may_exist:
            with suppress(StoreError):
                await self.check()
                await self.drafts.drop(self.conversation, self.begun)

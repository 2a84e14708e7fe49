"""Keep a draft of a reply while it is streamed, and read the draft that another worker left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

from convstore.exceptions import StoreError
from convstore.mongo.drafts import Draft, Drafts
from convstore.runtime.background import settle
from convstore.turns.held_lease import HeldLease
from convstore.wire.streams import StreamedReply

_LOGGER = logging.getLogger("convstore")

DRAFT_SECONDS = 1.0
"""How often a draft is written."""

DRAFT_CHARACTERS = 250_000
"""Characters that a draft keeps, so that it takes 1 MB at most."""


@dataclass(slots=True, eq=False)
class ReplyDrafts:
    """The drafts of the replies of a turn, as the worker that holds the turn knows them.

    `begun` is always an empty draft at the position that the turn has reached.

    Attributes:
        stored: Reads and writes drafts.
        lease: The lease under which they are written.
        found: The draft that an interrupted worker left, with the error by which its run broke off; None without one.
        streamed: The reply that becomes the answer if the session is left after a request to stop.
        drop: Deletes the draft of a reply that a framework's run has streamed and appends next; None without one.
    """

    stored: Drafts
    lease: HeldLease
    found: Draft | None = None
    streamed: StreamedReply = field(default_factory=StreamedReply)
    drop: Callable[[], Awaitable[None]] | None = None

    async def find(self, begun: Draft) -> Draft | None:
        """Return the stored draft if it is of this turn, and nothing was appended since."""
        draft = await self.stored.find(self.lease.conversation)
        is_own = draft and draft.stands_at(begun.turn, begun.variant, begun.after)
        return draft if is_own else None

    def keep(self, begun: Draft, text: Callable[[], str], *, keeps: bool = False) -> Drafting:
        """Return a context that stores the value of `text()` as a draft while a reply is streamed."""
        return Drafting(self.stored, self.lease, begun, text, keeps=keeps)

    def forget(self, reply: StreamedReply) -> None:
        """Exclude a reply from becoming the answer by a stop, unless another reply is streamed by now."""
        if self.streamed is reply:
            self.streamed = StreamedReply()

    async def drop_appended(self) -> None:
        """Delete the draft of a reply that was appended."""
        if self.drop is not None:
            await self.drop()
            self.drop = None

    async def note_error(self, begun: Draft, error: Exception) -> None:
        """Store class and first line of the error by which a run broke off, beside the draft of its reply, if any."""
        with suppress(StoreError):
            draft = await self.find(begun) or begun
            await self.lease.look()
            if not (self.lease.is_lost or self.lease.is_stopping):
                noted = draft._replace(owner=self.lease.owner).after_error(error)
                await self.stored.begin(self.lease.conversation, noted)


@dataclass(eq=False)
class Drafting:
    """Stores the value of `text()` as a draft once a second, and once more after an error; deletes it at the end.

    ``async with`` gives the function that deletes it, for a reply that is appended later: with `keeps` the end writes
    it once more. The end waits for a write in progress, also after an error of its caller: a write that is cancelled
    may be stored after the draft was deleted. If a draft cannot be written, the stream goes on, and its reply is
    appended all the same. An error of the application's redactor is logged once. No draft is begun once the lease is
    lost, as it would replace the draft of another worker or outlive its conversation; later texts only replace the
    draft that this worker began. Nothing is written while a migration excludes this process.
    """

    drafts: Drafts
    lease: HeldLease
    begun: Draft
    text: Callable[[], str]
    _: KW_ONLY
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
            await self.lease.clock.sleep(DRAFT_SECONDS)
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
        """Write the current text, unless it is stored already."""
        try:
            now = self.text()[:DRAFT_CHARACTERS]
            await self.lease.schema.check()
            if now and now != self._written:
                await self._store(now)
        except StoreError:
            pass  # retried in a second; the append of the reply reports an error that lasts
        except Exception as error:  # noqa: BLE001 - a redactor may raise anything
            self._log(error)

    async def _store(self, now: str) -> None:
        draft = self.begun._replace(text=now)
        if self._written is not None:
            await self.drafts.write(self.lease.conversation, draft)
        elif await self.lease.look():
            self._may_exist = True
            await self.drafts.begin(self.lease.conversation, draft)
        else:
            return
        self._written = now

    def _log(self, error: Exception) -> None:
        if not self._is_logged:
            self._is_logged = True
            _LOGGER.warning(
                "conversation %s has no drafts, as their redactor raises %s",
                self.lease.conversation,
                type(error).__name__,
            )

    async def drop(self) -> None:
        """Delete the draft, if there may be one."""
        if self._may_exist:
            with suppress(StoreError):
                await self.lease.schema.check()
                await self.drafts.drop(self.lease.conversation, self.begun)

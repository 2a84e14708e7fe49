"""Track the heads that this store has opened, and bring them up to date by a timer.

The first append of a burst refreshes its conversation's head and opens it. Until ``open_until`` the store may append
more without refreshing the head. Then one bulk write brings the head up to date and closes it. A listing reads the log
for a head that is still open after that time, so a crashed process leaves no stale listing.

Several stores may have the same head open. Each adds a name to ``open_by``, and the last one to leave closes the head.
A store that crashed never leaves. A later burst removes its name, because its first refresh counted all earlier
appends.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice, takewhile

from convstore.exceptions import CorruptDocumentError, StoreClosedError, StoreError
from convstore.log.entry import Totals
from convstore.log.state import NO_START, ViewStart
from convstore.mongo.heads import HeadChange, Heads, Opening
from convstore.mongo.log import Log, SlotTaken
from convstore.runtime.background import Background
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import Clock, as_of, is_backdated
from convstore.runtime.parallel import in_parallel
from convstore.values.scope import Scope

OPEN_SECONDS = 10.0
"""Seconds for which a store appends to a conversation without refreshing its head."""

_ABANDONED = timedelta(seconds=90)
"""A burst that ended this long ago has no append in flight, as an append times out after 60 s."""

_BATCH, _MAXIMUM_OPEN = 500, 5_000
_PAUSE, _TOLERANCE = 1.0, 0.05


@dataclass(slots=True, eq=False)
class Burst:
    """Appends of this store to one conversation since it opened the head.

    Attributes:
        scope: Scope of the conversation.
        conversation: Id of the conversation.
        opening: Name and end of the burst, as the head has them; None if this store did not open the head.
        ends: The same end by the monotonic clock; appends before it do not refresh the head.
        is_backdated: The refresh was backdated, so the head does not look recently used.
        totals: Totals of the newest acknowledged append.
        start: Start of views under the store's own policy that was cached at that append.
        counted: Number of entries that the head counts, as far as this store knows.
        refreshed: The entry that the last refresh counted before its insert; 0 if that append failed.
        unsure: The highest entry that the head may count although its insert failed; 0 for none.
        unknown: The highest entry that may be in the log although its insert failed; 0 for none.
        in_flight: Number of appends that have started and not ended.
    """

    scope: Scope
    conversation: str
    opening: Opening | None
    ends: float
    is_backdated: bool = False
    totals: Totals = Totals()  # noqa: RUF009 - never changed
    start: ViewStart = NO_START
    counted: int = 0
    refreshed: int = 0
    unsure: int = 0
    unknown: int = 0
    in_flight: int = 0

    @property
    def is_stale(self) -> bool:
        """Return True if the head may differ from the log."""
        return max(self.unsure, self.unknown) > 0 or self.totals.entries > self.counted

    def acknowledge(self, totals: Totals, start: ViewStart) -> None:
        """Record the totals of an acknowledged append, and the start of the next view."""
        self.start = start
        self.advance(totals)
        if totals.entries >= self.unsure:
            self.unsure = 0  # the head counts this entry, or no missing one
        if totals.entries >= self.unknown:
            self.unknown = 0  # counted, or its number is taken

    def advance(self, totals: Totals) -> None:
        """Record totals that are known to be in the log, by any writer."""
        if totals.entries > self.totals.entries:
            self.totals = replace(totals, shown=None)  # heads do not store it, and it may be large


class OpenHeads:
    """The bursts of one store, oldest first, and one timer for each event loop that uses it.

    The timer keeps neither the loop nor the store alive. It writes at most once a second, to 500 heads; with 5,000 open
    heads it does not pause. A failed write is retried after `OPEN_SECONDS`, and by `close`. `on_close` is called with
    scope, id and totals of each conversation whose burst ended.
    """

    def __init__(
        self, heads: Heads, log: Log, *, clock: Clock, on_close: Callable[[Scope, str, Totals], None] | None = None
    ) -> None:
        self._heads, self._log, self._clock, self._on_close = heads, log, clock, on_close
        self._running: dict[str, Burst] = {}
        self._queue: OrderedDict[Burst, None] = OrderedDict()
        self._armed = weakref.WeakSet[asyncio.AbstractEventLoop]()
        self._background = Background()

    async def insert(
        self,
        cached: CachedConversation,
        insert: Awaitable[None],
        *,
        totals: Totals,
        start: ViewStart,
        refreshes: bool = False,
    ) -> bool:
        """Await the insert of an entry with these totals, and refresh the head along with it if that is due.

        Args:
            cached: The conversation.
            insert: Inserts the entry.
            totals: The totals of the entry.
            start: The start of the next view.
            refreshes: Refresh the head even if it is open.

        Returns:
            False if the scope has no such conversation any more.
        """
        burst = self._running.get(cached.conversation)
        # Without a burst the head does not show that the conversation is in use, so prune() may end it at any moment.
        is_due = burst is None or refreshes or self._must_refresh(burst, totals.entries)
        burst = self._begin(cached, totals) if burst is None or is_due else burst
        burst.in_flight += 1  # keeps the head open
        exists = True
        try:
            if is_due:
                exists = await self._insert_and_refresh(cached, burst, insert, totals, start)
            else:
                await insert
        except BaseException as error:
            burst.refreshed = 0  # the next append refreshes the head again
            if not isinstance(error, SlotTaken):
                burst.unknown = max(burst.unknown, totals.entries)
            raise
        finally:
            burst.in_flight -= 1
        burst.acknowledge(totals, start)
        return exists

    def _must_refresh(self, burst: Burst, number: int) -> bool:
        """Return True if the append of an entry has to refresh the head."""
        if self._clock.monotonic() >= burst.ends or (burst.is_backdated and not is_backdated()):
            return True
        return burst.refreshed != number if burst.unsure else burst.counted == 0

    async def _insert_and_refresh(
        self, cached: CachedConversation, burst: Burst, insert: Awaitable[None], totals: Totals, start: ViewStart
    ) -> bool:
        """Insert and refresh concurrently; retry a failed refresh, as the head must count acknowledged entries.

        The refresh is sent first, so that a process killed between the two leaves the head open.
        """
        refresh = self._refresh(cached, burst, totals, start)
        exists, outcome = await asyncio.gather(refresh, insert, return_exceptions=True)
        if isinstance(outcome, BaseException):
            raise outcome
        return await self._refresh(cached, burst, totals, start) if isinstance(exists, BaseException) else exists

    async def refresh(self, cached: CachedConversation, *, totals: Totals, start: ViewStart) -> bool:
        """Refresh the head before an append; False if the scope has no such conversation any more."""
        return await self._refresh(cached, self._begin(cached, totals), totals, start)

    async def _refresh(self, cached: CachedConversation, burst: Burst, totals: Totals, start: ViewStart) -> bool:
        scope, opening = dict(cached.scope), burst.opening
        if not await self._heads.refresh(scope, cached.conversation, totals=totals, start=start, opening=opening):
            self._queue.pop(burst, None)
            self._stop(burst)
            return False
        cached.verified_at = self._clock.moment()
        burst.counted = max(burst.counted, totals.entries)
        burst.refreshed = totals.entries
        return True

    def _begin(self, cached: CachedConversation, totals: Totals) -> Burst:
        """Start a burst or a further refresh of one, before the refresh is sent; even if that fails, it is closed."""
        now = self._clock.monotonic()
        burst = self._running.get(cached.conversation)
        if burst is None or now >= burst.ends:
            burst = self._running[cached.conversation] = Burst(
                cached.scope, cached.conversation, self._opening(), now + OPEN_SECONDS
            )
            self._enqueue(burst)
        burst.is_backdated = is_backdated()
        burst.unsure = max(burst.unsure, totals.entries)
        burst.refreshed = 0
        return burst

    def _opening(self) -> Opening:
        with as_of(None):  # an import is backdated, but its burst is not
            until = self._clock.now() + timedelta(seconds=OPEN_SECONDS)
        return Opening(f"{_name(until)}-{secrets.token_hex(6)}", until)

    def mark_head_stale(self, cached: CachedConversation) -> None:
        """Make the next refresh read the log first, because it is not the one that was cached."""
        for burst in self._queue:
            if burst.conversation == cached.conversation:
                burst.unsure = max(burst.unsure, burst.counted, burst.totals.entries)
                burst.totals = Totals()

    def refresh_later(self, cached: CachedConversation, totals: Totals) -> None:
        """Schedule a refresh that counts appends of another process, which may have died before refreshing."""
        burst = self._running.get(cached.conversation)
        if burst is None:
            burst = Burst(cached.scope, cached.conversation, None, self._clock.monotonic() + OPEN_SECONDS)
            self._enqueue(burst)
        burst.advance(totals)

    async def flush(self, partial_scope: Scope = ()) -> None:
        """Bring the heads with these scope values up to date and leave them open. One command for each 500."""
        wanted = set(partial_scope)
        stale = [burst for burst in self._queue if burst.is_stale and wanted <= set(burst.scope)]
        for start in range(0, len(stale), _BATCH):
            await self._write(stale[start : start + _BATCH], closes=False)

    async def close(self, partial_scope: Scope = ()) -> None:
        """Bring the heads with these scope values up to date and close them. One command for each 500.

        Raises:
            StoreError: MongoDB refused the write or is unreachable. The heads stay open, so listings read their logs.
        """
        await self.settled()
        wanted = set(partial_scope)
        bursts = [burst for burst in self._queue if wanted <= set(burst.scope)]
        for start in range(0, len(bursts), _BATCH):
            await self._close(bursts[start : start + _BATCH])

    async def settled(self) -> None:
        """Wait for the running work of this event loop's timer, if any."""
        await self._background.wait()

    def ring(self, due: float = math.inf) -> None:
        """Start closing the heads that are due, unless this event loop already does; the timer calls it.

        If the timer is late, the loop was blocked or stopped. It may run only to be closed, and work started now would
        never end. So the timer is set again for a moment later.
        """
        loop = asyncio.get_running_loop()
        if loop.time() > due + _TOLERANCE:
            self._set_timer(_TOLERANCE)
            return
        self._background.start(self._work)  # if the loop ends first, listings read the log

    def _enqueue(self, burst: Burst) -> None:
        self._queue[burst] = None
        self._arm(burst.ends - self._clock.monotonic())
        if len(self._queue) == _MAXIMUM_OPEN:
            self.ring()

    def _stop(self, burst: Burst) -> None:
        if self._running.get(burst.conversation) is burst:
            del self._running[burst.conversation]

    def _arm(self, seconds: float) -> None:
        """Set the timer of this event loop, unless it is set."""
        loop = asyncio.get_running_loop()
        if loop not in self._armed:
            self._armed.add(loop)
            self._set_timer(seconds, due=loop.time() + seconds)

    def _set_timer(self, seconds: float, *, due: float = math.inf) -> None:
        owner = weakref.ref(self)

        def ring() -> None:
            if (heads := owner()) is not None:
                heads.ring(due)

        self._clock.call_later(seconds, ring)

    async def _work(self) -> None:
        """Close the heads that are due, and set the timer again while more are open."""
        loop = asyncio.get_running_loop()  # read here, as the loop may be gone at the end
        pause: float | None = _PAUSE
        try:
            while bursts := self._due():
                await self._close(bursts)
                if len(self._queue) < _MAXIMUM_OPEN:
                    break
        except StoreClosedError:
            pause = None  # the client was closed before the store, so a retry cannot succeed; `close` raises
        except StoreError:
            pause = OPEN_SECONDS  # still stale: the timer, a listing and `close` try again, and `close` raises
        finally:
            self._armed.discard(loop)
        if self._queue and pause is not None:
            self._arm(max(pause, next(iter(self._queue)).ends - self._clock.monotonic()))

    def _due(self) -> list[Burst]:
        """Return the oldest bursts that have ended, or the oldest of all if too many heads are open."""
        last = float("inf") if len(self._queue) >= _MAXIMUM_OPEN else self._clock.monotonic() + _TOLERANCE
        ended = takewhile(lambda burst: burst.ends <= last, self._queue)
        return list(islice((burst for burst in ended if not burst.in_flight), _BATCH))

    async def _close(self, bursts: Sequence[Burst]) -> None:
        """Bring heads up to date and close them; one with an append in flight stays open."""
        idle = [burst for burst in bursts if not burst.in_flight]
        for burst in idle:
            self._stop(burst)  # a later append starts a burst of its own
        await self._write(idle, closes=True)
        for burst in idle:
            self._queue.pop(burst, None)
            if self._on_close:
                self._on_close(burst.scope, burst.conversation, burst.totals)
        await self._write([burst for burst in bursts if burst.in_flight and burst.is_stale], closes=False)

    async def _write(self, bursts: Sequence[Burst], *, closes: bool) -> None:
        if not bursts:
            return
        changes = await in_parallel(self._change, bursts)
        await self._heads.catch_up([replace(change, closes=closes) for change in changes])
        for burst, change in zip(bursts, changes, strict=True):
            burst.counted = max(burst.counted, change.totals.entries)

    async def _change(self, burst: Burst) -> HeadChange:
        """Return the update of a head; read the log if an append failed.

        An insert of unknown outcome that is not in the log may still land. Then the head stays open, as after a crash.
        """
        totals, through, opening = burst.totals, burst.totals.entries - 1, burst.opening
        if (burst.unsure or burst.unknown) and not burst.in_flight:
            try:
                totals = await self._log.last_totals(burst.conversation)
                through = max(totals.entries, burst.unsure)
                if totals.entries < burst.unknown:
                    opening = None
            except CorruptDocumentError:
                opening = None  # `verify` reports the damage; until it is repaired the head stays open
        abandoned = _name(opening.until - timedelta(seconds=OPEN_SECONDS) - _ABANDONED) if opening else ""
        return HeadChange(dict(burst.scope), burst.conversation, totals, through, burst.start, opening, abandoned)


def _name(moment: datetime) -> str:
    """Return a moment as text that sorts by time."""
    return moment.strftime("%Y%m%d%H%M%S%f")

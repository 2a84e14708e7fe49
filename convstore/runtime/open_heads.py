"""Heads that this store has to bring up to date, and the timer that does it.

Layer 4. The first append of a burst refreshes its conversation's head and opens it: until ``open_until`` the store may
append more without a word to the head. Then one bulk write brings the head up to date and closes it. A listing reads
the log of a head that is still open after that time, so a process that dies owes nothing that is not found.

Several stores may have the same head open. Each has a name in ``open_by``, and the last one to leave closes the head.
A store that died never leaves: a later burst removes its name, because its first refresh counted all that was appended
before it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice, takewhile

from convstore.exceptions import CorruptDocumentError, StoreClosedError, StoreError
from convstore.log.entry import Totals
from convstore.mongo.heads import HeadChange, Heads, Opening
from convstore.mongo.log import Log
from convstore.runtime.cache import UNKNOWN_START, CachedConversation, Start
from convstore.runtime.clock import Clock, as_of, is_backdated
from convstore.runtime.parallel import in_parallel
from convstore.values.scope import Scope

__all__ = ["OPEN_SECONDS", "Burst", "OpenHeads"]

OPEN_SECONDS = 10.0
"""How long a store appends to a conversation without refreshing its head."""

_ABANDONED = timedelta(seconds=90)
"""A burst that ended this long ago has no append in flight: an append gives up after 60 s."""

_AT_ONCE, _MOST = 500, 5_000
_PAUSE, _TOLERANCE = 1.0, 0.05


@dataclass(slots=True, eq=False)
class Burst:
    """Appends of this store to one conversation since it opened the head.

    Attributes:
        scope: Whose conversation it is.
        conversation: Its id.
        opening: Name and end of the burst, as the head has them; None if this store did not open the head.
        ends: The same end by the monotonic clock; appends up to it do not refresh the head.
        is_backdated: The refresh was dated with another moment, so the head does not show that it is in use.
        totals: Of the newest acknowledged append.
        start: Where the default view begins, as far as this store knew at that append; see `Start`.
        told: The entries that the head counts, as far as this store knows.
        refreshed: The entry that the last refresh counted before it was inserted; 0 if that append failed.
        unsure: The highest entry that the head may count though its insert failed; 0 for none.
        in_flight: Appends that have begun and not ended.
    """

    scope: Scope
    conversation: str
    opening: Opening | None
    ends: float
    is_backdated: bool = False
    totals: Totals = Totals()  # noqa: RUF009 - frozen
    start: tuple[int, int, int, int, str] = UNKNOWN_START.position
    told: int = 0
    refreshed: int = 0
    unsure: int = 0
    in_flight: int = 0

    @property
    def is_owed(self) -> bool:
        """Whether the head may not say what the log says."""
        return self.unsure > 0 or self.totals.entries > self.told

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Keep the head open while an append is in flight."""
        self.in_flight += 1
        try:
            yield
        except BaseException:
            self.refreshed = 0  # the next append refreshes the head again
            raise
        finally:
            self.in_flight -= 1

    def acknowledge(self, totals: Totals, start: Start) -> None:
        """Note the totals of an append that is in the log now, and where the default view begins."""
        self.start = start.position
        self.owe(totals)
        if totals.entries >= self.unsure:
            self.unsure = 0  # the head counts this entry, or none that is not in the log

    def owe(self, totals: Totals) -> None:
        """Note totals that the log holds for certain, whoever wrote them."""
        if totals.entries > self.totals.entries:
            self.totals = replace(totals, shown=None)  # heads have no need of it, and it may be large

    def refresh(self, totals: Totals) -> None:
        """Note that the head now counts an entry that is about to be inserted."""
        self.told = max(self.told, totals.entries)
        self.refreshed = totals.entries


class OpenHeads:
    """The bursts of one store, oldest first, and one timer for each event loop that it is used on.

    The timer keeps neither the loop nor the store alive. It writes at most once a second, to 500 heads, and only in
    arrears of 5,000 heads without pauses. A write that fails is repeated after `OPEN_SECONDS`, and by `close`.
    """

    def __init__(self, heads: Heads, log: Log, *, clock: Clock) -> None:
        self._heads, self._log, self._clock = heads, log, clock
        self._running: dict[str, Burst] = {}
        self._queue: OrderedDict[Burst, None] = OrderedDict()
        self._armed = weakref.WeakSet[asyncio.AbstractEventLoop]()
        self._work_under_way: set[asyncio.Future[tuple[None]]] = set()

    def running(self, known: CachedConversation, number: int) -> Burst | None:
        """The burst that an entry belongs to; None if its append has to refresh the head."""
        burst = self._running.get(known.conversation)
        if burst is None or self._clock.monotonic() >= burst.ends or (burst.is_backdated and not is_backdated()):
            return None
        is_told = burst.refreshed == number if burst.unsure else burst.told > 0
        return burst if is_told else None

    def begin(self, known: CachedConversation, totals: Totals) -> Burst:
        """Begin a burst, or another refresh of one, before the refresh is sent; it is closed whatever comes of that."""
        now = self._clock.monotonic()
        burst = self._running.get(known.conversation)
        if burst is None or now >= burst.ends:
            burst = self._running[known.conversation] = Burst(
                known.scope, known.conversation, self._opening(), now + OPEN_SECONDS
            )
            self._enqueue(burst)
        burst.is_backdated = is_backdated()
        burst.unsure = max(burst.unsure, totals.entries)
        burst.refreshed = 0
        return burst

    def _opening(self) -> Opening:
        with as_of(None):  # an import is dated with another moment, its burst is of this one
            until = self._clock.now() + timedelta(seconds=OPEN_SECONDS)
        return Opening(f"{_name(until)}-{secrets.token_hex(6)}", until)

    def forget(self, burst: Burst) -> None:
        """Drop a burst whose conversation has ended."""
        self._queue.pop(burst, None)
        self._stop(burst)

    def doubt(self, known: CachedConversation) -> None:
        """Read the log before its head is told of it: it is not the one that this store knew."""
        for burst in self._queue:
            if burst.conversation == known.conversation:
                burst.unsure = max(burst.unsure, burst.told, burst.totals.entries)
                burst.totals = Totals()

    def remind(self, known: CachedConversation, totals: Totals) -> None:
        """Bring the head up to date later with appends that another process may not have told it of."""
        burst = self._running.get(known.conversation)
        if burst is None:
            burst = Burst(known.scope, known.conversation, None, self._clock.monotonic() + OPEN_SECONDS)
            self._enqueue(burst)
        burst.owe(totals)

    async def flush(self, partial_scope: Scope = ()) -> None:
        """Bring the heads with these scope values up to date; their bursts go on. One command for each 500."""
        wanted = set(partial_scope)
        owed = [burst for burst in self._queue if burst.is_owed and wanted <= set(burst.scope)]
        for start in range(0, len(owed), _AT_ONCE):
            await self._write(owed[start : start + _AT_ONCE], closes=False)

    async def close(self, partial_scope: Scope = ()) -> None:
        """Bring the heads with these scope values up to date and close them. One command for each 500.

        Raises:
            StoreError: MongoDB refused it or is not there; what is owed stays owed, and listings read it in the log.
        """
        await self.settled()
        wanted = set(partial_scope)
        bursts = [burst for burst in self._queue if wanted <= set(burst.scope)]
        for start in range(0, len(bursts), _AT_ONCE):
            await self._close(bursts[start : start + _AT_ONCE])

    async def settled(self) -> None:
        """Wait until the timer of this event loop is done with its work, if it is at it."""
        loop = asyncio.get_running_loop()
        mine = [work for work in self._work_under_way if work.get_loop() is loop]
        await asyncio.gather(*mine, return_exceptions=True)

    def ring(self, due: float = math.inf) -> None:
        """Begin to close what is due, unless this event loop is at it; the timer calls it.

        If the time by which the loop should have rung is over, the loop stood still. Perhaps it was only woken to be
        closed, and work that begins now would never end: so it waits a moment.
        """
        loop = asyncio.get_running_loop()
        if loop.time() > due + _TOLERANCE:
            self._set_timer(_TOLERANCE)
            return
        self._work_under_way -= {work for work in self._work_under_way if work.get_loop().is_closed()}
        if all(work.get_loop() is not loop for work in self._work_under_way):
            # Not create_task: a task of gather's does not complain if the loop ends before it. Listings read the log.
            work = asyncio.gather(self._work())
            self._work_under_way.add(work)
            work.add_done_callback(self._work_under_way.discard)

    def _enqueue(self, burst: Burst) -> None:
        self._queue[burst] = None
        self._arm(burst.ends - self._clock.monotonic())
        if len(self._queue) == _MOST:
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
        """Close what is due, and set the timer again while there is more."""
        loop = asyncio.get_running_loop()  # not at the end, when it may be gone
        pause: float | None = _PAUSE
        try:
            while bursts := self._due():
                await self._close(bursts)
                if len(self._queue) < _MOST:
                    break
        except StoreClosedError:
            pause = None  # the client was closed before the store, so no later try does better; `close` raises
        except StoreError:
            pause = OPEN_SECONDS  # still owed: the timer, a listing and `close` try again, and `close` raises
        finally:
            self._armed.discard(loop)
        if self._queue and pause is not None:
            self._arm(max(pause, next(iter(self._queue)).ends - self._clock.monotonic()))

    def _due(self) -> list[Burst]:
        """The oldest bursts that have ended, or if too many heads are open the oldest bursts."""
        last = float("inf") if len(self._queue) >= _MOST else self._clock.monotonic() + _TOLERANCE
        ended = takewhile(lambda burst: burst.ends <= last, self._queue)
        return list(islice((burst for burst in ended if not burst.in_flight), _AT_ONCE))

    async def _close(self, bursts: Sequence[Burst]) -> None:
        """Bring heads up to date and close them; one with an append in flight stays open."""
        still = [burst for burst in bursts if not burst.in_flight]
        for burst in still:
            self._stop(burst)  # from now on an append begins a burst of its own
        await self._write(still, closes=True)
        for burst in still:
            self._queue.pop(burst, None)
        await self._write([burst for burst in bursts if burst.in_flight and burst.is_owed], closes=False)

    async def _write(self, bursts: Sequence[Burst], *, closes: bool) -> None:
        if not bursts:
            return
        changes = await in_parallel(self._change, bursts)
        await self._heads.catch_up([replace(change, closes=closes) for change in changes])
        for burst, change in zip(bursts, changes, strict=True):
            burst.told = max(burst.told, change.totals.entries)

    async def _change(self, burst: Burst) -> HeadChange:
        """What the head is to say; the log is read if an append failed after the head was told of it."""
        totals, through, opening = burst.totals, burst.totals.entries - 1, burst.opening
        if burst.unsure and not burst.in_flight:
            try:
                totals = await self._log.last_totals(burst.conversation)
                through = max(totals.entries, burst.unsure)
            except CorruptDocumentError:
                opening = None  # `verify` tells of the damage; until it is mended the head stays open
        abandoned = _name(opening.until - timedelta(seconds=OPEN_SECONDS) - _ABANDONED) if opening else ""
        return HeadChange(dict(burst.scope), burst.conversation, totals, through, burst.start, opening, abandoned)


def _name(moment: datetime) -> str:
    """A moment as text that is ordered as time is."""
    return moment.strftime("%Y%m%d%H%M%S%f")

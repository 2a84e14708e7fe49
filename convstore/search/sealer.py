"""Seal the texts of logs into immutable segments, in the background.

Appends write nothing for search. A conversation is due after a minute without an append, or after a search had to read
much of it from the log. Entries that a search has split into words are stored directly; others are read and split here.
One conversation is sealed at a time, a segment of each in turn, with at most a tenth of a core. Segments are optional:
searches read entries without a segment from the log.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import accumulate, islice, takewhile
from typing import NamedTuple, TypeVar

from convstore.exceptions import (
    BrokenLogError,
    ConversationDeletedError,
    CorruptDocumentError,
    SchemaVersionError,
    StoreClosedError,
    StoreUnavailableError,
)
from convstore.index.part import IndexBuilder
from convstore.index.segment import Segment, are_equal, merged, sections_of
from convstore.index.texts import MAX_CHARACTERS
from convstore.log.entry import Totals
from convstore.mongo.collection import Document
from convstore.mongo.parallel import together
from convstore.mongo.segments import SegmentChain, Segments, StoredSegment, segment_chain
from convstore.runtime.background import Background
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import APPEND_SECONDS
from convstore.runtime.log_reader import LogReader
from convstore.runtime.pace import COMMAND, Pace, no_pause
from convstore.search.log_parts import LogParts, SearchedLog, Unsealed
from convstore.values.scope import Scope

REST_SECONDS = 60.0
"""Time without an append after which a conversation is sealed."""

_LOGGER = logging.getLogger("convstore")
_MAX_REMEMBERED = 10_000
_CLOSE_SECONDS = 1.0
"""Time for which a closing store continues to seal."""
_RETRY_SECONDS = 600.0
"""Time after a failure before a conversation is sealed again."""
_MERGED_AT_ONCE = 16
"""Number of unmerged segments that are merged into one."""
_MAX_SPLIT = 4
"""Maximum number of conversations whose split entries are kept for sealing; for others the log is read again."""

_Value = TypeVar("_Value")


class _SealTask(NamedTuple):
    """A conversation to seal.

    Attributes:
        scope: Its scope.
        conversation: Its id; "" for the current conversation of the scope.
        rests: True if it is sealed only after a minute without an append by any process.
        split: The entries after its segments, if a search has split them.
    """

    scope: Scope
    conversation: str = ""
    rests: bool = False
    split: Unsealed | None = None


class Sealer:
    """Seals the conversations of a store that are due; if it is not on, only those passed to `seal`."""

    def __init__(
        self, reader: LogReader, logs: LogParts, segments: Segments, *, is_on: bool
    ) -> None:
        self._reader = reader
        self._log = reader.log
        self._logs = logs
        self._segments = segments
        self._clock = reader.clock
        self._pace = Pace(reader.clock.sleep)
        self._resting: OrderedDict[str, tuple[float, Scope]] = OrderedDict()
        self._armed = weakref.WeakSet[asyncio.AbstractEventLoop]()
        self._scheduled: dict[str, _SealTask] = {}
        self._retry_at: OrderedDict[str, float] = OrderedDict()
        self._background = Background()
        self._is_on = is_on

    @property
    def is_on(self) -> bool:
        """True if it seals due conversations; False for a closed store or one without a search index."""
        return self._is_on

    def note(self, scope: Scope, conversation: str) -> None:
        """Seal a conversation after its last append, unless there is another append in the next minute."""
        if self._is_on:
            _remember(self._resting, conversation, (self._clock.monotonic() + REST_SECONDS, scope))
            self._arm(REST_SECONDS)

    def _arm(self, seconds: float) -> None:
        """Set the timer of this event loop, unless it is set; it keeps neither the loop nor the store alive."""
        if (loop := asyncio.get_running_loop()) in self._armed:
            return
        self._armed.add(loop)
        owner = weakref.ref(self)

        def ring() -> None:
            if sealer := owner():
                sealer.ring()

        self._clock.call_later(seconds, ring)

    def ring(self) -> None:
        """Begin to seal the conversations without an append for a minute; the timer calls it."""
        self._armed.discard(asyncio.get_running_loop())
        now = self._clock.monotonic()
        for conversation in list(
            takewhile(lambda id_: self._resting[id_][0] <= now, self._resting)
        ):
            self.schedule(self._resting.pop(conversation)[1], conversation, rests=True)
        if self._resting:
            self._arm(next(iter(self._resting.values()))[0] - now)

    def searched(
        self,
        cached: CachedConversation,
        chain: SegmentChain,
        log: SearchedLog | None = None,
        *,
        split: Unsealed | None = None,
    ) -> None:
        """Seal a conversation after a search: soon if many entries have no segment, else when it is idle.

        It is also sealed soon if the use of its segments has to be recorded.
        """
        if (log and log.is_due) or chain.is_read_mark_due(self._clock.now()):
            self.schedule(*cached.key, split=split)
        elif log and log.unsealed and cached.conversation not in self._resting:
            self.note(*cached.key)

    def schedule(
        self, scope: Scope, conversation: str, *, rests: bool = False, split: Unsealed | None = None
    ) -> None:
        """Queue a conversation for sealing, unless that failed a short time ago.

        With `rests` it is sealed only after a minute without an append by any process. `split` has the entries after
        its segments, if a search has split them.
        """
        if not self._is_on or self._clock.monotonic() < self._retry_at.get(conversation, 0.0):
            return
        if len(self._scheduled) >= _MAX_REMEMBERED:
            return  # a search schedules it again
        before = self._scheduled.get(conversation, _SealTask(scope, conversation, rests=True))
        if sum(due.split is not None for due in self._scheduled.values()) >= _MAX_SPLIT:
            split = None
        self._scheduled[conversation] = _SealTask(
            scope, conversation, rests and before.rests, split or before.split
        )
        self._background.start(self._seal_scheduled)

    async def wait(self) -> None:
        """Wait for the running work of this event loop, if any."""
        await self._background.wait()

    async def close(self) -> None:
        """Seal due conversations for one more second, without pauses; later searches and appends seal the rest."""
        self._pace.sleep = no_pause
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.wait()
        self._is_on = False

    async def _seal_scheduled(self) -> None:
        while self._scheduled and self._is_on:
            conversation = next(iter(self._scheduled))
            due = self._scheduled.pop(conversation)
            try:
                await self._reader.schema.check()
                if await self._seal_piece(due, self._pace):
                    self._scheduled.setdefault(conversation, due._replace(split=None))
            except (SchemaVersionError, StoreUnavailableError, StoreClosedError):
                pass  # every call reports it
            except Exception as error:  # noqa: BLE001 - logged; the others are sealed
                _remember(self._retry_at, conversation, self._clock.monotonic() + _RETRY_SECONDS)
                line = (
                    "conversation %s cannot be sealed (%s), so searches read its log: "
                    "run `convstore doctor`"
                )
                _LOGGER.warning(line, conversation, type(error).__name__)

    async def seal(self, scope: Scope) -> None:
        """Seal a whole conversation now."""
        while await self._seal_piece(_SealTask(scope), Pace(no_pause)):
            pass

    async def is_right(self, scope: Scope, segment: StoredSegment) -> bool:
        """Return True if the segment rebuilt from the log equals this one, or if the log cannot be read."""
        cached = await self._reader.find(scope)
        part = IndexBuilder()
        pace = Pace(no_pause)
        if cached is None:
            return True
        before = replace(segment, until=segment.first - 1, link=segment.after)
        try:
            async with self._reader.reading(cached):
                new = await self._read(cached, part, pace, before=before, until=segment.until)
        except BrokenLogError:
            return False
        except (CorruptDocumentError, ConversationDeletedError):
            return True  # damage of the log is reported separately
        sizes = (segment.link, segment.tokens, segment.characters)
        if new is None or (new.link, new.tokens, new.characters) != sizes:
            return False
        return are_equal(segment.part.sections, await pace.steps(sections_of(part)))

    async def _seal_piece(self, due: _SealTask, pace: Pace) -> bool:
        """Write the next segment; return True if there may be more to seal.

        It ends within the time of the longest append, so that the sweep of a deletion removes its segment.
        """
        head = await self._reader.heads.find(dict(due.scope))
        if head is None or due.conversation not in ("", head.conversation):
            # It was deleted; its texts must not be stored for a new conversation of the scope.
            return False
        # the cache is for conversations in use
        cached = self._reader.cache.outside(due.scope, head.conversation)
        try:
            async with asyncio.timeout(APPEND_SECONDS), self._reader.reading(cached):
                return await self._seal_next(cached, pace, due)
        except (TimeoutError, ConversationDeletedError):
            return False  # the next search or append schedules it again

    async def _seal_next(self, cached: CachedConversation, pace: Pace, due: _SealTask) -> bool:
        # Read contents after an incomplete search: a segment may be damaged, and is then replaced.
        contents = not due.rests and due.split is None
        documents, tail = await together(
            self._segments.documents(cached.conversation, contents=contents),
            self._log.last_totals(cached.conversation),
        )
        await pace.spent(2 * COMMAND)
        chain = segment_chain(documents, contents=contents)
        now = self._clock.now()
        if due.rests and _is_recent(tail, now):
            return False  # the store that appended since then will seal it
        if not due.rests and chain.is_read_mark_due(now):
            await self._segments.mark_read(cached.conversation, now)
        if due.split:
            new, builder = due.split
            if not chain.is_followed_by(new):
                return True
            await self._put(cached, builder, new, pace, chain=chain, documents=documents)
            return False
        builder = IndexBuilder(room=MAX_CHARACTERS)
        found = await self._read_next(cached, builder, pace, chain, tail)
        if found is None:
            return False
        is_stored = await self._put(cached, builder, found, pace, chain=chain, documents=documents)
        return is_stored and found.until < tail.entries

    async def _read_next(
        self,
        cached: CachedConversation,
        builder: IndexBuilder,
        pace: Pace,
        chain: SegmentChain,
        tail: Totals,
    ) -> StoredSegment | None:
        """Read the entries after the segments; None if there are no more. Segments of another log are dropped."""
        while not chain.ends_with(tail):
            if chain.last.until <= tail.entries:
                new = await self._read(cached, builder, pace, before=chain.last, until=tail.entries)
                if new is not None:
                    return new
            chain.pop()
        return None

    async def _read(
        self,
        cached: CachedConversation,
        builder: IndexBuilder,
        pace: Pace,
        *,
        before: StoredSegment,
        until: int,
    ) -> StoredSegment | None:
        """Read entries after a segment into a part while it has room; None if the segment belongs to another log."""
        last = Totals()
        async with aclosing(
            self._logs.entries(cached, start=max(before.until, 1), before=until + 1)
        ) as batches:
            async for batch in batches:
                await pace.spent(COMMAND)
                if batch[0].number == before.until and batch[0].totals.link != before.link:
                    return None
                entries = [entry for entry in batch if entry.number > before.until]
                added = await self._logs.add(cached, builder, entries, pace)
                last = entries[added - 1].totals if added else last
                if added < len(entries):
                    break
        return before.followed_by(last, characters=builder.characters)

    async def _put(
        self,
        cached: CachedConversation,
        builder: IndexBuilder,
        new: StoredSegment,
        pace: Pace,
        *,
        chain: SegmentChain,
        documents: Sequence[Document],
    ) -> bool:
        """Store a new segment, merged with small segments before it; False if another process was first."""
        absorbed = _absorbed(chain, new)
        if absorbed:
            current = segment_chain(await self._segments.documents(cached.conversation))
            parts = {(segment.first, segment.link): segment.part for segment in current}
            read = [part for old in absorbed if (part := parts.get((old.first, old.link)))]
            if len(read) < len(absorbed):  # another process seals, or a segment is damaged
                self.schedule(cached.scope, cached.conversation)
                return False
            builder = await pace.steps(merged(read, builder))
            new = replace(
                new,
                first=absorbed[0].first,
                after=absorbed[0].after,
                characters=new.characters + sum(old.characters for old in absorbed),
                merges=1,
            )
        segment = replace(new, part=Segment(await pace.steps(sections_of(builder))))
        kept = chain[: len(chain) - len(absorbed)]
        now = self._clock.now()
        await pace.spent(2 * COMMAND)
        return await self._segments.put(
            cached.conversation, segment, read=documents, kept=kept, at=now
        )


def _remember(found: OrderedDict[str, _Value], conversation: str, value: _Value) -> None:
    found[conversation] = value
    found.move_to_end(conversation)
    while len(found) > _MAX_REMEMBERED:
        found.popitem(last=False)


def _absorbed(chain: Sequence[StoredSegment], new: StoredSegment) -> list[StoredSegment]:
    """Return the last segments of a chain to merge with a new one: the unmerged ones, if there are enough of them."""
    run = list(takewhile(lambda segment: not segment.merges, reversed(chain)))
    sizes = accumulate((segment.characters for segment in run), initial=new.characters)
    fitting = [
        segment
        for segment, size in zip(run, islice(sizes, 1, None), strict=True)
        if size <= MAX_CHARACTERS
    ]
    return fitting[::-1] if len(run) >= _MERGED_AT_ONCE - 1 else []


def _is_recent(tail: Totals, now: datetime) -> bool:
    """Return True if a process appended in the last minute."""
    if tail.updated_at is None:
        return False
    return now - tail.updated_at < timedelta(seconds=REST_SECONDS)

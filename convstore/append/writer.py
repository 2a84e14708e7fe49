"""Append a batch to the log: atomically, exactly once, in order and without holes.

Floor 4; `conversation`, `resent_history` and imports call it. The entry is inserted at the number after the cached
tail. If that number or a message id is taken, the writer looks up the ids, reads the tail again and retries with the
messages that are new. So two writers never share a number, and a repeated batch writes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from langchain_core.messages import BaseMessage

from convstore.append.batch import Batch, is_heavy, prepare
from convstore.append.compose import compose
from convstore.append.pending import PendingAppend, renumbered_by
from convstore.append.turn import Placed, check_turn
from convstore.exceptions import (
    ContentConflictError,
    ConversationDeletedError,
    MessageRewoundError,
    SourceIdClashError,
    StoreError,
    StoreUnavailableError,
    UnknownMessageError,
)
from convstore.log.entry import UNREAD, EntryMessage, Totals
from convstore.log.rewind import Rewinds
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.heads import Heads
from convstore.mongo.log import Log, SlotTaken, StoredMessageRow
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.clock import APPEND_SECONDS, Clock
from convstore.runtime.log_reader import LogReader
from convstore.runtime.open_heads import Burst, OpenHeads
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.detection import SourceExtractor
from convstore.sources.source import text_digest
from convstore.values.models import Receipt
from convstore.values.scope import Scope

__all__ = ["TailMoved", "Writer", "pause"]

_TRIES = 1_000
_BACKOFF, _LONGEST_BACKOFF = 0.002, 0.2


async def pause(tries: int) -> None:
    """Back off before the next try, exponentially and with jitter."""
    await asyncio.sleep(random.uniform(0, min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(tries, 10))))  # noqa: S311 - jitter


class TailMoved(Exception):  # noqa: N818 - a result, caught by `resent_history`
    """The log does not end with the entry that an append has to follow."""


class _WasPruned(Exception):  # noqa: N818 - a result, caught here
    """The conversation was pruned during the append."""


class _WasReplaced(Exception):  # noqa: N818 - a result, caught here
    """The scope has another conversation, or its log is not the cached one because a backup was restored."""


class Writer:
    """Writes batches to all conversations of a store."""

    def __init__(
        self,
        reader: LogReader,
        heads: Heads,
        tombstones: Tombstones,
        log: Log,
        cache: ConversationCache,
        *,
        open_heads: OpenHeads,
        codec: Codec,
        counter: NamedCounter,
        clock: Clock,
        extractors: Mapping[str, SourceExtractor],
    ) -> None:
        self._reader, self._heads, self._tombstones, self._log, self._cache = reader, heads, tombstones, log, cache
        self._open_heads = open_heads
        self._codec, self._counter, self._clock, self._extractors = codec, counter, clock, extractors

    async def append(
        self,
        scope: Scope,
        messages: Sequence[BaseMessage],
        *,
        turn: str = "",
        after: Totals | None = None,
        omit: bool = False,
        renumber: bool = False,
        seen: str = "",
    ) -> Receipt:
        """Write messages that have ids; see `Conversation.append` and, for those of one turn, `append_turn`.

        Raises:
            TailMoved: The log does not end with the tail `after`.
        """
        work = partial(
            prepare,
            messages,
            codec=self._codec,
            counter=self._counter,
            token=self._clock.token(),
            extractors=self._extractors,
            omit=omit,
            renumber=renumber,
            seen=seen,
        )
        batch = await asyncio.to_thread(work) if is_heavy(messages) else work()
        return (await self._write(scope, batch, turn=turn, after=after)).receipt()

    async def reserve(self, scope: Scope, number: int) -> range:
        """Reserve source ids; see `Conversation.reserve_source_ids`."""
        append = await self._write(scope, Batch((), self._codec, self._counter), reserve=number)
        through = append.totals.sources_through
        return range(through - number + 1, through + 1)

    async def find_shown(self, scope: Scope, texts: Sequence[str]) -> list[int | None]:
        """Return the numbers under which some texts were shown; see `Conversation.find_shown_sources`."""
        cached = self._cache.get(scope)
        is_fresh = cached is not None and self._cache.is_fresh(cached) and self._cache.is_confirmed(cached)
        shown = cached.tail.shown if cached and cached.tail and is_fresh else None
        if shown is None and (cached := await self._reader.find(scope)):
            async with self._reader.reading(cached):
                shown = (await self._log.last_totals(cached.conversation, shown=True)).shown
        return [(shown or {}).get(text_digest(text)) for text in texts]

    async def _write(
        self, scope: Scope, batch: Batch, *, reserve: int = 0, turn: str = "", after: Totals | None = None
    ) -> PendingAppend:
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                return await self._write_and_retry(scope, batch, reserve, turn, after)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"the append took longer than {APPEND_SECONDS:.0f} s and was given up; it may or may not be written: "
                "repeat it with the same messages"
            ) from error

    async def _write_and_retry(
        self, scope: Scope, batch: Batch, reserve: int, turn: str, after: Totals | None
    ) -> PendingAppend:
        """Write to the scope's conversation; retry if it turns out to be deleted."""
        while True:
            cached = self._cache.get(scope) or await self._claim(scope, batch, turn)
            async with cached.lock:
                if not self._cache.is_current(cached):
                    continue
                append = PendingAppend(batch, batch, reserve, turn, after)
                try:
                    async with self._reader.reading(cached):
                        await self._write_in_order(cached, append)
                    return append
                except (_WasPruned, _WasReplaced, ConversationDeletedError):
                    self._cache.forget(cached)
                    self._open_heads.mark_head_stale(cached)
                except BaseException:
                    cached.tail = None  # the insert's outcome is unknown
                    raise

    async def _claim(self, scope: Scope, batch: Batch, turn: str) -> CachedConversation:
        """Find or create the scope's conversation; a batch that continues a turn creates none."""
        if turn and turn not in batch.ids:
            if cached := await self._reader.find(scope):
                return cached
            raise UnknownMessageError(turn, begins_turn=True)
        now = self._clock.now()
        # A batch that cannot be written must not create a conversation.
        work = partial(compose, batch, Totals(), at=now)
        self._log.check_size((await run_in_thread_if_long(work, characters=batch.characters)).entry)
        head, is_new = await self._heads.claim(dict(scope), at=now)
        claimed = self._cache.add(scope, head.conversation)
        if is_new:
            self._cache.confirm(claimed, Totals())
        return claimed

    async def _write_in_order(self, cached: CachedConversation, append: PendingAppend) -> None:
        """Write one batch; the caller holds the conversation's lock."""
        try:
            for tries in range(_TRIES):
                if tries:
                    await self._look_up(cached, append)
                if append.is_done:
                    self._refresh_head_later(cached)
                    return
                tail = await self._tail(cached, append)
                if not append.may_follow(tail):
                    raise TailMoved
                if not tries and (self._log.must_look_first or append.must_look_up(tail, cached.last_question)):
                    # Checked after reading the tail: a later append by another writer would take this batch's number.
                    await self._look_up(cached, append)
                    if append.is_done:
                        self._refresh_head_later(cached)
                        return
                    await self._check_continues(cached, tail, cached.tail or Totals())
                await self._find_taken(cached, append, tail)
                await self._compose(append, tail)
                if append.totals.preview is UNREAD:
                    cached.tail = None  # a load cached it without the preview
                    tail, seen = await self._tail(cached, append), tail.entries
                    if tail.entries != seen:
                        append.composed = None  # another writer took this number
                        continue
                    await self._compose(append, tail)
                if not await self._is_last(cached, append, tail):
                    continue
                acknowledged = cached.entries
                if await self._insert(cached, append):
                    self._finish(cached, append)
                    if append.number <= acknowledged:  # the number was taken before: a backup was restored
                        self._cache.forget(cached)
                    return
                await self._after_collision(cached, append, tries)
            raise StoreError(
                f"other writers were faster {_TRIES} times; append again, with fewer writers to one conversation"
            )
        finally:
            await self._drop_unused(cached, append)

    async def _is_last(self, cached: CachedConversation, append: PendingAppend, tail: Totals) -> bool:
        """Compare the cached id and tail with the database if they are old. One round trip, none if both are fresh.

        Returns:
            False if another writer appended meanwhile. Then the tail was read again, and the entry must be recomposed.

        Raises:
            _WasReplaced: The conversation was deleted, or its log no longer contains the tail.
        """
        if self._cache.is_fresh(cached) and self._cache.is_confirmed(cached):
            return True
        exists, last = await asyncio.gather(self._check_id(cached, append.totals), self._check_tail(cached, tail))
        if not exists:
            raise _WasReplaced
        await self._check_continues(cached, tail, last)
        if last is not tail:
            self._cache.confirm(cached, last)
        if last.entries > tail.entries:
            append.composed = None
        return last.entries == tail.entries

    async def _check_continues(self, cached: CachedConversation, tail: Totals, last: Totals) -> None:
        """Check that the log continues the cached tail, given the last entry just read.

        Raises:
            _WasReplaced: The log is shorter, or has another entry at the number of the tail.
        """
        if last.entries > tail.entries or (last.entries, last.link) == (tail.entries, tail.link):
            return
        head = await self._heads.find(dict(cached.scope))
        if head is not None and head.conversation == cached.conversation:
            raise _WasReplaced

    async def _check_id(self, cached: CachedConversation, totals: Totals) -> bool:
        if self._cache.is_fresh(cached):
            return True
        return await self._refresh_head(cached, self._open_heads.begin(cached, totals), totals)

    async def _check_tail(self, cached: CachedConversation, tail: Totals) -> Totals:
        return tail if self._cache.is_confirmed(cached) else await self._log.last_totals(cached.conversation)

    async def _compose(self, append: PendingAppend, tail: Totals) -> None:
        work = partial(append.compose, tail, self._clock.now(), self._clock.link())
        await run_in_thread_if_long(work, characters=append.pending.characters)

    async def _tail(self, cached: CachedConversation, append: PendingAppend) -> Totals:
        """Return the tail with everything that this append needs of it; no command when warm."""
        tail = cached.tail
        if tail is None or (tail.shown is None and tail.shown_at and append.needs_shown):
            cached.tail = None
            tail = await self._log.last_totals(cached.conversation, shown=append.needs_shown)
            self._cache.confirm(cached, tail)
        cached.tail = await self._reader.recount_tail(cached, tail)
        return cached.tail

    async def _find_taken(self, cached: CachedConversation, append: PendingAppend, tail: Totals) -> None:
        """Find the source numbers that are taken. An index keeps the numbers of tools apart, but not from the store's.

        Raises:
            SourceIdClashError: One is taken, and the batch may not be renumbered.
        """
        numbers = append.pending.kept_source_ids
        renumber = append.batch.renumber
        if not numbers or min(numbers) > (tail.sources_through if renumber else tail.given_through):
            return
        if renumber:
            append.taken = frozenset(await self._log.taken_source_ids(cached.conversation, numbers))
        else:
            await self._refuse_taken_source_ids(cached, append)

    async def _insert(self, cached: CachedConversation, append: PendingAppend) -> bool:
        """Insert the entry, and refresh the head if that is due; False if another writer took the number or an id."""
        composed = append.composed
        assert composed is not None  # noqa: S101 - composed just before
        chunks = [chunk for chunk in composed.chunks if chunk.number not in append.sent]
        insert = self._log.insert(cached.conversation, composed.entry, chunks, token=append.batch.token)
        # Without a burst the head does not show that the conversation is in use, so prune() may end it at any moment.
        running = self._open_heads.running(cached, append.number)
        burst = running or self._open_heads.begin(cached, append.totals)
        try:
            with burst.appending():
                if running:
                    await insert
                elif not await self._insert_and_refresh_head(insert, cached, burst, append.totals):
                    # delete() also discards appends in flight; prune() only removes idle conversations.
                    if await self._tombstones.was_pruned(cached.conversation):
                        raise _WasPruned
                    self._cache.forget(cached)
        except SlotTaken:
            append.sent.update(chunk.number for chunk in chunks)
            append.composed = None
            return False
        burst.acknowledge(append.totals, self._cache.own_start(cached))
        return True

    async def _insert_and_refresh_head(
        self, insert: Awaitable[None], cached: CachedConversation, burst: Burst, totals: Totals
    ) -> bool:
        """Insert the entry and refresh the head concurrently; False if there is no head.

        A failed refresh is retried, as an append is acknowledged only once the head counts it.
        """
        outcome, exists = await asyncio.gather(
            insert, self._refresh_head(cached, burst, totals), return_exceptions=True
        )
        if isinstance(outcome, BaseException):
            raise outcome
        return await self._refresh_head(cached, burst, totals) if isinstance(exists, BaseException) else exists

    async def _refresh_head(self, cached: CachedConversation, burst: Burst, totals: Totals) -> bool:
        """Refresh the head; False if the scope has no such conversation any more."""
        exists = await self._heads.refresh(
            dict(cached.scope),
            cached.conversation,
            totals=totals,
            start=self._cache.own_start(cached),
            opening=burst.opening,
        )
        if exists:
            self._cache.verify(cached)
            burst.head_refreshed(totals)
        else:
            self._open_heads.forget(burst)
        return exists

    def _refresh_head_later(self, cached: CachedConversation) -> None:
        """Schedule a refresh for a batch that was in the log already: its writer may have died before refreshing."""
        if cached.tail:
            self._open_heads.refresh_later(cached, cached.tail)

    async def _after_collision(self, cached: CachedConversation, append: PendingAppend, tries: int) -> None:
        cached.tail = None
        await self._refuse_taken_source_ids(cached, append)
        if tries:
            await pause(tries)

    async def _look_up(self, cached: CachedConversation, append: PendingAppend) -> None:
        """Find the messages of the batch that are in the log, and check that their content is equal."""
        batch = append.batch
        if not batch.prepared:
            return
        if append.turn or self._log.must_look_first:
            found = await self._look_up_after_tail(cached, append)
        else:
            found, tail = await asyncio.gather(
                self._log.messages_by_id(cached.conversation, batch.ids),
                self._log.last_totals(cached.conversation, shown=append.needs_shown),
            )
            cached.tail = None
            self._cache.confirm(cached, tail)
        for one in batch.prepared:
            if one.id in found and found[one.id].message.identity != one.identity:
                raise ContentConflictError(one.id)
        await self._refuse_rewound(cached, [row.message for row in found.values()])
        if append.turn:
            positions = {id_: _placed(row, cached.rewinds) for id_, row in found.items()}
            check_turn(append.turn, batch.ids, found=positions, tail=cached.tail or Totals())
        append.stored = {id_: row.message.ordinal for id_, row in found.items()}
        append.renumbered = renumbered_by([source for row in found.values() for source in row.sources])
        append.pending = batch.without(append.stored)
        if self._log.must_look_first:
            await self._refuse_taken_source_ids(cached, append)

    async def _look_up_after_tail(
        self, cached: CachedConversation, append: PendingAppend
    ) -> dict[str, StoredMessageRow]:
        """Return the messages of the batch, and the question of its turn, that are in the log.

        The tail is read first, so a concurrent append makes the insert fail.
        """
        tail = await self._log.last_totals(cached.conversation, shown=append.needs_shown)
        cached.tail = None
        self._cache.confirm(cached, tail)
        return await self._log.messages_by_id(cached.conversation, {append.turn, *append.batch.ids} - {""})

    async def _refuse_rewound(self, cached: CachedConversation, stored: Sequence[EntryMessage]) -> None:
        """Check that no stored message of the batch is rewound."""
        if not stored or not cached.tail:
            return
        rewinds = await self._reader.rewinds(cached, cached.tail)
        if inactive := [message.id for message in stored if not rewinds.is_active(message.ordinal)]:
            raise MessageRewoundError(inactive[0])

    async def _refuse_taken_source_ids(self, cached: CachedConversation, append: PendingAppend) -> None:
        """Raise an error if a source id that came with a new message is taken."""
        numbers = append.pending.kept_source_ids
        if not numbers or append.batch.renumber:
            return
        taken = await self._log.taken_source_ids(cached.conversation, numbers)
        if taken and not await self._log.messages_by_id(cached.conversation, append.pending.ids):
            raise SourceIdClashError(taken[0])

    def _finish(self, cached: CachedConversation, append: PendingAppend) -> None:
        composed = append.composed
        assert composed is not None  # noqa: S101 - it was just inserted
        self._cache.confirm(cached, composed.entry.totals)
        messages = composed.entry.messages
        append.stored.update({message.id: message.ordinal for message in messages})
        begins = max((index for index, message in enumerate(messages) if message.type == "human"), default=-1)
        ends = any(message.type == "ai" and not message.calls for message in messages[-1:])
        if begins >= 0:
            position = composed.entry.active_through(messages[begins].ordinal)
            cached.last_question = (messages[begins].id, position, composed.entry.totals.rewind_entry)
        if begins >= 0 or ends:
            self._cache.end_turn(cached)
        finished = len(messages) if ends else begins
        if payloads := append.payloads(finished):
            self._cache.keep_payloads(cached, {**(self._cache.payloads.get(cached) or {}), **payloads})

    async def _drop_unused(self, cached: CachedConversation, append: PendingAppend) -> None:
        """Remove chunks that were sent for an entry that finally did not need them."""
        used = {chunk.number for chunk in append.composed.chunks} if append.composed else set()
        if unused := sorted(append.sent - used):
            with suppress(StoreError):  # must not hide the append's own outcome; a sweep removes them after a day
                await self._log.drop_chunks(cached.conversation, append.batch.token, unused)


def _placed(row: StoredMessageRow, rewinds: Rewinds) -> Placed:
    ordinal, [entry] = row.message.ordinal, rewinds.corrected([row.entry])
    return Placed(row.message.type, entry.turn_at(ordinal), entry.active_through(ordinal))

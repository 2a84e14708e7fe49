"""Append a batch to the log: atomically, exactly once, in order and without holes.

Floor 4; `conversation`, `resent_history` and imports call it. The entry is inserted at the number after the cached
tail. If that number or a message id is taken, the writer looks up the ids, reads the tail again and retries with the
messages that are new. So two writers never share a number, and a repeated batch writes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from langchain_core.messages import BaseMessage

from convstore.append.batch import Batch, is_heavy, prepare
from convstore.append.compose import Composed, compose, payloads_to_cache, renumbered_by
from convstore.append.turn import check_turn, placed
from convstore.exceptions import (
    ContentConflictError,
    ConversationDeletedError,
    MessageRewoundError,
    SourceIdClashError,
    StoreError,
    StoreUnavailableError,
    UnknownMessageError,
)
from convstore.log.entry import UNREAD, Entry, Totals
from convstore.log.totals import preview_of
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.heads import Heads
from convstore.mongo.log import Log, SlotTaken
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.clock import APPEND_SECONDS, Clock
from convstore.runtime.log_reader import LogReader
from convstore.runtime.open_heads import OpenHeads
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.detection import SourceExtractor
from convstore.sources.source import text_digest
from convstore.values.models import Receipt
from convstore.values.scope import Scope

__all__ = ["TailMoved", "Writer", "append_timeout", "pause"]

_Result = TypeVar("_Result")

_TRIES = 1_000
_BACKOFF, _LONGEST_BACKOFF = 0.002, 0.2


async def pause(tries: int) -> None:
    """Back off before the next try, exponentially and with jitter."""
    await asyncio.sleep(random.uniform(0, min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(tries, 10))))  # noqa: S311 - jitter


@asynccontextmanager
async def append_timeout() -> AsyncIterator[None]:
    """Limit the time of an append.

    Raises:
        StoreUnavailableError: The append timed out.
    """
    try:
        async with asyncio.timeout(APPEND_SECONDS):
            yield
    except TimeoutError as error:
        raise StoreUnavailableError(
            f"the append took longer than {APPEND_SECONDS:.0f} s and was given up; it may or may not be written: "
            "repeat it with the same messages"
        ) from error


class TailMoved(Exception):  # noqa: N818 - a result, caught by `resent_history`
    """The log does not end with the entry that an append has to follow."""


class _Replaced(Exception):  # noqa: N818 - a result, caught here
    """The conversation was deleted, pruned, or replaced by a backup; the append belongs to another one."""


@dataclass(slots=True)
class _Append:
    """One append to one conversation, and what the log already has of it.

    Attributes:
        batch: All its messages.
        reserve: Number of source ids to reserve.
        turn: The id of the human message whose turn the batch belongs to; "" for no turn.
        after: The tail that the entry has to follow directly; None for any.
        new: The messages that are still to be written.
        stored: Ordinals of the messages found in the log, by id.
        renumbered: Old and new numbers of sources found in the log, by message id.
        sent: Numbers of the chunks that are written.
        composed: The entry that was tried last, None if it was refused.
    """

    batch: Batch
    reserve: int
    turn: str
    after: Totals | None
    new: Batch
    stored: dict[str, int] = field(default_factory=dict)
    renumbered: dict[str, dict[int, int]] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    composed: Composed | None = None

    @property
    def needs_shown(self) -> bool:
        """Return True if composing needs the sources that were shown before."""
        return self.reserve > 0 or any(one.sources for one in self.new.prepared)

    def receipt(self) -> Receipt:
        """Return the receipt of the finished append."""
        entry = self.composed.entry if self.composed else None
        messages, sources = (entry.messages, entry.sources) if entry else ((), ())
        by_id = self.stored | {message.id: message.ordinal for message in messages}
        ordinals = tuple(by_id[id_] for id_ in self.batch.ids)
        numbers = [source.id for source in sources]
        return Receipt(
            message_ids=tuple(self.batch.ids),
            first=min(ordinals),
            last=max(ordinals),
            ordinals=ordinals,
            written=len(messages),
            entry=entry.number if entry else 0,
            source_ids=(min(numbers), max(numbers)) if numbers else None,
            omitted=self.batch.omitted,
            renumbered=self.renumbered | renumbered_by(sources),
        )


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
        # Each step takes up to a millisecond. Without a pause in between, many users at once stall the event loop for
        # the sum of their steps.
        await asyncio.sleep(0)
        batch = await asyncio.to_thread(work) if is_heavy(messages) else work()
        await asyncio.sleep(0)
        return (await self._write(scope, batch, turn=turn, after=after)).receipt()

    async def reserve(self, scope: Scope, number: int) -> range:
        """Reserve source ids; see `Conversation.reserve_source_ids`."""
        append = await self._write(scope, Batch((), self._codec, self._counter), reserve=number)
        assert append.composed is not None  # noqa: S101 - an append without messages always writes
        through = append.composed.entry.totals.sources_through
        return range(through - number + 1, through + 1)

    async def find_shown(self, scope: Scope, texts: Sequence[str]) -> list[int | None]:
        """Return the numbers under which some texts were shown; see `Conversation.find_shown_sources`."""
        cached = self._cache.get(scope)
        shown = cached.tail.shown if cached and cached.tail and self._cache.is_warm(cached) else None
        if shown is None and (cached := await self._reader.find(scope)):
            async with self._reader.reading(cached):
                shown = (await self._log.last_totals(cached.conversation, shown=True)).shown
        return [(shown or {}).get(text_digest(text)) for text in texts]

    async def _write(
        self, scope: Scope, batch: Batch, *, reserve: int = 0, turn: str = "", after: Totals | None = None
    ) -> _Append:
        """Write to the scope's conversation; start again if it turns out to be deleted."""
        async with append_timeout():
            while True:
                cached = self._cache.get(scope) or await self._claim(scope, batch, turn)
                append = _Append(batch, reserve, turn, after, new=batch)
                async with cached.lock:
                    if not self._cache.is_current(cached):
                        continue
                    try:
                        async with self._reader.reading(cached):
                            await self._write_in_order(cached, append)
                        return append
                    except (_Replaced, ConversationDeletedError):
                        self._cache.forget(cached)
                        self._open_heads.mark_head_stale(cached)
                    except BaseException:
                        cached.tail = None  # the insert's outcome is unknown
                        raise
                    finally:
                        if append.sent:
                            await self._drop_unused(cached, append)

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

    async def _write_in_order(self, cached: CachedConversation, append: _Append) -> None:
        """Write one batch; the caller holds the conversation's lock."""
        for tries in range(_TRIES):
            tail = None if tries else await self._tail(cached, append)
            if tail is None or self._must_look_up(cached, append, tail):
                await self._look_up(cached, append)
                if not append.new.prepared and not append.reserve:
                    if cached.tail:  # the writer of the stored messages may have died before refreshing the head
                        self._open_heads.refresh_later(cached, cached.tail)
                    return
                if tail:
                    await self._check_continues(cached, tail, cached.tail or Totals())
                tail = await self._tail(cached, append)
            taken = await self._taken_source_ids(cached, append, tail)
            at, link = self._clock.now(), self._clock.link()
            work = partial(compose, append.new, tail, at=at, link=link, reserve=append.reserve, taken=taken)
            append.composed = await run_in_thread_if_long(work, characters=append.new.characters)
            if not self._cache.is_warm(cached) and not await self._is_last(cached, append.composed.entry, tail):
                append.composed = None
                continue
            acknowledged = cached.entries
            if await self._insert(cached, append, append.composed):
                self._finish(cached, append.new, append.composed.entry)
                if append.composed.entry.number <= acknowledged:  # the number was taken before: a backup was restored
                    self._cache.forget(cached)
                return
            append.composed = cached.tail = None
            await self._refuse_taken_source_ids(cached, append)
            if tries:
                await pause(tries)
        raise StoreError(
            f"other writers were faster {_TRIES} times; append again, with fewer writers to one conversation"
        )

    def _must_look_up(self, cached: CachedConversation, append: _Append, tail: Totals) -> bool:
        """Return True if the log may hold a part of the batch, or its turn may not be the last one."""
        continues_turn = append.turn and append.turn not in append.batch.ids
        return self._log.must_look_first or bool(
            continues_turn and cached.last_question != (append.turn, tail.active, tail.rewind_entry)
        )

    async def _tail(self, cached: CachedConversation, append: _Append) -> Totals:
        """Return the tail with everything that this append needs of it; no command when warm.

        Raises:
            TailMoved: It is not the tail that the entry has to follow.
        """
        tail = cached.tail
        if tail is None or not _is_sufficient(tail, append):
            cached.tail = None
            tail = await self._log.last_totals(cached.conversation, shown=append.needs_shown)
            self._cache.confirm(cached, tail)
        if tail.counter != self._counter.name:
            tail = await self._reader.recount_tail(cached, tail)
        cached.tail = tail
        if append.after is not None and (append.after.entries, append.after.link) != (tail.entries, tail.link):
            raise TailMoved
        return tail

    async def _look_up(self, cached: CachedConversation, append: _Append) -> None:
        """Find the messages of the batch that are in the log, and check that their content is equal."""
        batch, conversation = append.batch, cached.conversation
        if not batch.prepared:
            return
        read_tail = self._log.last_totals(conversation, shown=append.needs_shown)
        if append.turn or self._log.must_look_first:
            tail = await read_tail  # read first, so a concurrent append makes the insert fail
            found = await self._log.messages_by_id(conversation, {append.turn, *batch.ids} - {""})
        else:
            tail, found = await asyncio.gather(read_tail, self._log.messages_by_id(conversation, batch.ids))
        cached.tail = None
        self._cache.confirm(cached, tail)
        for one in batch.prepared:
            if one.id in found and found[one.id].message.identity != one.identity:
                raise ContentConflictError(one.id)
        if found:
            rewinds = await self._reader.rewinds(cached, tail)
            if inactive := [id_ for id_, row in found.items() if not rewinds.is_active(row.message.ordinal)]:
                raise MessageRewoundError(inactive[0])
        if append.turn:
            positions = {id_: placed(row.message, row.entry, cached.rewinds) for id_, row in found.items()}
            check_turn(append.turn, batch.ids, found=positions, tail=tail)
        append.stored = {id_: row.message.ordinal for id_, row in found.items()}
        append.renumbered = renumbered_by([source for row in found.values() for source in row.sources])
        append.new = batch.without(append.stored)
        if self._log.must_look_first:
            await self._refuse_taken_source_ids(cached, append)

    async def _taken_source_ids(self, cached: CachedConversation, append: _Append, tail: Totals) -> frozenset[int]:
        """Return the source numbers of the batch that are taken, if it may be renumbered; else refuse them.

        An index keeps the numbers of tools apart, but not from those that the store gave.
        """
        numbers, renumber = append.new.kept_source_ids, append.batch.renumber
        if not numbers or min(numbers) > (tail.sources_through if renumber else tail.given_through):
            return frozenset()
        if renumber:
            return frozenset(await self._log.taken_source_ids(cached.conversation, numbers))
        await self._refuse_taken_source_ids(cached, append)
        return frozenset()

    async def _refuse_taken_source_ids(self, cached: CachedConversation, append: _Append) -> None:
        """Raise an error if a source id that came with a new message is taken."""
        numbers = append.new.kept_source_ids
        if not numbers or append.batch.renumber:
            return
        taken = await self._log.taken_source_ids(cached.conversation, numbers)
        if taken and not await self._log.messages_by_id(cached.conversation, append.new.ids):
            raise SourceIdClashError(taken[0])

    async def _is_last(self, cached: CachedConversation, entry: Entry, tail: Totals) -> bool:
        """Compare the cached id and tail with the database, as far as they are old. One round trip.

        Returns:
            False if another writer appended meanwhile. Then the tail was read again, and the entry must be recomposed.

        Raises:
            _Replaced: The conversation was deleted, or its log no longer contains the tail.
        """
        id_is_fresh, is_confirmed = self._cache.is_fresh(cached), self._cache.is_confirmed(cached)
        start = self._cache.own_start(cached)
        exists, last = await asyncio.gather(
            _done(True) if id_is_fresh else self._open_heads.refresh(cached, totals=entry.totals, start=start),
            _done(tail) if is_confirmed else self._log.last_totals(cached.conversation),
        )
        if not exists:
            raise _Replaced
        await self._check_continues(cached, tail, last)
        if last is not tail:
            self._cache.confirm(cached, last)
        return last.entries == tail.entries

    async def _check_continues(self, cached: CachedConversation, tail: Totals, last: Totals) -> None:
        """Check that the log continues the cached tail, given the last entry just read.

        Raises:
            _Replaced: The log is shorter, or has another entry at the number of the tail.
        """
        if last.entries > tail.entries or (last.entries, last.link) == (tail.entries, tail.link):
            return
        head = await self._heads.find(dict(cached.scope))
        if head is not None and head.conversation == cached.conversation:
            raise _Replaced

    async def _insert(self, cached: CachedConversation, append: _Append, composed: Composed) -> bool:
        """Insert the entry, and refresh the head if that is due; False if another writer took the number or an id."""
        chunks = [chunk for chunk in composed.chunks if chunk.number not in append.sent]
        insert = self._log.insert(cached.conversation, composed.entry, chunks, token=append.batch.token)
        start = self._cache.own_start(cached)
        try:
            exists = await self._open_heads.insert(cached, insert, totals=composed.entry.totals, start=start)
        except SlotTaken:
            append.sent.update(chunk.number for chunk in chunks)
            return False
        if not exists:
            # delete() also discards appends in flight; prune() only removes idle conversations.
            if await self._tombstones.was_pruned(cached.conversation):
                raise _Replaced
            self._cache.forget(cached)
        return True

    def _finish(self, cached: CachedConversation, batch: Batch, entry: Entry) -> None:
        """Cache what the next append and the next loads need of an entry that was just inserted."""
        self._cache.confirm(cached, entry.totals)
        messages = entry.messages
        begins = max((index for index, message in enumerate(messages) if message.type == "human"), default=-1)
        ends = bool(messages) and messages[-1].type == "ai" and not messages[-1].calls
        if begins >= 0:
            position = entry.active_through(messages[begins].ordinal)
            cached.last_question = (messages[begins].id, position, entry.totals.rewind_entry)
        if begins >= 0 or ends:
            self._cache.end_turn(cached)
        finished = len(messages) if ends else begins
        if payloads := payloads_to_cache(batch, entry, finished):
            self._cache.keep_payloads(cached, {**(self._cache.payloads.get(cached) or {}), **payloads})

    async def _drop_unused(self, cached: CachedConversation, append: _Append) -> None:
        """Remove chunks that were sent for an entry that finally did not need them."""
        used = {chunk.number for chunk in append.composed.chunks} if append.composed else set()
        if unused := sorted(append.sent - used):
            with suppress(StoreError):  # must not hide the append's own outcome; a sweep removes them after a day
                await self._log.drop_chunks(cached.conversation, append.batch.token, unused)


async def _done(result: _Result) -> _Result:
    return result


def _is_sufficient(tail: Totals, append: _Append) -> bool:
    """Return True if a cached tail has all that composing needs; a load caches it without sources and preview."""
    if tail.shown is None and tail.shown_at and append.needs_shown:
        return False
    return tail.preview is not UNREAD or any(preview_of(one.message) for one in append.new.prepared)

"""Appends a batch to the log: whole, once, in order, without holes.

Layer 4. The entry goes in at the number behind the last one known. If that number, or one of the message ids, is
taken, the ids are looked up, the tail is read again, and what is new is tried again; so two writers never share a
number and a repeated batch writes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
from convstore.log.entry import UNREAD, EntryMessage, Repair, Totals
from convstore.log.repairs import corrected
from convstore.log.rewind import is_active
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.heads import Heads
from convstore.mongo.log import Log, SlotTaken, StoredMessageRow
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.cache import UNKNOWN_START, CachedConversation, CachedPayload, ConversationCache
from convstore.runtime.clock import APPEND_SECONDS, Clock
from convstore.runtime.log_reader import LogReader
from convstore.runtime.open_heads import Burst, OpenHeads
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.detection import SourceExtractor
from convstore.sources.source import text_digest
from convstore.values.models import Receipt
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope

__all__ = ["TailMoved", "Writer", "pause"]

_TRIES = 1_000


_BACKOFF, _LONGEST_BACKOFF = 0.002, 0.2


_DEFAULT = HistoryPolicy()


async def pause(tries: int) -> None:
    """Let other writers go first, the longer the more often somebody did."""
    await asyncio.sleep(random.uniform(0, min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(tries, 10))))  # noqa: S311 - jitter


class TailMoved(Exception):  # noqa: N818 - an answer, caught by `resending`
    """The log does not end with the entry that an append has to follow."""


class _WasPruned(Exception):  # noqa: N818 - an answer, caught here
    """The conversation was ended by a policy while it was written to."""


class _WasReplaced(Exception):  # noqa: N818 - an answer, caught here
    """The scope has another conversation, or its log is not the one that this store knew: a backup was restored."""


class Writer:
    """Appends for all conversations of a store."""

    def __init__(
        self,
        reader: LogReader,
        heads: Heads,
        tombstones: Tombstones,
        log: Log,
        known: ConversationCache,
        *,
        open_heads: OpenHeads,
        codec: Codec,
        counter: NamedCounter,
        clock: Clock,
        extractors: Mapping[str, SourceExtractor],
    ) -> None:
        self._reader, self._heads, self._endings, self._log, self._known = reader, heads, tombstones, log, known
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
    ) -> Receipt:
        """Write messages that have ids; see `Conversation.append` and, for those of one turn, `append_turn`.

        Raises:
            TailMoved: They were to follow the tail `after` directly, and another entry does.
        """
        work = partial(
            prepare,
            messages,
            codec=self._codec,
            counter=self._counter,
            extractors=self._extractors,
            omit=omit,
            renumber=renumber,
        )
        batch = await asyncio.to_thread(work) if is_heavy(messages) else work()
        return (await self._write(scope, batch, turn=turn, after=after)).receipt()

    async def reserve(self, scope: Scope, number: int) -> range:
        """Set source ids aside; see `Conversation.reserve_source_ids`."""
        attempt = await self._write(scope, Batch((), self._codec, self._counter), reserve=number)
        through = attempt.totals.sources_through
        return range(through - number + 1, through + 1)

    async def find_shown(self, scope: Scope, texts: Sequence[str]) -> list[int | None]:
        """Under which numbers some texts were shown; see `Conversation.find_shown_sources`."""
        known = self._known.get(scope)
        retry_if_stale = known is not None and self._known.is_fresh(known) and self._known.is_confirmed(known)
        shown = known.tail.shown if known and known.tail and retry_if_stale else None
        if shown is None:
            shown = await self._read_shown(scope)
        return [shown.get(text_digest(text)) for text in texts]

    async def _read_shown(self, scope: Scope) -> Mapping[bytes, int]:
        known = await self._reader.find(scope)
        if known is None:
            return {}
        async with self._reader.reading(known):
            tail = await self._log.last_totals(known.conversation)
            if tail.shown is not None or not tail.shown_at:
                return tail.shown or {}
            return await self._log.shown(known.conversation, tail.shown_at)

    async def _write(
        self, scope: Scope, batch: Batch, *, reserve: int = 0, turn: str = "", after: Totals | None = None
    ) -> PendingAppend:
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                return await self._write_somewhere(scope, batch, reserve, turn, after)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"the append took longer than {APPEND_SECONDS:.0f} s and was given up; it may or may not be written: "
                "repeat it with the same messages"
            ) from error

    async def _write_somewhere(
        self, scope: Scope, batch: Batch, reserve: int, turn: str, after: Totals | None
    ) -> PendingAppend:
        """Write to the scope's conversation; again if it turns out to be deleted."""
        while True:
            known = self._known.get(scope) or await self._claim(scope, batch, turn)
            async with known.lock:
                if not self._known.is_current(known):
                    continue
                attempt = PendingAppend(batch, batch, self._clock.token(), reserve, turn, after)
                try:
                    async with self._reader.reading(known):
                        await self._write_in_order(known, attempt)
                    return attempt
                except (_WasPruned, _WasReplaced, ConversationDeletedError):
                    self._known.forget(known)
                    self._open_heads.doubt(known)
                except BaseException:
                    known.tail = None  # what became of the insert is not known
                    raise

    async def _claim(self, scope: Scope, batch: Batch, turn: str) -> CachedConversation:
        """Find the scope's conversation or begin one, unless its batch goes on with a turn."""
        if turn and turn not in batch.ids:
            if known := await self._reader.find(scope):
                return known
            raise UnknownMessageError(turn, begins_turn=True)
        now = self._clock.now()
        # What cannot be written begins no conversation.
        work = partial(compose, batch, Totals(), at=now, token="")
        self._log.check_size((await run_in_thread_if_long(work, characters=batch.characters)).entry)
        head, is_new = await self._heads.claim(dict(scope), at=now)
        claimed = self._known.add(scope, head.conversation)
        if is_new:
            self._known.confirm(claimed, Totals())
        return claimed

    async def _write_in_order(self, known: CachedConversation, attempt: PendingAppend) -> None:
        """Write one batch while no other of this store is on its way."""
        try:
            for tries in range(_TRIES):
                if tries:
                    await self._look_up(known, attempt)
                if attempt.is_done:
                    self._remind(known)
                    return
                tail = await self._tail(known, attempt)
                if not attempt.may_follow(tail):
                    raise TailMoved
                if not tries and (self._log.must_look_first or attempt.must_look(tail, known.asked)):
                    # Behind the tail: what another adds later takes the number that this batch tries for.
                    await self._look_up(known, attempt)
                    if attempt.is_done:
                        self._remind(known)
                        return
                    await self._check_continues(known, tail, known.tail or Totals())
                await self._find_taken(known, attempt, tail)
                await self._compose(attempt, tail)
                if attempt.totals.preview is UNREAD:
                    known.tail = None  # learnt by a load
                    tail, seen = await self._tail(known, attempt), tail.entries
                    if tail.entries != seen:
                        attempt.composed = None  # somebody was first
                        continue
                    await self._compose(attempt, tail)
                if not await self._is_last(known, attempt, tail):
                    continue
                least = known.entries
                if await self._insert(known, attempt):
                    self._finish(known, attempt)
                    if attempt.number <= least:  # the log was restored from a backup: that number was taken
                        self._known.forget(known)
                    return
                await self._after_collision(known, attempt, tries)
            raise StoreError(f"{_TRIES} other writers were first; append again, and less at once to one conversation")
        finally:
            await self._drop_unused(known, attempt)

    async def _is_last(self, known: CachedConversation, attempt: PendingAppend, tail: Totals) -> bool:
        """Compare id and tail with the database, those of them that are old; one round trip, none if both are young.

        Returns:
            False if another writer appended meanwhile: the tail is read again, and the entry is to be made again.

        Raises:
            _WasReplaced: The conversation has ended, or the tail is no part of its log any more.
        """
        if self._known.is_fresh(known) and self._known.is_confirmed(known):
            return True
        is_there, last = await asyncio.gather(self._check_id(known, attempt.totals), self._check_tail(known, tail))
        if not is_there:
            raise _WasReplaced
        await self._check_continues(known, tail, last)
        if last is not tail:
            self._known.confirm(known, last)
        if last.entries > tail.entries:
            attempt.composed = None
        return last.entries == tail.entries

    async def _check_continues(self, known: CachedConversation, tail: Totals, last: Totals) -> None:
        """Make sure that a log that was just read may be the one that had this tail, or has ended.

        Raises:
            _WasReplaced: It has less, or another entry in the place of the tail.
        """
        if last.entries > tail.entries or (last.entries, last.link) == (tail.entries, tail.link):
            return
        head = await self._heads.find(dict(known.scope))
        if head is not None and head.conversation == known.conversation:
            raise _WasReplaced

    async def _check_id(self, known: CachedConversation, totals: Totals) -> bool:
        if self._known.is_fresh(known):
            return True
        return await self._refresh(known, self._open_heads.begin(known, totals), totals)

    async def _check_tail(self, known: CachedConversation, tail: Totals) -> Totals:
        return tail if self._known.is_confirmed(known) else await self._log.last_totals(known.conversation)

    async def _compose(self, attempt: PendingAppend, tail: Totals) -> None:
        work = partial(attempt.compose, tail, self._clock.now(), self._clock.link())
        await run_in_thread_if_long(work, characters=attempt.pending.characters)

    async def _tail(self, known: CachedConversation, attempt: PendingAppend) -> Totals:
        """What the log holds, as far as the attempt must know it; no command when warm."""
        if known.tail is None:
            self._known.confirm(known, await self._log.last_totals(known.conversation))
        known.tail = await self._reader.recount_tail(known, known.tail or Totals())
        if known.tail.shown is None and known.tail.shown_at and attempt.shows:
            known.tail = replace(known.tail, shown=await self._log.shown(known.conversation, known.tail.shown_at))
        return known.tail

    async def _find_taken(self, known: CachedConversation, attempt: PendingAppend, tail: Totals) -> None:
        """Find out which numbers must be given anew; only what is not above all numbers so far can be taken."""
        numbers = attempt.pending.kept_source_ids
        if attempt.batch.renumber and numbers and min(numbers) <= tail.sources_through:
            attempt.taken = frozenset(await self._log.taken_source_ids(known.conversation, numbers))

    async def _insert(self, known: CachedConversation, attempt: PendingAppend) -> bool:
        """Send the entry, and beside it the head if that is due; False if somebody was first."""
        composed = attempt.composed
        assert composed is not None  # noqa: S101 - composed just before
        chunks = [chunk for chunk in composed.chunks if chunk.number not in attempt.sent]
        insert = self._log.insert(known.conversation, composed.entry, chunks, token=attempt.token)
        # Without a burst the head does not show that the conversation is in use, and a policy may end it at any moment.
        running = self._open_heads.running(known, attempt.number)
        burst = running or self._open_heads.begin(known, attempt.totals)
        try:
            with burst.appending():
                if running:
                    await insert
                elif not await self._beside(insert, known, burst, attempt.totals):
                    # Who deletes it means all that is on its way, too; a policy means only what is old.
                    if await self._endings.was_pruned(known.conversation):
                        raise _WasPruned
                    self._known.forget(known)
        except SlotTaken:
            attempt.sent.update(chunk.number for chunk in chunks)
            attempt.composed = None
            return False
        burst.acknowledge(attempt.totals, known.starts.get(_DEFAULT, UNKNOWN_START))
        return True

    async def _beside(self, insert: Awaitable[None], known: CachedConversation, burst: Burst, totals: Totals) -> bool:
        """Insert, and tell the head; False if there is no head. What was not told is not acknowledged."""
        outcome, is_there = await asyncio.gather(insert, self._refresh(known, burst, totals), return_exceptions=True)
        if isinstance(outcome, BaseException):
            raise outcome
        return await self._refresh(known, burst, totals) if isinstance(is_there, BaseException) else is_there

    async def _refresh(self, known: CachedConversation, burst: Burst, totals: Totals) -> bool:
        position = known.starts.get(_DEFAULT, UNKNOWN_START).position
        is_there = await self._heads.refresh(
            dict(known.scope), known.conversation, totals=totals, start=position, opening=burst.opening
        )
        if is_there:
            self._known.verify(known)
            burst.refresh(totals)
        else:
            self._open_heads.forget(burst)
        return is_there

    def _remind(self, known: CachedConversation) -> None:
        """Let the head count a batch that was in the log already: the process that wrote it may have died."""
        if known.tail:
            self._open_heads.remind(known, known.tail)

    async def _after_collision(self, known: CachedConversation, attempt: PendingAppend, tries: int) -> None:
        known.tail = None
        await self._explain(known, attempt)
        if tries:
            await pause(tries)

    async def _look_up(self, known: CachedConversation, attempt: PendingAppend) -> None:
        """Find out which messages of the batch are in the log, and that they are the same ones."""
        batch = attempt.batch
        if not batch.prepared:
            return
        if attempt.turn or self._log.must_look_first:
            found = await self._look_behind_tail(known, attempt)
        else:
            found, tail = await asyncio.gather(
                self._log.messages_by_id(known.conversation, batch.ids), self._log.last_totals(known.conversation)
            )
            known.tail = None
            self._known.confirm(known, tail)
        for id_, digest in zip(batch.ids, batch.digests, strict=True):
            if id_ in found and found[id_].message.digest != digest:
                raise ContentConflictError(id_)
        await self._refuse_rewound(known, [row.message for row in found.values()])
        if attempt.turn:
            places = {id_: _placed(row, known.repair) for id_, row in found.items()}
            check_turn(attempt.turn, batch.ids, found=places, tail=known.tail or Totals())
        attempt.stored = {id_: row.message.ordinal for id_, row in found.items()}
        attempt.renumbered = renumbered_by([source for row in found.values() for source in row.sources])
        attempt.pending = batch.without(attempt.stored)
        if self._log.must_look_first:
            await self._explain(known, attempt)

    async def _look_behind_tail(self, known: CachedConversation, attempt: PendingAppend) -> dict[str, StoredMessageRow]:
        """What the log has of a batch, and of the question of its turn; what is added meanwhile makes the tail old."""
        tail = await self._log.last_totals(known.conversation)
        known.tail = None
        self._known.confirm(known, tail)
        return await self._log.messages_by_id(known.conversation, {attempt.turn, *attempt.batch.ids} - {""})

    async def _refuse_rewound(self, known: CachedConversation, stored: Sequence[EntryMessage]) -> None:
        """Make sure that what is in the log already is not left out of views."""
        if not stored or not known.tail:
            return
        gaps = await self._reader.gaps(known, known.tail.marker)
        if gone := [message.id for message in stored if not is_active(gaps, message.ordinal)]:
            raise MessageRewoundError(gone[0])

    async def _explain(self, known: CachedConversation, attempt: PendingAppend) -> None:
        """Say which source id is taken, if one is that a message not in the log yet came with."""
        numbers = attempt.pending.kept_source_ids
        if not numbers or attempt.batch.renumber:
            return
        taken = await self._log.taken_source_ids(known.conversation, numbers)
        if taken and not await self._log.messages_by_id(known.conversation, attempt.pending.ids):
            raise SourceIdClashError(taken[0])

    def _finish(self, known: CachedConversation, attempt: PendingAppend) -> None:
        composed = attempt.composed
        assert composed is not None  # noqa: S101 - it was just inserted
        self._known.confirm(known, composed.entry.totals)
        attempt.stored.update({message.id: message.ordinal for message in composed.entry.messages})
        for one, message in zip(attempt.pending.prepared, composed.entry.messages, strict=True):
            if message.type == "human":
                self._known.end_turn(known)
                live = composed.entry.live_at(message.ordinal)
                known.asked = (message.id, live, composed.entry.totals.marker)
            if message.payload and one.split:
                # A load in the middle of this turn would read it back at once.
                kept = CachedPayload(one.split.encoded.payload, 0 if message.stub else message.payload.shown)
                self._known.keep_payloads(known, {**(self._known.payloads.get(known) or {}), message.id: kept})
        if any(message.type == "ai" and not message.calls for message in composed.entry.messages[-1:]):
            self._known.end_turn(known)

    async def _drop_unused(self, known: CachedConversation, attempt: PendingAppend) -> None:
        """Remove chunks that were sent ahead of an entry that did not need them in the end."""
        used = {chunk.number for chunk in attempt.composed.chunks} if attempt.composed else set()
        if unused := sorted(attempt.sent - used):
            with suppress(StoreError):  # it is how the append ended that counts; after a day a sweep removes them
                await self._log.drop_chunks(known.conversation, attempt.token, unused)


def _placed(row: StoredMessageRow, repair: Repair | None) -> Placed:
    ordinal, [entry] = row.message.ordinal, corrected([row.entry], repair)
    return Placed(row.message.type, entry.turn_at(ordinal), entry.live_at(ordinal))

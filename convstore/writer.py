"""Appends a batch to the log: whole, once, in order, without holes.

Layer 4. The entry goes in at the number behind the last one known. If that number, or one of the message ids, is
taken, the ids are looked up, the tail is read again, and what is new is tried again; so two writers never share a
number and a repeated batch writes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from convstore.batch import Batch, Composed, compose, is_heavy, prepare
from convstore.codec import Codec
from convstore.entries import Totals
from convstore.exceptions import ContentConflictError, SourceIdClashError, StoreError, StoreUnavailableError
from convstore.known import ID_LIFETIME, Clock, Known, KnownConversations, Scope
from convstore.models import Receipt
from convstore.policy import HistoryPolicy
from convstore.repository import Heads, Log, SlotTaken
from convstore.tokens import TokenCounter

__all__ = ["APPEND_SECONDS", "Writer"]

APPEND_SECONDS = 60.0
"""An append gives up after this time; a sweep that comes later finds everything that it may have written."""

_TRIES = 1_000
_BACKOFF, _LONGEST_BACKOFF = 0.002, 0.2
_DEFAULT = HistoryPolicy()


@dataclass(slots=True)
class _Attempt:
    """One append under way: what is found of it in the log, what is left to write, what is sent already."""

    batch: Batch
    pending: Batch
    token: str
    reserve: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    composed: Composed | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to write."""
        return not self.pending.prepared and not self.reserve


class Writer:
    """Appends for all conversations of a store."""

    def __init__(
        self, heads: Heads, log: Log, known: KnownConversations, *, codec: Codec, counter: TokenCounter, clock: Clock
    ) -> None:
        self._heads, self._log, self._known = heads, log, known
        self._codec, self._counter, self._clock = codec, counter, clock

    async def append(self, scope: Scope, messages: Sequence[BaseMessage], *, omit: bool) -> Receipt:
        """Write messages that have ids; see `Conversation.append`."""
        if is_heavy(messages):
            batch = await asyncio.to_thread(prepare, messages, codec=self._codec, counter=self._counter, omit=omit)
        else:
            batch = prepare(messages, codec=self._codec, counter=self._counter, omit=omit)
        return _receipt(await self._write(scope, batch))

    async def reserve(self, scope: Scope, number: int) -> range:
        """Set source ids aside; see `Conversation.reserve_source_ids`."""
        attempt = await self._write(scope, Batch((), self._codec, self._counter), reserve=number)
        assert attempt.composed is not None  # noqa: S101 - it was just inserted
        through = attempt.composed.entry.totals.sources_through
        return range(through - number + 1, through + 1)

    async def flush(self) -> None:
        """Bring the heads of recently used conversations up to date, so that listings are."""
        for scope, known in self._known.all():
            tail = known.tail
            if tail and tail.entries > known.told_entries:
                await self._refresh(scope, known, tail)

    async def _write(self, scope: Scope, batch: Batch, *, reserve: int = 0) -> _Attempt:
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                return await self._write_somewhere(scope, batch, reserve)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"the append took longer than {APPEND_SECONDS:.0f} s and was given up; it may or may not be written: "
                "repeat it with the same messages"
            ) from error

    async def _write_somewhere(self, scope: Scope, batch: Batch, reserve: int) -> _Attempt:
        while True:
            known = self._known.get(scope) or await self._claim(scope, batch)
            async with known.lock:
                if not self._known.is_current(scope, known):
                    continue
                try:
                    attempt = await self._write_in_order(scope, known, batch, reserve)
                except BaseException:
                    known.tail = None  # what became of the insert is not known
                    raise
                if attempt is not None:
                    return attempt

    async def _claim(self, scope: Scope, batch: Batch) -> Known:
        """Find the scope's conversation or begin one, whose head tells of this batch already."""
        now = self._clock.now()
        first = compose(batch, Totals(), at=now, token="")
        self._log.check_size(first.entry)
        head, is_new = await self._heads.claim(dict(scope), at=now, totals=first.entry.totals)
        known = self._known.add(scope, head.conversation)
        if is_new:
            known.advance(Totals())
            known.told(first.entry.totals)
        return known

    async def _write_in_order(self, scope: Scope, known: Known, batch: Batch, reserve: int) -> _Attempt | None:
        """Write one batch while no other of this store is on its way; None if the conversation is gone."""
        attempt = _Attempt(batch, batch, self._clock.token(), reserve)
        if self._log.must_look_first:
            await self._look_up(known, attempt)
        for tries in range(_TRIES):
            if attempt.is_done:
                break
            if known.tail is None:
                known.tail = await self._log.last_totals(known.conversation)
            tail = known.tail
            attempt.composed = compose(
                attempt.pending, tail, at=self._clock.now(), token=attempt.token, reserve=reserve
            )
            if not self._known.is_fresh(known) and not await self._refresh(scope, known, attempt.composed.entry.totals):
                self._known.forget(scope)
                return None
            if await self._insert(scope, known, attempt):
                await self._finish(known, attempt)
                return attempt
            await self._after_collision(known, attempt, tail, tries)
        else:
            raise StoreError(f"{_TRIES} other writers were first; append again, and less at once to one conversation")
        attempt.composed = None
        await self._drop_unused(known, attempt)
        return attempt

    async def _insert(self, scope: Scope, known: Known, attempt: _Attempt) -> bool:
        """Send the entry, and beside it the head if that is due; False if somebody was first."""
        composed = attempt.composed
        assert composed is not None  # noqa: S101 - composed just before
        chunks = [chunk for chunk in composed.chunks if chunk.number not in attempt.sent]
        insert = self._log.insert(known.conversation, composed.entry, chunks, token=attempt.token)
        try:
            if self._clock.monotonic() - known.told_at < ID_LIFETIME:
                await insert
            else:
                await self._beside(insert, self._refresh(scope, known, composed.entry.totals))
        except SlotTaken:
            attempt.sent.update(chunk.number for chunk in chunks)
            return False
        return True

    async def _beside(self, insert: Awaitable[int], refresh: Awaitable[bool]) -> None:
        """Await both; the insert's outcome counts. A refresh that fails is due again with the next append."""
        outcome, _ = await asyncio.gather(insert, refresh, return_exceptions=True)
        if isinstance(outcome, BaseException):
            raise outcome

    async def _refresh(self, scope: Scope, known: Known, totals: Totals) -> bool:
        start = known.starts.get(_DEFAULT)
        position = (start.entry, start.first) if start else (0, 0)
        is_there = await self._heads.refresh(dict(scope), known.conversation, totals=totals, start=position)
        if is_there:
            self._known.verify(known)
            known.told(totals)
        return is_there

    async def _after_collision(self, known: Known, attempt: _Attempt, tail: Totals, tries: int) -> None:
        known.tail = None
        await self._look_up(known, attempt)
        if attempt.is_done:
            return
        known.tail = await self._log.last_totals(known.conversation)
        if known.tail.entries == tail.entries:
            await self._explain(known, attempt)
        if tries:
            most = min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(tries, 10))
            await asyncio.sleep(random.uniform(0, most))  # noqa: S311 - jitter

    async def _look_up(self, known: Known, attempt: _Attempt) -> None:
        """Find out which messages of the batch are in the log, and that they are the same ones."""
        batch = attempt.batch
        if not batch.prepared:
            return
        found = await self._log.find_ids(known.conversation, batch.ids)
        for id_, digest in zip(batch.ids, batch.digests, strict=True):
            if id_ in found and found[id_][1] != digest:
                attempt.composed = None
                await self._drop_unused(known, attempt)
                raise ContentConflictError(id_)
        attempt.stored = {id_: ordinal for id_, (ordinal, _) in found.items()}
        attempt.pending = batch.without(attempt.stored)
        if self._log.must_look_first and attempt.pending.kept_source_ids:
            await self._explain(known, attempt)

    async def _explain(self, known: Known, attempt: _Attempt) -> None:
        """Say which source id is taken, if it is one that stands in the way."""
        numbers = attempt.pending.kept_source_ids
        if numbers and (taken := await self._log.taken_source_ids(known.conversation, numbers)):
            attempt.composed = None
            await self._drop_unused(known, attempt)
            raise SourceIdClashError(taken[0])

    async def _finish(self, known: Known, attempt: _Attempt) -> None:
        composed = attempt.composed
        assert composed is not None  # noqa: S101 - it was just inserted
        known.advance(composed.entry.totals)
        attempt.stored.update({message.id: message.ordinal for message in composed.entry.messages})
        self._keep_payloads(known, attempt.pending, composed)
        await self._drop_unused(known, attempt)

    def _keep_payloads(self, known: Known, batch: Batch, composed: Composed) -> None:
        """Keep what a load in the middle of this turn would read back at once."""
        for one, message in zip(batch.prepared, composed.entry.messages, strict=True):
            if message.type == "human":
                self._known.drop_payloads(known)
            if message.payload and one.split:
                self._known.keep_payload(known, message.id, one.split.encoded.payload)

    async def _drop_unused(self, known: Known, attempt: _Attempt) -> None:
        """Remove chunks that were sent ahead of an entry that did not need them in the end."""
        used: set[int] = {chunk.number for chunk in attempt.composed.chunks} if attempt.composed else set()
        for number in sorted(attempt.sent - used):
            await self._log.drop_chunk(known.conversation, attempt.token, number)
        attempt.sent &= used


def _receipt(attempt: _Attempt) -> Receipt:
    ordinals = tuple(attempt.stored[id_] for id_ in attempt.batch.ids)
    entry = attempt.composed.entry if attempt.composed else None
    numbers = [source.id for source in entry.sources] if entry else []
    return Receipt(
        message_ids=tuple(attempt.batch.ids),
        first=min(ordinals),
        last=max(ordinals),
        ordinals=ordinals,
        written=len(entry.messages) if entry else 0,
        source_ids=(min(numbers), max(numbers)) if numbers else None,
        omitted=attempt.batch.omitted,
    )

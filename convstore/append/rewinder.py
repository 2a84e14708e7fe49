"""Rewinds a conversation to edit or regenerate, and takes that back: appends markers, see ``rewinds``.

Layer 4. A marker goes in at the number behind the last entry, like any append; if somebody is first, it is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from convstore.append.writer import pause
from convstore.exceptions import (
    CorruptDocumentError,
    InvalidInputError,
    StoreError,
    StoreUnavailableError,
    UnknownMessageError,
)
from convstore.log.entry import Entry, Repair, RewoundRange, Totals
from convstore.log.repairs import corrected
from convstore.log.rewind import is_active, rewound, undone
from convstore.log.totals import totals_through
from convstore.messages.values import Codec
from convstore.mongo.heads import Heads
from convstore.mongo.keys import entry_id
from convstore.mongo.log import Log, SlotTaken
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.clock import APPEND_SECONDS, Clock
from convstore.runtime.log_reader import LogReader
from convstore.values.scope import Scope

__all__ = ["Reselect", "Rewinder"]

_TRIES = 100
_NO_MARKER = Entry(first=1, at=None, messages=(), totals=Totals())  # type: ignore[arg-type]


class Reselect(Protocol):
    """Make the longest summary that fits what is rewound the current one."""

    async def __call__(self, scope: Scope, gaps: Sequence[RewoundRange], *, marker: int) -> None:
        """See `compaction.history`."""
        ...


class Rewinder:
    """Changes which messages of a conversation are live."""

    def __init__(
        self,
        reader: LogReader,
        heads: Heads,
        log: Log,
        reselect: Reselect,
        known: ConversationCache,
        *,
        codec: Codec,
        clock: Clock,
    ) -> None:
        self._reader, self._heads, self._log, self._reselect, self._known = reader, heads, log, reselect, known
        self._codec, self._clock = codec, clock

    async def rewind(self, scope: Scope, message_id: str) -> int:
        """Rewind a message and all behind it; see `Conversation.rewind`."""
        known, ordinal = await self._find(scope, message_id)

        async def marker(tail: Totals, last: Entry) -> Entry | None:
            if not is_active(last.gaps, ordinal):
                return None
            entry, point = await self._point(known, ordinal, last.repair)
            at, link = self._clock.now(), self._clock.link()
            return rewound(tail, last.gaps, ordinal=ordinal, entry=entry, point=point, at=at, link=link)

        before, after = await self._mark(known, marker)
        return before.live - after.live

    async def undo(self, scope: Scope, message_id: str | None) -> int:
        """Take the last rewind back; see `Conversation.undo_rewind`."""
        if message_id is None:
            known, ordinal = await self._reader.find(scope), 0
        else:
            known, ordinal = await self._find(scope, message_id)
        if known is None:
            return 0
        back = 0

        async def marker(tail: Totals, last: Entry) -> Entry | None:
            nonlocal back
            is_done = is_active(last.gaps, ordinal) if ordinal else not last.undo
            if is_done:
                return None
            before = (await self._log.entry(known.conversation, last.undo - 1)).totals if last.undo else Totals()
            earlier = await self._marker(known, before)
            if ordinal > before.messages or not is_active(earlier.gaps, ordinal):
                raise InvalidInputError(f"{message_id!r} did not leave with the last rewind, or that is taken back")
            rewind = (await self._log.entry(known.conversation, last.undo)).totals
            back = before.live - rewind.live
            at, link = self._clock.now(), self._clock.link()
            return undone(tail, before=before, gaps=earlier.gaps, undo=earlier.undo, at=at, link=link)

        before, after = await self._mark(known, marker)
        return back if after is not before else 0

    async def _find(self, scope: Scope, message_id: str) -> tuple[CachedConversation, int]:
        """The conversation and the ordinal of one of its messages."""
        known = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(known, [message_id]) if known else {}
        if known is None or not rows:
            raise UnknownMessageError(message_id)
        return known, rows[message_id].message.ordinal

    async def _point(self, known: CachedConversation, ordinal: int, repair: Repair | None) -> tuple[int, Totals]:
        """What the log held before a message, and the first entry that holds nothing before it."""
        found = await self._log.entries_around(known.conversation, before=ordinal + 1, limit=1)
        if not found:
            raise CorruptDocumentError(known.conversation, f"there is no message {ordinal}")
        [entry], before = corrected(found, repair), Totals()
        if entry.number > 1:
            [previous] = corrected([await self._log.entry(known.conversation, entry.number - 1)], repair)
            before = previous.totals
        # Another counter may have written the entry before.
        before = replace(
            before,
            tokens=entry.totals.tokens - sum(message.tokens for message in entry.messages),
            view_tokens=entry.totals.view_tokens - sum(message.view_tokens for message in entry.messages),
            counter=entry.totals.counter,
        )
        kept = [message for message in entry.messages if message.ordinal < ordinal]
        try:
            point = totals_through(before, kept, codec=self._codec, at=entry.at)
        except ValueError as error:
            raise CorruptDocumentError(entry_id(known.conversation, entry.number), str(error)) from error
        return entry.number + bool(kept), point

    async def _marker(self, known: CachedConversation, totals: Totals) -> Entry:
        """The marker that holds as of some totals."""
        return await self._log.entry(known.conversation, totals.marker) if totals.marker else _NO_MARKER

    async def _mark(
        self, known: CachedConversation, make: Callable[[Totals, Entry], Awaitable[Entry | None]]
    ) -> tuple[Totals, Totals]:
        """Append what `make` makes of the tail and the last marker; the totals before and after.

        Raises:
            StoreUnavailableError: It took too long; it may have happened.
        """
        try:
            async with asyncio.timeout(APPEND_SECONDS), known.lock, self._reader.reading(known):
                try:
                    return await self._mark_in_order(known, make)
                except BaseException:
                    known.tail = None  # what became of the insert is not known
                    raise
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"no answer in {APPEND_SECONDS:.0f} s; it may have happened. A rewind may be repeated as it is, and an "
                "undo_rewind that was given `before`"
            ) from error

    async def _mark_in_order(
        self, known: CachedConversation, make: Callable[[Totals, Entry], Awaitable[Entry | None]]
    ) -> tuple[Totals, Totals]:
        for tries in range(_TRIES):
            tail = await self._log.last_totals(known.conversation)
            marker = await self._marker(known, tail)
            entry = await make(tail, marker)
            if entry is None:
                await self._settle(known, tail, marker)  # a call before this one may have broken off there
                return tail, tail
            entry = replace(entry, repair=marker.repair)
            least = known.entries
            try:
                await self._log.insert(known.conversation, entry, (), token="")
            except SlotTaken:
                await pause(tries)
                continue
            if entry.number <= least:  # the log was restored from a backup: that number was taken
                self._known.forget(known)
            self._known.confirm(known, entry.totals)
            known.follow(entry)
            await self._settle(known, entry.totals, entry)
            return tail, entry.totals
        raise StoreError(f"{_TRIES} other writers were first; call again, with less at once on one conversation")

    async def _settle(self, known: CachedConversation, totals: Totals, marker: Entry) -> None:
        """Tell the head what is live now, and let it name the summary that fits that."""
        if not totals.entries:
            return  # of an empty log there is nothing to tell
        start = (totals.marker, 0, 0, 0, "")
        await self._heads.refresh(dict(known.scope), known.conversation, totals=totals, start=start)
        await self._reselect(known.scope, marker.gaps, marker=totals.marker)

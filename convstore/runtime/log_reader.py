"""Reads the log: messages in full, by id or by place, and pieces of payloads.

Layer 4. Everything is read by the id of the conversation that was found first, so a scope that is deleted and begun
anew in the middle of a call is told from one that is damaged: `ConversationDeletedError`, and the call is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import TypeVar

from langchain_core.messages import BaseMessage

from convstore.exceptions import BrokenLogError, ConversationDeletedError, CorruptDocumentError, StoreUnavailableError
from convstore.log.entry import Entry, EntryMessage, EntrySource, PayloadRef, RewoundRange, Totals
from convstore.log.recount import recount
from convstore.log.rewind import active_after, is_active
from convstore.log.selection import PlacedMessage, about, placed, results_in
from convstore.log.stored_message import payload_needed, read_message, shorten
from convstore.log.summary import SummaryRecord, summary_messages
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.heads import Head, Heads
from convstore.mongo.keys import entry_id
from convstore.mongo.log import Log, StoredMessageRow
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.scope import Scope

__all__ = ["LogReader", "check_dense"]

_ENTRIES_AT_ONCE = 100


_MOST_ENTRIES = 1_000


_PAUSES = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)


_DELETED = "the conversation was deleted while it was read; call again"


_Found = TypeVar("_Found")


class LogReader:
    """Reads for all conversations of a store."""

    def __init__(
        self, heads: Heads, log: Log, known: ConversationCache, *, codec: Codec, counter: NamedCounter
    ) -> None:
        self._heads, self._log, self._known, self._codec = heads, log, known, codec
        self._counter = counter

    async def find(self, scope: Scope) -> CachedConversation | None:
        """The scope's conversation; None if it has none. No command while what is remembered is fresh."""
        known = self._known.get(scope)
        if known is not None and self._known.is_fresh(known):
            return known
        return self.seen(scope, await self._heads.find(dict(scope)))

    def seen(self, scope: Scope, head: Head | None) -> CachedConversation | None:
        """Take note of a head that was just read."""
        if head is not None:
            return self._known.add(scope, head.conversation)
        if known := self._known.get(scope):
            self._known.forget(known)
        return None

    @asynccontextmanager
    async def reading(self, known: CachedConversation) -> AsyncIterator[None]:
        """Tells damage from a deletion: what is missing inside may belong to a conversation that has just ended.

        Raises:
            ConversationDeletedError: It was deleted meanwhile.
        """
        try:
            yield
        except CorruptDocumentError as error:
            if self.seen(known.scope, await self._heads.find(dict(known.scope))) is known:
                raise
            raise ConversationDeletedError(_DELETED) from error

    async def read_your_writes(
        self, known: CachedConversation, read: Callable[[], Awaitable[_Found]], *, last: Callable[[_Found], int]
    ) -> _Found:
        """What is read of the end of the log, read again until it holds all that this store knows to be in it.

        A primary that was just elected shows for a moment only what it knows a majority to have, which may be less
        than the one before it acknowledged. That lasts for seconds, so a log that has less than it had longer ago was
        restored from a backup: the conversation is forgotten, and what is there is given.

        Args:
            known: The conversation.
            read: Reads.
            last: Gives the number of the last entry of what was read.

        Raises:
            ConversationDeletedError: It has less because the conversation was deleted.
            StoreUnavailableError: It still is behind after two seconds.
        """
        least, is_young = known.entries, self._known.is_confirmed(known)
        for pause in _PAUSES:
            if pause:
                await asyncio.sleep(pause)
            found = await read()
            if last(found) >= least:
                return found
            if self.seen(known.scope, await self._heads.find(dict(known.scope))) is not known:
                raise ConversationDeletedError(_DELETED)
            if not is_young:
                self._known.forget(known)
                return found
        self._known.forget(known)  # of a database that was restored from a backup the next call takes what there is
        raise StoreUnavailableError("the server does not have yet what was acknowledged before; repeat the call")

    async def messages_by_id(
        self, known: CachedConversation, ids: Sequence[str], *, retry_if_stale: bool = True
    ) -> dict[str, StoredMessageRow]:
        """Those of some messages that the conversation has, by id.

        Args:
            known: The conversation.
            ids: Of messages.
            retry_if_stale: Look again if one is missing that this store may have been told of; else a model asks again.
        """
        found = await self._log.messages_by_id(known.conversation, ids)
        is_less = len(found) < len(set(ids)) and known.entries
        if retry_if_stale and is_less and await self._was_behind(known):
            found = await self._log.messages_by_id(known.conversation, ids)
        return found

    async def _was_behind(self, known: CachedConversation) -> bool:
        """Whether a read before may have missed what this store knows to be in the log; no more after this."""
        if (await self._log.last_totals(known.conversation)).entries >= known.entries:
            return False
        await self.tail(known)
        return True

    async def messages_by_call(self, known: CachedConversation, calls: Sequence[str]) -> list[StoredMessageRow]:
        """The results of some tool calls, in the order of the log."""
        return await self._log.messages_by_call(known.conversation, calls)

    async def message_at(self, known: CachedConversation, ordinal: int) -> StoredMessageRow | None:
        """The message with an ordinal; None if there is none."""
        return await self._log.message_at(known.conversation, ordinal)

    async def sources_by_id(
        self, known: CachedConversation, numbers: Sequence[int]
    ) -> dict[int, tuple[StoredMessageRow, EntrySource]]:
        """Those of some sources that the conversation has, each with the message it came with."""
        return await self._log.sources_by_id(known.conversation, numbers)

    async def newest_results(self, known: CachedConversation, *, limit: int) -> list[EntryMessage]:
        """The last live tool results of a conversation, newest first."""
        gaps = await self.gaps(known)
        entries = await self._log.newest_results(
            known.conversation, before=2**53, limit=limit, gaps=gaps, tools_only=True
        )
        return results_in(entries, gaps)[:limit]

    async def tail(self, known: CachedConversation) -> Totals:
        """What the last entry says of the log; holds all that this store knows to be in it."""
        totals = await self.read_your_writes(
            known, lambda: self._log.last_totals(known.conversation), last=lambda totals: totals.entries
        )
        known.entries = max(known.entries, totals.entries)
        return totals

    async def gaps(self, known: CachedConversation, marker: int | None = None) -> tuple[RewoundRange, ...]:
        """What is rewound.

        Args:
            known: The conversation.
            marker: The last marker as the log's last entry tells it; None if that is to be read.
        """
        if marker is None:
            marker = (await self.tail(known)).marker
        if marker == known.marker or not marker:
            return known.gaps if marker else ()
        known.entries = max(known.entries, marker)
        try:
            found = await self._log.entry(known.conversation, marker)
        except CorruptDocumentError:
            if not await self._was_behind(known):
                raise
            found = await self._log.entry(known.conversation, marker)
        known.follow(found)
        return found.gaps

    async def payloads(self, known: CachedConversation, refs: Sequence[PayloadRef]) -> list[str]:
        """The whole text of some payloads, in their order."""
        return await self._log.payloads(known.conversation, refs) if refs else []

    async def payload_ranges(
        self, known: CachedConversation, wanted: Sequence[tuple[PayloadRef, int, int]]
    ) -> list[str]:
        """Pieces of payloads, in characters; reads only the chunks that they lie in."""
        return await self._log.payload_ranges(known.conversation, wanted) if wanted else []

    async def payloads_of(self, known: CachedConversation, messages: Sequence[EntryMessage]) -> dict[str, str]:
        """The payloads of those messages that have one, by message id."""
        refs = {message.id: message.payload for message in messages if message.payload}
        return dict(zip(refs, await self.payloads(known, list(refs.values())), strict=True))

    async def decode_whole(self, known: CachedConversation, messages: Sequence[EntryMessage]) -> list[BaseMessage]:
        """Messages in full, equal to what was appended.

        Raises:
            CorruptDocumentError: What is stored is not what was written.
        """
        texts = await self.payloads_of(known, messages)

        def decode() -> list[BaseMessage]:
            return [self.decode(message, texts.get(message.id)) for message in messages]

        return await run_in_thread_if_long(decode, characters=characters_of(messages, texts))

    async def counted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Entries with sizes by the store's counter; what another one wrote is counted anew, in a thread."""
        if all(entry.totals.counter == self._counter.name for entry in entries):
            return list(entries)
        return await asyncio.to_thread(recount, entries, codec=self._codec, counter=self._counter)

    async def recount_tail(self, known: CachedConversation, tail: Totals) -> Totals:
        """What the last entry says of the log, with sizes by the store's counter.

        If another counter wrote that entry, the log is read once, payloads apart, and later only what is new.
        """
        if tail.counter == self._counter.name or not tail.messages:
            return tail
        gaps, last = await self.gaps(known, tail.marker), known.counted
        is_part = last is not None and last.marker == tail.marker and last.entries <= tail.entries
        counted = last if last is not None and is_part else Totals()
        start, tokens, view_tokens = counted.entries + 1, counted.tokens, counted.view_tokens
        while (start := active_after(gaps, start)) <= tail.entries:
            before = min(start + _ENTRIES_AT_ONCE, tail.entries + 1)
            entries = await self.entries(known, start=start, before=before, is_whole=True)
            anew = await self.counted(entries)
            live = [one for entry in anew for one in entry.messages if is_active(gaps, one.ordinal)]
            tokens += sum(message.tokens for message in live)
            view_tokens += sum(message.view_tokens for message in live)
            start = before
        known.counted = replace(tail, tokens=tokens, view_tokens=view_tokens, counter=self._counter.name)
        return known.counted

    def stubbed(self, message: EntryMessage) -> BaseMessage:
        """A tool result as views show it once its turn is finished."""
        return shorten(self._codec, message, {})

    async def shorten_all(self, known: CachedConversation, messages: Sequence[EntryMessage]) -> list[BaseMessage]:
        """Messages as views show them once their turns are finished."""
        refs = {message.id: ref for message in messages if (ref := payload_needed(message))}
        texts = dict(zip(refs, await self.payloads(known, list(refs.values())), strict=True))

        def decode() -> list[BaseMessage]:
            return [shorten(self._codec, message, texts) for message in messages]

        return await run_in_thread_if_long(decode, characters=characters_of(messages, texts))

    async def entries(
        self, known: CachedConversation, *, start: int, before: int, is_whole: bool = False
    ) -> list[Entry]:
        """The entries from one number and before another, in order and without a hole; fewer if the log ends there.

        Args:
            known: The conversation.
            start: The first number.
            before: Behind the last number.
            is_whole: The log is known not to end there.

        Raises:
            BrokenLogError: One is missing.
        """
        entries = await self._log.entries(known.conversation, start=start, before=before)
        await self.check(known, entries, first=start, last=before - 1 if is_whole else 0)
        return entries

    async def check(
        self, known: CachedConversation, entries: Sequence[Entry], *, first: int = 0, last: int = 0
    ) -> None:
        """As `check_dense`; reads what a repair found out before it says that an entry follows another one."""
        try:
            check_dense(known, entries, first=first, last=last)
        except BrokenLogError:
            before = known.repair
            await self.gaps(known)
            if known.repair == before:
                raise
            check_dense(known, entries, first=first, last=last)

    def standing(self, summary: SummaryRecord | None, *, talk: bool = False) -> list[BaseMessage]:
        """The messages that show a summary; `talk` for a view without tool messages."""
        if summary is None:
            return []
        try:
            return summary_messages(summary, self._codec, talk=talk)
        except (TypeError, ValueError) as error:
            key, collection = summary.place
            raise CorruptDocumentError(key, f"the messages of a summary: {error}", collection=collection) from error

    async def walk(
        self, scope: Scope, *, start: int = 1, at_once: int = _ENTRIES_AT_ONCE
    ) -> AsyncGenerator[tuple[CachedConversation, Entry], None]:
        """Every entry of the log in order; reads some at a time.

        Args:
            scope: Whose log.
            start: The entry to begin with.
            at_once: How many entries to read first; then more at a time.

        Raises:
            ConversationDeletedError: The conversation was deleted before all of it was read.
        """
        known, last = await self.find(scope), list[Entry]()
        while known is not None:
            async with self.reading(known):
                entries = await self._next_entries(known, start, at_once)
                await self.check(known, [*last, *entries], first=start - len(last))
            last = entries[-1:]
            for entry in entries:
                yield known, entry
            if len(entries) < at_once:
                now = self.seen(scope, await self._heads.find(dict(scope)))
                if now is None or now.conversation != known.conversation:
                    raise ConversationDeletedError(_DELETED)
                return
            start += at_once
            at_once = max(at_once, min(2 * at_once, _ENTRIES_AT_ONCE))

    async def _next_entries(self, known: CachedConversation, start: int, most: int) -> list[Entry]:
        """Entries from a number on; fewer than the most if the log ends there."""

        def last(entries: Sequence[Entry]) -> int:
            if len(entries) == most:
                return known.entries
            return entries[-1].number if entries else start - 1

        async def read() -> list[Entry]:
            return await self._log.entries(known.conversation, start=start, before=start + most)

        return await self.read_your_writes(known, read, last=last)

    async def iterate(self, scope: Scope) -> AsyncIterator[tuple[Entry, EntryMessage, BaseMessage]]:
        """Every message of the log in order, as it is stored and in full; reads some entries at a time.

        Raises:
            ConversationDeletedError: The conversation was deleted before all of it was read.
        """
        async for known, entry in self.walk(scope):
            async with self.reading(known):
                messages = await self.decode_whole(known, entry.messages)
            for stored, message in zip(entry.messages, messages, strict=True):
                yield entry, stored, message

    async def page(
        self, known: CachedConversation, *, before: int | None, after: int | None, limit: int
    ) -> list[PlacedMessage]:
        """Up to `limit` live messages before or after an ordinal, or the last ones, in order, each with its date.

        Reads as many entries as hold so many messages on average, and more if that was not enough.
        """
        tail = await self.tail(known)
        gaps = await self.gaps(known, tail.marker)
        at_once = min(about(limit, tail.messages, tail.entries), _MOST_ENTRIES)
        if after is None:
            return await self._page_before(known, gaps, 2**53 if before is None else before, limit, at_once)
        return await self._page_after(known, gaps, after, limit, at_once)

    async def _page_before(
        self, known: CachedConversation, gaps: Sequence[RewoundRange], before: int, limit: int, at_once: int
    ) -> list[PlacedMessage]:
        found: list[PlacedMessage] = []
        while len(found) < limit and before > 1:
            before = next((gap.first for gap in gaps if gap.first < before <= gap.last + 1), before)
            entries = await self._log.entries_around(known.conversation, before=before, limit=at_once)
            if not entries:
                break
            await self.check(known, entries)
            found = [placed for placed in placed(entries, gaps) if placed[0].ordinal < before] + found
            before = entries[0].first
            at_once = min(2 * at_once, _MOST_ENTRIES)
        return found[-limit:] if limit else []

    async def _page_after(
        self, known: CachedConversation, gaps: Sequence[RewoundRange], after: int, limit: int, at_once: int
    ) -> list[PlacedMessage]:
        entries = await self._log.entries_around(known.conversation, before=after + 2, limit=1)
        found = [placed for placed in placed(entries, gaps) if placed[0].ordinal > after]
        start = entries[0].number + 1 if entries else 1
        while len(found) < limit:
            start = active_after(gaps, start)
            entries = await self.entries(known, start=start, before=start + at_once)
            found += [placed for placed in placed(entries, gaps) if placed[0].ordinal > after]
            if len(entries) < at_once:
                break
            start += at_once
            at_once = min(2 * at_once, _MOST_ENTRIES)
        return found[:limit]

    def decode(self, message: EntryMessage, payload: str | None) -> BaseMessage:
        """A message in full from its body and its payload, if it has one.

        Raises:
            CorruptDocumentError: What is stored is not what was written.
        """
        return read_message(self._codec, message, payload or "")


def check_dense(known: CachedConversation, entries: Sequence[Entry], *, first: int = 0, last: int = 0) -> None:
    """Make sure that entries follow each other, from a number or up to a number if one is given.

    Raises:
        BrokenLogError: One is missing, or names another predecessor; names it.
    """
    numbers = [entry.number for entry in entries]
    first = first or (numbers[0] if numbers else last)
    last = last or first + len(numbers) - 1
    missing = next((number for number, found in zip_longest(range(first, last + 1), numbers) if number != found), None)
    if missing:
        raise BrokenLogError(entry_id(known.conversation, missing), "the entry is missing")
    joins = known.repair.joins if known.repair else ()
    for before, entry in pairwise(entries):
        if entry.after != before.totals.link and entry.number not in joins:
            raise BrokenLogError(entry_id(known.conversation, entry.number), "it does not follow the entry before it")

"""Read the log consistently: snapshots, entries with active messages only, messages by id, and payloads.

A call reads by the conversation id that it found first. If the scope is deleted and used again during the call, the
call raises `ConversationDeletedError`, not an error about damage; the caller repeats it.

The module is long because all its readers handle a deletion or a late writer in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import NamedTuple, TypeVar

from langchain_core.messages import BaseMessage

from convstore.exceptions import (
    BrokenLogError,
    ConversationDeletedError,
    CorruptDocumentError,
    InvalidInputError,
    MessageRewoundError,
    StoreUnavailableError,
    UnknownMessageError,
)
from convstore.log.branch import Branch, branch_of
from convstore.log.entry import Entry, EntryMessage, PayloadRef, Totals
from convstore.log.facts.event import TurnEvent
from convstore.log.recount import recount
from convstore.log.rewind import NO_REWINDS, Rewinds, difference
from convstore.log.stored_message import (
    as_in_finished_turn,
    payload_needed,
    payload_runs,
    read_message,
)
from convstore.log.summary import SummaryRecord, summary_messages
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.documents import LEAN
from convstore.mongo.heads import Head, Heads
from convstore.mongo.keys import entry_id, first_id
from convstore.mongo.log import LOG_END, Log, StoredMessageRow
from convstore.mongo.parallel import together
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.clock import Clock
from convstore.runtime.schema_watch import SchemaWatch
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.scope import Scope

_ENTRIES_AT_ONCE = 100
_MOST_EXCLUDED = 64

_PAUSES = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)
DELETED = "the conversation was deleted while it was read; call again"

_Found = TypeVar("_Found")


class Snapshot(NamedTuple):
    """A log as of one of its entries; later appends and rewinds are ignored.

    Attributes:
        cached: The conversation.
        tail: Totals of the entry.
        active: The active messages.
        read: The rewind entries that were read to find these.
    """

    cached: CachedConversation
    tail: Totals = Totals()
    active: Rewinds = NO_REWINDS
    read: Sequence[Entry] = ()

    def fits(self, summary: SummaryRecord) -> bool:
        """Return True if a summary covers the active messages of its range and no others."""
        return summary.last <= self.tail.messages and summary.gaps == self.active.gaps(summary.last)

    def changed_since(self, earlier: Snapshot) -> int:
        """Return the first ordinal that may be active in only one of two snapshots, else the one after the end."""
        if self.tail.entries < earlier.tail.entries:  # a backup was restored
            return 1
        changed = difference(earlier.active.ranges, self.active.ranges)
        return min(
            (range_.first for ranges in changed for range_ in ranges),
            default=self.tail.messages + 1,
        )

    def check_active(self, messages: Sequence[EntryMessage]) -> None:
        """Raise a MessageRewoundError if a message is not active."""
        if found := next(
            (message for message in messages if not self.active.has(message.ordinal)), None
        ):
            raise MessageRewoundError(found.id)


class _Reading:
    """The context manager of a read; one made from a generator takes three times as long."""

    def __init__(self, is_current: Callable[[], Awaitable[bool]]) -> None:
        self._is_current = is_current

    async def __aenter__(self) -> None:
        """Enter the context; nothing is checked yet."""

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CorruptDocumentError) and not await self._is_current():
            raise ConversationDeletedError(DELETED) from error


@dataclass(kw_only=True, eq=False)
class LogReader:
    """Reads for all conversations of a store.

    Attributes:
        heads: Commands on heads.
        log: Commands on the log, whose results are not checked.
        cache: The cached conversations.
        codec: Decodes messages.
        counter: The store's token counter.
        clock: The store's clock.
        schema: Checks that this version may use the database.
    """

    heads: Heads
    log: Log
    cache: ConversationCache
    codec: Codec
    counter: NamedCounter
    clock: Clock
    schema: SchemaWatch

    async def find(self, scope: Scope) -> CachedConversation | None:
        """Return the scope's conversation, if there is one. No command while the cached id is fresh."""
        cached = self.cache.get(scope)
        if cached is not None and self.cache.is_fresh(cached):
            return cached
        return self.seen(scope, await self.heads.find(dict(scope)))

    def seen(self, scope: Scope, head: Head | None) -> CachedConversation | None:
        """Cache a head that was just read."""
        cached = self.cache.get(scope)
        if cached and (
            head is None or first_id(head.conversation) != first_id(cached.conversation)
        ):
            self.cache.discard(cached)
        return None if head is None else self.cache.add(scope, head.conversation)

    async def _is_current(self, cached: CachedConversation) -> bool:
        """Return True if the scope still has this conversation."""
        now = self.seen(cached.scope, await self.heads.find(dict(cached.scope)))
        return now is not None and now.conversation == cached.conversation

    def reading(self, cached: CachedConversation) -> _Reading:
        """Return a context that raises another error if damage is found because the conversation was deleted.

        Raises:
            ConversationDeletedError: The conversation was deleted meanwhile.
        """
        return _Reading(partial(self._is_current, cached))

    async def read_your_writes(
        self,
        cached: CachedConversation,
        read: Callable[[], Awaitable[_Found]],
        *,
        last: Callable[[_Found], int],
        revision: Callable[[_Found], int] | None = None,
    ) -> _Found:
        """Read the end of the log, and retry until it has all entries and the revision that this store has seen.

        For some seconds a newly elected primary may return less than its predecessor acknowledged. If the cached tail
        is older than that, a shorter log means that a backup was restored. Then the conversation is dropped from the
        cache and the shorter log is returned.

        Args:
            cached: The conversation.
            read: Reads the end of the log.
            last: Returns the number of the last entry in the result.
            revision: Returns the revision of the state in the result.

        Raises:
            ConversationDeletedError: The log is shorter, because the conversation was deleted.
            StoreUnavailableError: The log is still stale after two seconds.
        """
        entries = cached.entries
        is_recent = self.cache.is_confirmed(cached)
        minimum_revision = cached.revision if revision else 0
        for pause in _PAUSES:
            if pause:
                await asyncio.sleep(pause)
            found = await read()
            if last(found) >= entries and (revision is None or revision(found) >= minimum_revision):
                return found
            if not await self._is_current(cached):
                raise ConversationDeletedError(DELETED)
            if not is_recent:
                self.cache.forget(cached)
                return found
        self.cache.forget(cached)  # if a backup was restored, the next call accepts the shorter log
        raise StoreUnavailableError(
            "the server does not show all acknowledged writes yet; repeat the call"
        )

    async def messages_by_id(
        self, cached: CachedConversation, ids: Sequence[str], *, retry_if_stale: bool = True
    ) -> dict[str, StoredMessageRow]:
        """Return the messages with some ids, by id; read again if one is missing and `retry_if_stale`."""
        found = await self.log.messages_by_id(cached.conversation, ids)
        if retry_if_stale and len(found) < len(set(ids)) and cached.entries:
            # a new primary may not have shown all writes yet; after reading the tail it does
            await self.tail(cached)
            found = await self.log.messages_by_id(cached.conversation, ids)
        cached.know_questions([row.message for row in found.values()])
        return found

    async def find_message(
        self, scope: Scope, message_id: str
    ) -> tuple[CachedConversation, StoredMessageRow]:
        """Return a conversation and one of its messages.

        Raises:
            UnknownMessageError: The conversation or the message does not exist.
        """
        cached = await self.find(scope)
        rows = await self.messages_by_id(cached, [message_id]) if cached else {}
        if cached is None or not rows:
            raise UnknownMessageError(message_id)
        return cached, rows[message_id]

    async def find_question(
        self, scope: Scope, turn_id: str
    ) -> tuple[CachedConversation, StoredMessageRow]:
        """Return a conversation and the question of one of its turns.

        Raises:
            UnknownMessageError: The log does not have the question.
            InvalidInputError: The message with this id is not a question.
        """
        try:
            cached, row = await self.find_message(scope, turn_id)
        except UnknownMessageError:
            raise UnknownMessageError(turn_id, begins_turn=True) from None
        check_question(row)
        return cached, row

    async def entry_with(self, cached: CachedConversation, ordinal: int) -> int:
        """Return the number of the entry with a message, or of the last one before it, else 1. At most one command."""
        if ordinal <= 1:
            return 1
        found = await self.log.entries_around(cached.conversation, before=ordinal + 1, limit=1)
        return found[0].number if found else 1

    async def newest_results(
        self, log: Snapshot, *, before: int = LOG_END, limit: int, tools_only: bool = False
    ) -> list[Entry]:
        """Return the last entries with active results or long messages before an ordinal, newest first, without bodies.

        One command, and one more for each 64 rewound ranges as long as fewer than `limit` are found.
        """
        found: list[Entry] = []
        while True:
            without = [
                (range_.first, range_.last)
                for range_ in log.active.through(before)[-_MOST_EXCLUDED:]
            ]
            entries = await self.log.newest_results(
                log.cached.conversation,
                before=before,
                limit=limit,
                tools_only=tools_only,
                without=without,
            )
            found += [entry for entry in log.active.of(entries) if entry.messages]
            if len(found) >= limit or len(entries) < limit:
                return found
            before = entries[-1].first

    async def tail(self, cached: CachedConversation) -> Totals:
        """Read the totals of the last entry; no entry that this store knows to be acknowledged is missing in them."""
        totals = await self.read_your_writes(
            cached,
            lambda: self.log.last_totals(cached.conversation),
            last=lambda totals: totals.entries,
        )
        cached.entries = max(cached.entries, totals.entries)
        return totals

    async def snapshot(
        self,
        cached: CachedConversation,
        totals: Totals | None = None,
        entries: Sequence[Entry] = (),
        *,
        known: Rewinds | None = None,
    ) -> Snapshot:
        """Return the log as of the entry with some totals, by default as of its last entry, which takes one command.

        After a rewind the rewind entry and the entry with its whole list are needed. If neither the cache (or `known`)
        nor `entries` has them, they are read with at most two more commands in parallel.
        """
        totals = await self.tail(cached) if totals is None else totals
        known = cached.active if known is None else known
        cached.entries = max(cached.entries, totals.rewind_entry)
        numbers = known.missing(totals, entries)
        read = partial(self.log.entry, cached.conversation)
        found = await self._read_whole(cached, lambda: together(*map(read, numbers)))
        try:
            active = known.at(totals, [*entries, *found])
        except ValueError as error:
            raise CorruptDocumentError(
                entry_id(cached.conversation, totals.rewind_entry), str(error)
            ) from error
        cached.follow(active)
        return Snapshot(cached, totals, active, found)

    async def branch(self, cached: CachedConversation, event: TurnEvent, *, through: int) -> Branch:
        """Return the variant that an event names, as of its last entry up to a number. At most three commands."""
        own = await self.log.places.entries_of(
            cached.conversation, event.first_turn, [event.variant], through=through
        )
        return branch_of(own, (await self.snapshot(cached, own[0].totals)).active)

    async def payloads(
        self, cached: CachedConversation, refs: Sequence[PayloadRef], *, runs: Sequence[int] = ()
    ) -> list[str]:
        """Return the whole texts of some payloads, in order; see `Log.payload_ranges`."""
        return await self.payload_ranges(
            cached, [(ref, 0, ref.ends[-1]) for ref in refs], runs=runs
        )

    async def payload_ranges(
        self,
        cached: CachedConversation,
        wanted: Sequence[tuple[PayloadRef, int, int]],
        *,
        runs: Sequence[int] = (),
    ) -> list[str]:
        """Return the texts of some ranges of payloads, in order; see `Log.payload_ranges`."""
        read = partial(self.log.payload_ranges, cached.conversation, wanted, runs=runs)
        return await self._read_whole(cached, read)

    async def _read_whole(
        self, cached: CachedConversation, read: Callable[[], Awaitable[_Found]]
    ) -> _Found:
        """Call `read`, once more if a document is missing: a new primary may not show it before the tail was read."""
        try:
            return await read()
        except CorruptDocumentError:
            await self.tail(cached)
            return await read()

    async def payloads_of(
        self, cached: CachedConversation, messages: Sequence[EntryMessage]
    ) -> dict[str, str]:
        """Return the payloads of messages, by message id; one command for each run of successive messages."""
        refs = [message.payload for message in messages if message.payload]
        texts = await self.payloads(cached, refs, runs=payload_runs(messages))
        return dict(
            zip((message.id for message in messages if message.payload), texts, strict=True)
        )

    async def decode_all(
        self, cached: CachedConversation, messages: Sequence[EntryMessage], *, whole: bool = True
    ) -> list[BaseMessage]:
        """Decode messages in full, or without `whole` as views show them in finished turns.

        Raises:
            CorruptDocumentError: A stored message is damaged.
        """
        if whole:
            texts = await self.payloads_of(cached, messages)
        else:
            refs = {stored.id: ref for stored in messages if (ref := payload_needed(stored))}
            texts = dict(zip(refs, await self.payloads(cached, list(refs.values())), strict=True))

        def decode() -> list[BaseMessage]:
            if not whole:
                return [as_in_finished_turn(self.codec, message, texts) for message in messages]
            return [
                read_message(self.codec, message, texts.get(message.id, "")) for message in messages
            ]

        return await run_in_thread_if_long(decode, characters=characters_of(messages, texts))

    async def counted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return entries with sizes by the store's counter; entries of another counter are recounted in a thread."""
        if all(entry.totals.counter == self.counter.name for entry in entries):
            return list(entries)
        return await asyncio.to_thread(recount, entries, codec=self.codec, counter=self.counter)

    async def recount_tail(
        self, cached: CachedConversation, tail: Totals, branch: Snapshot | None = None
    ) -> Totals:
        """Return the totals of the last entry, or of a branch, with sizes by the store's counter.

        If another counter wrote that entry, the whole log without payloads is read; later calls read only new entries.
        """
        if tail.counter == self.counter.name or not tail.messages:
            return tail
        log = branch or await self.snapshot(cached, tail)
        counted = Totals() if branch else _counted_part(cached, tail)
        tokens = counted.tokens
        view_tokens = counted.view_tokens
        async with aclosing(self.batches(log, start=counted.entries + 1)) as batches:
            async for entries in batches:
                for entry in await self.counted(entries):
                    tokens += sum(message.tokens for message in entry.messages)
                    view_tokens += sum(message.view_tokens for message in entry.messages)
        found = replace(tail, tokens=tokens, view_tokens=view_tokens, counter=self.counter.name)
        if branch is None:
            cached.counted = found
        return found

    def stubbed(self, message: EntryMessage) -> BaseMessage:
        """Return a tool result as views show it once its turn is finished."""
        return as_in_finished_turn(self.codec, message, {})

    async def batches(
        self,
        log: Snapshot,
        *,
        start: int = 1,
        at_once: int = _ENTRIES_AT_ONCE,
        fields: Mapping[str, int] = LEAN,
        as_stored: bool = False,
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the entries of a log from a number on with their active messages, in order, in batches that grow.

        One command for each batch. A long series of entries without active messages is skipped, such as those of other
        answers; `events_in_gaps` reads their events. With `as_stored` entries have all messages, and their totals as
        they are stored.

        Raises:
            BrokenLogError: An entry is missing.
        """
        last: list[Entry] = []
        while (start := log.active.read_from(start)) <= log.tail.entries:
            end = log.active.stretch_from(start, min(start + at_once, log.tail.entries + 1))
            async with self.reading(log.cached):
                entries = await self.entries(log.cached, start=start, before=end, fields=fields)
                if last and last[-1].number == start - 1:
                    check_dense(log.cached.conversation, [*last, *entries[:1]])
            yield entries if as_stored else log.active.of(entries)
            start = end
            at_once = grown(at_once)
            last = entries[-1:]

    async def events_in_gaps(
        self, log: Snapshot, turn_id: str, variants: Iterable[tuple[str, str]]
    ) -> list[TurnEvent]:
        """Return the events of a turn's calls, in order, including those of entries that `batches` skips.

        `variants` are the places and ids of the variants of the turn.
        """
        found = await self.log.places.events_of(
            log.cached.conversation, turn_id, variants, through=log.tail.entries
        )
        return [event for event in found if log.active.has(event.question)]

    async def entries(
        self,
        cached: CachedConversation,
        *,
        start: int,
        before: int,
        fields: Mapping[str, int] = LEAN,
    ) -> list[Entry]:
        """Return the entries with numbers from `start` to before `before`, in order; the log must have all of them.

        Raises:
            BrokenLogError: An entry is missing.
        """

        async def read() -> list[Entry]:
            entries = await self.log.entries(
                cached.conversation, start=start, before=before, fields=fields
            )
            check_dense(cached.conversation, entries, first=start, last=before - 1)
            return entries

        return await self._read_whole(cached, read)

    def summary_messages(self, summary: SummaryRecord | None, **options: bool) -> list[BaseMessage]:
        """Return the messages that show a summary; `options` are those of `log.summary.summary_messages`."""
        if summary is None:
            return []
        try:
            return summary_messages(summary, self.codec, **options)
        except (TypeError, ValueError) as error:
            key, collection = summary.place
            raise CorruptDocumentError(
                key, f"the messages of a summary: {error}", collection=collection
            ) from error

    async def walk(
        self,
        scope: Scope,
        tail: Totals | None = None,
        *,
        rewound: bool = True,
        fields: Mapping[str, int] = LEAN,
    ) -> AsyncGenerator[tuple[CachedConversation, Entry]]:
        """Iterate over the entries of the log, up to its end or to the entry with these totals.

        If `rewound` is false, entries have active messages only. By default, facts that views do not need are not read.

        Raises:
            ConversationDeletedError: The conversation was deleted meanwhile.
        """
        cached = await self.find(scope)
        if cached is None:
            return
        async with self.reading(cached):
            if tail is None:
                tail = await self.tail(cached)
            log = Snapshot(cached, tail) if rewound else await self.snapshot(cached, tail)
        async with aclosing(self.batches(log, as_stored=rewound, fields=fields)) as batches:
            async for entries in batches:
                for entry in entries:
                    yield cached, entry
        if not await self._is_current(cached):
            raise ConversationDeletedError(DELETED)


def check_question(row: StoredMessageRow) -> None:
    """Raise an InvalidInputError if a message is not a question."""
    if not row.message.begins_turn:
        raise InvalidInputError(
            f"message {row.message.id!r} is not a question, so no turn begins with it"
        )


def grown(at_once: int) -> int:
    """Return the number of entries for the next read: twice as many, up to 100."""
    return max(at_once, min(2 * at_once, _ENTRIES_AT_ONCE))


def check_dense(
    conversation: str, entries: Sequence[Entry], *, first: int = 0, last: int = 0
) -> None:
    """Check that entries are consecutive, from the number `first` or up to `last` if given.

    Raises:
        BrokenLogError: An entry is missing or names another predecessor.
    """
    numbers = [entry.number for entry in entries]
    first = first or (numbers[0] if numbers else last)
    last = last or first + len(numbers) - 1
    missing = next(
        (
            number
            for number, found in zip_longest(range(first, last + 1), numbers)
            if number != found
        ),
        None,
    )
    if missing:
        raise BrokenLogError(entry_id(conversation, missing), "the entry is missing")
    check_links(conversation, entries)


def check_links(conversation: str, entries: Sequence[Entry]) -> None:
    """Check that each entry follows the one before it, directly or after entries with only items.

    Raises:
        BrokenLogError: An entry that has more than items is missing, or an entry names another predecessor.
    """
    for before, entry in pairwise(entries):
        if entry.after != before.totals.link:
            is_next = entry.number == before.number + 1
            problem = (
                "it does not follow the entry before it" if is_next else "the entry is missing"
            )
            key = entry_id(conversation, entry.number if is_next else before.number + 1)
            raise BrokenLogError(key, problem)


def _counted_part(cached: CachedConversation, tail: Totals) -> Totals:
    """Return the totals up to which the log was recounted, or empty totals if it was not, or was rewound since."""
    counted = cached.counted
    if counted is None or counted.rewind_entry != tail.rewind_entry:
        return Totals()
    return counted if counted.entries <= tail.entries else Totals()

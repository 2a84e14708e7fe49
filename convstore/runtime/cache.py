"""Cache recent conversations in memory, so that a handle that is created for each request starts warm.

All cached data can be read again from MongoDB. The cache is limited in conversations and in bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import getsizeof
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.log.rows import Row
from convstore.log.state import LeadingSystem, State
from convstore.log.stored_message import ShownMessage
from convstore.runtime.clock import ID_LIFETIME, Clock, Moment
from convstore.values.scope import PATH, Scope

_LOGGER = logging.getLogger("convstore")
TAIL_LIFETIME = 10.0
"""Seconds after which a cached tail is compared with the log before use: a backup may have been restored."""

_MAXIMUM_CONVERSATIONS = 1_000
_MAXIMUM_BYTES = 32_000_000
_MAXIMUM_QUESTIONS = 16
_ENTRY_OVERHEAD = 350
_MESSAGE_OVERHEAD = 550
"""Bytes that a cached entry and a cached message take in addition to their stored size."""
_CONVERSATION_OVERHEAD = 6_000
_ITEM_OVERHEAD = 150
"""Bytes of a cached conversation, and of each shown source or rewound range in it."""


class CachedPayload(NamedTuple):
    """A cached payload: all of it, or only the part that views of a finished turn show.

    `shown` is the length of that part. `is_lasting` is True if the text stays cached after the end of the turn.
    """

    text: str
    shown: int
    is_lasting: bool = False


@dataclass(slots=True)
class LoadedEnd:
    """The end of a log as loads have read it, and values that they derived from it.

    Attributes:
        entries: The last entries, with sizes by the store's counter.
        key: Number of the rewind entry and token of the summary for which the derived values are valid.
        rows: The rows of the entries.
        notes: Notes and their sizes, by the ordinals around the messages that they replace.
        needed: The first entry that the views of recent policies needed, by the key of the policy.
        size: Estimated memory in bytes.
    """

    entries: Sequence[Entry] = ()
    key: tuple[int, str] = (0, "")
    rows: Sequence[Row] = ()
    notes: dict[tuple[int, ...], ShownMessage] = field(default_factory=dict)
    needed: dict[str, int] = field(default_factory=dict)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        forms = [message.kept for entry in self.entries for message in entry.messages]
        self.size = (
            sum([entry.size for entry in self.entries])
            + sum([len(form.body) for form in forms if form and form.body])
            + _ENTRY_OVERHEAD * len(self.entries)
            + _MESSAGE_OVERHEAD * len(forms)
        )


@dataclass(slots=True, eq=False)
class CachedConversation:
    """The cached state of one conversation.

    Attributes:
        scope: Scope of the conversation.
        conversation: Id of the conversation.
        verified_at: Time at which the head was last seen with this id.
        unverified: Number of messages that this store appended since then.
        refreshed: When this store last refreshed the head, and the date and the link that it wrote.
        confirmed_at: Time of the last acknowledged insert or majority read of the tail.
        tail: Totals of the last entry.
        counted: The last tail that another token counter wrote, recomputed with the store's counter.
        entries: Number of entries that were acknowledged or read; the log has at least so many. It never decreases.
        questions: Ordinals of questions by their ids, the newest last.
        active: The active messages as of the newest rewind entry seen.
        system: The leading system messages.
        revision: The highest revision of the state that was seen.
        state: The document of the state as it was read last, and the state.
        may_have_summaries: False if the log was known to have no summary when a rewind or a turn began.
        payloads: Immutable payloads that this store appended or showed, by message id.
        payload_size: The memory of the payloads in bytes.
        end: The last entries of the log as loads have read them; None during a load.
        counted_size: The size of this conversation as it is included in the size of the cache.
        locks: A lock for each event loop; see `lock`.
    """

    scope: Scope
    conversation: str
    verified_at: Moment
    unverified: int = 0
    refreshed: tuple[Moment, datetime, int] | None = None
    confirmed_at: Moment = (float("-inf"), 0.0)
    tail: Totals | None = None
    counted: Totals | None = None
    entries: int = 0
    questions: dict[str, int] = field(default_factory=dict)
    active: Rewinds = NO_REWINDS
    system: LeadingSystem | None = None
    revision: int = 0
    state: tuple[Mapping[str, Any], State] | None = None
    may_have_summaries: bool = True
    payloads: Mapping[str, CachedPayload] = field(default_factory=dict)
    payload_size: int = 0
    end: LoadedEnd | None = None
    counted_size: int = 0
    locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = field(
        default_factory=WeakKeyDictionary
    )

    def know_questions(self, messages: Iterable[EntryMessage]) -> None:
        """Cache the ordinals of the questions among some messages."""
        for message in messages:
            if message.begins_turn:
                self.questions.pop(message.id, None)
                self.questions[message.id] = message.ordinal
        while len(self.questions) > _MAXIMUM_QUESTIONS:
            del self.questions[next(iter(self.questions))]

    def known_questions(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the ordinals of questions with some ids, by id, as far as they are cached."""
        return {id_: self.questions[id_] for id_ in ids if id_ in self.questions}

    @property
    def lock(self) -> asyncio.Lock:
        """The lock that serialises appends of this event loop, so that a tail is used only after it is acknowledged.

        Appends of several event loops are ordered by the log, like those of several processes.
        """
        loop = asyncio.get_running_loop()
        return self.locks.get(loop) or self.locks.setdefault(loop, asyncio.Lock())

    @property
    def key(self) -> tuple[Scope, str]:
        """Return scope and id."""
        return self.scope, self.conversation

    @property
    def size(self) -> int:
        """Estimate the memory in bytes."""
        size = _CONVERSATION_OVERHEAD + self.payload_size + _size_of_system(self.system)
        if self.state:
            size += _size_of_state(self.state[1], self.system)
        if self.end:
            size += self.end.size
        items = len(self.active.ranges)
        if self.tail and self.tail.shown:
            items += len(self.tail.shown)
        return size + _ITEM_OVERHEAD * items

    def follow(self, active: Rewinds) -> None:
        """Cache active messages, if their rewind entry is newer than that of the cached ones."""
        if active.entry > self.active.entry:
            self.active = active

    def doubt(self) -> None:
        """Drop the tail and the time of the last refresh, because the outcome of an insert is unknown."""
        self.tail = self.refreshed = None

    def advance(self, tail: Totals) -> None:
        """Cache the tail of an acknowledged insert or a majority read, if it is newer."""
        self.entries = max(self.entries, tail.entries)
        if self.tail is None or self.tail.entries < tail.entries:
            self.tail = tail


class ConversationCache:
    """The most recently used conversations of a store.

    Attributes:
        size: Estimated memory in bytes.
        on_discarded: Called if another worker deleted a conversation, with the number of messages that this store
            appended to it and that were lost unnoticed.
    """

    def __init__(self, clock: Clock, scope_keys: Sequence[str]) -> None:
        self._clock = clock
        self._scope_keys = scope_keys
        self.size = 0
        self.on_discarded: Callable[[int], None] = lambda _number: None
        self._joined: list[ConversationCache] = [self]
        self._by_scope: OrderedDict[Scope, CachedConversation] = OrderedDict()
        self._with_messages: OrderedDict[Scope, CachedConversation] = OrderedDict()

    def get(self, scope: Scope) -> CachedConversation | None:
        """Return the cached conversation of a scope."""
        cached = self._by_scope.get(scope)
        if cached is not None:
            self._by_scope.move_to_end(scope)
        return cached

    def add(self, scope: Scope, conversation: str) -> CachedConversation:
        """Cache a scope's conversation, just read from its head; if it is cached already, its state is kept."""
        cached = self._by_scope.get(scope)
        if cached is None or cached.conversation != conversation:
            self._drop(scope)
            cached = self._by_scope[scope] = CachedConversation(
                scope, conversation, self._clock.moment()
            )
            while len(self._by_scope) > _MAXIMUM_CONVERSATIONS:
                self._drop(next(iter(self._by_scope)))
        self.verify(cached)
        return cached

    def outside(self, scope: Scope, conversation: str) -> CachedConversation:
        """Return a scope's conversation without adding it to the cache, because that could evict another one."""
        cached = self._by_scope.get(scope)
        if cached is not None and cached.conversation == conversation:
            return cached
        return CachedConversation(scope, conversation, self._clock.moment())

    def verify(self, cached: CachedConversation) -> None:
        """Record that the head was just seen with this conversation."""
        cached.verified_at = self._clock.moment()
        cached.unverified = 0

    def is_fresh(self, cached: CachedConversation) -> bool:
        """Return True if the id may be used without reading the head first."""
        return self._clock.is_within(ID_LIFETIME, since=cached.verified_at)

    def confirm(self, cached: CachedConversation, tail: Totals) -> None:
        """Cache a tail that was just inserted, or read from a majority."""
        cached.advance(tail)
        cached.confirmed_at = self._clock.moment()
        self._weigh(cached)

    def _weigh(self, cached: CachedConversation) -> None:
        """Count the memory of a conversation; above the limit evict the least recently used ones.

        Messages are evicted first, then whole conversations. A conversation without its messages still has its id and
        the start of its view, so that a load takes one round trip.
        """
        if not self.is_current(cached):
            return
        self._with_messages[cached.scope] = cached
        self._count(cached)
        for by_use, evict in ((self._with_messages, self._release), (self._by_scope, self._drop)):
            by_use.move_to_end(cached.scope)
            while self.size > _MAXIMUM_BYTES:
                oldest = next(iter(by_use.values()))
                if oldest is cached:
                    break
                evict(oldest.scope)

    def _count(self, cached: CachedConversation) -> None:
        size = cached.size
        self.size = self.size + size - cached.counted_size
        cached.counted_size = size

    def is_confirmed(self, cached: CachedConversation) -> bool:
        """Return True if the cached tail may be used without comparing it with the log first."""
        return self._clock.is_within(TAIL_LIFETIME, since=cached.confirmed_at)

    def is_warm(self, cached: CachedConversation) -> bool:
        """Return True if id and tail may both be used without a command."""
        return self.is_fresh(cached) and self.is_confirmed(cached)

    def is_current(self, cached: CachedConversation) -> bool:
        """Return True if the scope still has this conversation in the cache."""
        return self._by_scope.get(cached.scope) is cached

    def join(self, twin: ConversationCache) -> None:
        """Exchange deletions with the cache of the store for sync callers."""
        twin._joined = self._joined
        self._joined.append(twin)

    def end(self, values: Mapping[str, str]) -> None:
        """Drop a deleted conversation here and in joined caches; one with other scope keys is not cached."""
        if values.keys() - {PATH} == set(self._scope_keys):
            scope = tuple((key, values[key]) for key in (*self._scope_keys, PATH) if key in values)
            for cache in self._joined:
                cache._drop(scope)  # noqa: SLF001 - another instance of this class

    def end_conversation(self, conversation: str) -> None:
        """Drop a deleted conversation whose scope is unknown, as `end` does. It searches all cached conversations."""
        for cache in self._joined:
            for scope, cached in tuple(cache._by_scope.items()):  # noqa: SLF001 - as in `end`
                if cached.conversation == conversation:
                    cache._drop(scope)  # noqa: SLF001 - as in `end`

    def forget(self, cached: CachedConversation) -> None:
        """Drop a conversation that no longer belongs to its scope."""
        if self.is_current(cached):
            self._drop(cached.scope)

    def discard(self, cached: CachedConversation) -> None:
        """Drop a conversation that another worker deleted; log and count the messages that were deleted unnoticed."""
        if cached.unverified:
            line = (
                "conversation %s was deleted, with %s messages that were appended since this "
                "worker saw it last"
            )
            _LOGGER.warning(line, cached.conversation, cached.unverified)
            self.on_discarded(cached.unverified)
            cached.unverified = 0
        self.forget(cached)

    def _release(self, scope: Scope) -> None:
        if cached := self._with_messages.pop(scope, None):
            cached.payloads = {}
            cached.payload_size = 0
            cached.end = None
            self._count(cached)

    def _drop(self, scope: Scope) -> None:
        self._release(scope)
        if cached := self._by_scope.pop(scope, None):
            self.size -= cached.counted_size
            cached.counted_size = 0

    def keep_payloads(
        self, cached: CachedConversation, payloads: Mapping[str, CachedPayload]
    ) -> None:
        """Replace the cached payloads of a conversation; if they exceed the limit, the last ones are kept."""
        kept: dict[str, CachedPayload] = {}
        room = _MAXIMUM_BYTES
        for id_, payload in reversed(list(payloads.items())) if self.is_current(cached) else ():
            room -= getsizeof(payload.text)
            if room < 0:
                break
            kept[id_] = payload
        cached.payloads = dict(reversed(kept.items()))
        cached.payload_size = sum(getsizeof(text.text) for text in kept.values())
        self._weigh(cached)

    def end_turn(self, cached: CachedConversation) -> None:
        """Reduce the payloads of the turn in progress to the parts that views show once it is finished."""
        lasting: dict[str, CachedPayload] = {}
        for id_, kept in cached.payloads.items():
            if kept.is_lasting:
                lasting[id_] = kept
            elif kept.shown:
                shown = kept.text[: kept.shown]
                lasting[id_] = CachedPayload(shown, kept.shown, is_lasting=True)
        self.keep_payloads(cached, lasting)

    def keep_end(self, cached: CachedConversation, end: LoadedEnd) -> None:
        """Cache the last entries of a log, unless they alone exceed the limit."""
        if self.is_current(cached) and end.size <= _MAXIMUM_BYTES:
            cached.end = end
        self._weigh(cached)

    def all(self) -> list[CachedConversation]:
        """Return every cached conversation."""
        return list(self._by_scope.values())


def _size_of_system(system: LeadingSystem | None) -> int:
    if system is None:
        return 0
    return sum(len(message.body) for message in system.messages)


def _size_of_state(state: State, known: LeadingSystem | None) -> int:
    """Return the characters of a state, without leading system messages that are counted already."""
    size = 0
    if state.system is not known:
        size += _size_of_system(state.system)
    if state.summary:
        size += len(state.summary.text) + sum(map(len, state.summary.messages))
    return size

"""What a store remembers of recent conversations, so that a handle made anew for each request is warm.

Layer 4. Everything here can be read again from MongoDB; the cache is bounded in conversations and in bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Generic, NamedTuple, TypeVar

from convstore.log.entry import Entry, EntryMessage, Repair, RewoundRange, Totals
from convstore.log.summary import NamedResult
from convstore.runtime.clock import ID_LIFETIME, Clock
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope

__all__ = [
    "TAIL_LIFETIME",
    "UNKNOWN_START",
    "CachedConversation",
    "CachedPayload",
    "ConversationCache",
    "SharedLimit",
    "SizedLRU",
    "Start",
]

TAIL_LIFETIME = 10.0
"""Seconds after which a remembered tail is compared with the log before use: a backup may have been restored."""


_CONVERSATIONS = 1_000


_POLICIES = 8


_BYTES, _PER_MESSAGE = 32_000_000, 2_000
"""What entries and payloads may take in memory, and what a message takes there beside its stored size."""


_Owner = TypeVar("_Owner")


_Kept = TypeVar("_Kept")


class SharedLimit:
    """The room that several keepers share; when it is full, what was used least recently goes first."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self._drops: OrderedDict[Any, tuple[Callable[[], object], int]] = OrderedDict()

    def use(self, key: Any) -> None:
        """Note that something was used just now."""
        self._drops.move_to_end(key)

    def take(self, key: Any, size: int, drop: Callable[[], object]) -> None:
        """Take room for something, and call `drop` of others until there is enough."""
        self._drops[key] = drop, size
        self.size += size
        while self.size > self.most:
            next(iter(self._drops.values()))[0]()

    def free(self, key: Any) -> None:
        """Give room back."""
        self.size -= self._drops.pop(key)[1]


class SizedLRU(Generic[_Owner, _Kept]):
    """Keeps something for each owner, as long as there is room for it."""

    def __init__(self, room: SharedLimit) -> None:
        self._room, self.size = room, 0
        self._kept: dict[_Owner, tuple[_Kept, int]] = {}

    def get(self, owner: _Owner) -> _Kept | None:
        """What is kept for an owner."""
        if owner not in self._kept:
            return None
        self._room.use((id(self), owner))
        return self._kept[owner][0]

    def put(self, owner: _Owner, kept: _Kept, *, size: int) -> None:
        """Keep something in place of what was kept for an owner, unless it is larger than all the room."""
        self.drop(owner)
        if size > self._room.most:
            return
        self._kept[owner] = kept, size
        self.size += size
        self._room.take((id(self), owner), size, lambda: self.drop(owner))

    def drop(self, owner: _Owner) -> _Kept | None:
        """Give what was kept for an owner, and keep it no more."""
        if owner not in self._kept:
            return None
        kept, size = self._kept.pop(owner)
        self.size -= size
        self._room.free((id(self), owner))
        return kept


class CachedPayload(NamedTuple):
    """A payload in memory: all of it, or the part that views of a finished turn show.

    `shown` is the length of that part, and `is_lasting` says that a view of a finished turn showed the text.
    """

    text: str
    shown: int
    is_lasting: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where views under one policy begin: here or further on, until messages are rewound or summarised.

    Attributes:
        marker: The last entry that changed which messages are live.
        revision: Counts changes of the summary.
        entry: Number of the entry that holds the first message.
        first: Ordinal of that message.
        counter: Name of the token counter that the budget was counted with.
        results: The newest tool results before that entry, newest first.
    """

    marker: int
    revision: int
    entry: int
    first: int
    counter: str
    results: tuple[NamedResult, ...] = ()

    @property
    def position(self) -> tuple[int, int, int, int, str]:
        """As the head keeps it; compared in this order."""
        return self.marker, self.revision, self.entry, self.first, self.counter


UNKNOWN_START = Start(0, 0, 0, 0, "")


@dataclass(slots=True, eq=False)
class CachedConversation:
    """One conversation: its id, tail, starts of views, system messages.

    What is rewound (`gaps`), what a `repair` found out, starts and system messages are as of the newest `marker` that
    was seen. `asked` is the last human message that this store appended: its id, its place among the live messages, and
    the marker then.
    `counted` is the last tail that another token counter wrote, counted anew.
    `entries` of the log are sure to be there, as they were acknowledged or read before; it never goes back.
    `confirmed_at` is when the log was last known to have them: at an acknowledged insert or a majority read.
    """

    scope: Scope
    conversation: str
    verified_at: float
    confirmed_at: float = float("-inf")
    tail: Totals | None = None
    counted: Totals | None = None
    entries: int = 0
    asked: tuple[str, int, int] = ("", 0, 0)
    marker: int = 0
    gaps: tuple[RewoundRange, ...] = ()
    repair: Repair | None = None
    system: tuple[EntryMessage, ...] | None = None
    starts: OrderedDict[HistoryPolicy, Start] = field(default_factory=OrderedDict)
    # Appends to one conversation go one after the other: a tail is used only when the one before it is acknowledged.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def follow(self, marker: Entry) -> None:
        """Take note of what is rewound as of the newest marker; starts and system messages may be others then."""
        if marker.number > self.marker:
            self.marker, self.gaps, self.repair = marker.number, marker.gaps, marker.repair
            self.system = None
            self.starts.clear()

    def remember_start(self, policy: HistoryPolicy, start: Start) -> None:
        """Keep where the next view under a policy begins."""
        self.starts[policy] = start
        self.starts.move_to_end(policy)
        while len(self.starts) > _POLICIES:
            self.starts.popitem(last=False)

    def advance(self, tail: Totals) -> None:
        """Keep the newest tail of an acknowledged insert or a majority read."""
        self.entries = max(self.entries, tail.entries)
        if self.tail is None or self.tail.entries < tail.entries:
            self.tail = tail


class ConversationCache:
    """The most recently used conversations of a store.

    Attributes:
        payloads: Those that this store appended or showed, by message id. They never change.
        ends: The last entries of logs that loads have read, with sizes by the store's counter: an entry never changes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_scope: OrderedDict[Scope, CachedConversation] = OrderedDict()
        room = SharedLimit(_BYTES)
        self.payloads = SizedLRU[CachedConversation, dict[str, CachedPayload]](room)
        self.ends = SizedLRU[CachedConversation, tuple[Entry, ...]](room)

    def get(self, scope: Scope) -> CachedConversation | None:
        """What is known of a scope's conversation."""
        known = self._by_scope.get(scope)
        if known is not None:
            self._by_scope.move_to_end(scope)
        return known

    def add(self, scope: Scope, conversation: str) -> CachedConversation:
        """Remember a scope's conversation, just read from its head; keeps what is known of the same one."""
        known = self._by_scope.get(scope)
        if known is None or known.conversation != conversation:
            self._drop(scope)
            known = self._by_scope[scope] = CachedConversation(scope, conversation, self._clock.monotonic())
            while len(self._by_scope) > _CONVERSATIONS:
                self._drop(next(iter(self._by_scope)))
        self.verify(known)
        return known

    def verify(self, known: CachedConversation) -> None:
        """Note that the conversation's head was just seen."""
        known.verified_at = self._clock.monotonic()

    def is_fresh(self, known: CachedConversation) -> bool:
        """Whether the id may be used without looking at the head first."""
        return self._clock.monotonic() - known.verified_at < ID_LIFETIME

    def confirm(self, known: CachedConversation, tail: Totals) -> None:
        """Keep a tail that was just inserted, or read from a majority."""
        known.advance(tail)
        known.confirmed_at = self._clock.monotonic()

    def is_confirmed(self, known: CachedConversation) -> bool:
        """Return True if what is known of the log may be used without comparing it with the log first."""
        return self._clock.monotonic() - known.confirmed_at < TAIL_LIFETIME

    def is_current(self, known: CachedConversation) -> bool:
        """Whether its scope still has this conversation, as far as is known."""
        return self._by_scope.get(known.scope) is known

    def forget(self, known: CachedConversation) -> None:
        """Drop a conversation that its scope has no more."""
        if self.is_current(known):
            self._drop(known.scope)

    def _drop(self, scope: Scope) -> None:
        known = self._by_scope.pop(scope, None)
        if known is not None:
            self.payloads.drop(known)
            self.ends.drop(known)

    def keep_payloads(self, known: CachedConversation, payloads: Mapping[str, CachedPayload]) -> None:
        """Keep these payloads of a conversation and no others; if they are too large together, the last ones."""
        if not self.is_current(known):
            return
        kept, size = dict[str, CachedPayload](), 0
        for id_, payload in reversed(list(payloads.items())):
            size += getsizeof(payload.text)
            if size > _BYTES:
                size -= getsizeof(payload.text)
                break
            kept[id_] = payload
        self.payloads.drop(known)
        if kept:
            self.payloads.put(known, dict(reversed(list(kept.items()))), size=size)

    def end_turn(self, known: CachedConversation) -> None:
        """Keep of the payloads of the turn in progress what views show once it is finished."""
        if kept := self.payloads.get(known):
            lasting = {
                id_: one if one.is_lasting else CachedPayload(one.text[: one.shown], one.shown, is_lasting=True)
                for id_, one in kept.items()
                if one.is_lasting or one.shown
            }
            self.keep_payloads(known, lasting)

    def keep_end(self, known: CachedConversation, entries: Sequence[Entry]) -> None:
        """Keep the last entries of a log."""
        if self.is_current(known):
            size = sum(entry.size + _PER_MESSAGE * len(entry.messages) for entry in entries)
            self.ends.put(known, tuple(entries), size=size)

    def all(self) -> list[CachedConversation]:
        """Every conversation that is remembered."""
        return list(self._by_scope.values())

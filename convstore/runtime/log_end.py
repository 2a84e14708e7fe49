"""Read the state of a conversation and the end of its log, both at least as new as this store has seen.

A missing state means that the conversation was deleted, or that its state was lost. The head decides; a lost state is
restored from the stored summaries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from convstore.exceptions import ConversationDeletedError, CorruptDocumentError
from convstore.log.entry import Entry, Totals
from convstore.log.state import State, restored
from convstore.mongo.collection import Document
from convstore.mongo.keys import SUMMARIES, summary_id
from convstore.mongo.parallel import together
from convstore.mongo.state_documents import current_summary, state_from, summary_in
from convstore.mongo.states import States
from convstore.mongo.summaries import Summaries
from convstore.mongo.versions import is_newer
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import DELETED, LogReader
from convstore.values.scope import Scope

_Read = tuple[Document | None, list[Entry], list[int]]


class LogEnd(NamedTuple):
    """The end of a log.

    Attributes:
        state: The state of the conversation.
        entries: The last entries, in order.
        documents: Number of documents read.
        size: Size of all entries read, even of those that no view needs.
        round_trips: Number of round trips of the read.
    """

    state: State
    entries: list[Entry]
    documents: int
    size: int
    round_trips: int


class LogEndReader:
    """Reads the ends of logs for all conversations of a store.

    Attributes:
        reader: Reads the logs.
        states: Commands on states.
        summaries: Commands on summaries.
    """

    def __init__(self, reader: LogReader, states: States, summaries: Summaries) -> None:
        self.reader = reader
        self.states = states
        self.summaries = summaries
        self._heads = reader.heads
        self._cache = reader.cache
        self._clock = reader.clock

    async def find(self, scope: Scope) -> tuple[CachedConversation | None, Totals | None]:
        """Return the scope's conversation, and the totals of its log if its head was read. At most one command."""
        if (cached := self._cache.get(scope)) is not None:
            return cached, None
        found = await self._heads.find_listed(dict(scope))
        return self.reader.seen(scope, found and found.head), found and found.totals

    async def read(
        self,
        cached: CachedConversation,
        *,
        start: int = 0,
        limit: int = 1,
        has_system: bool = True,
        view: str = "",
        known: Entry | None = None,
        items_from: int = 0,
    ) -> LogEnd:
        """Return the state and the last entries from a number on; the arguments are those of `States.read_end`.

        This takes one command. If the cached id is 10 seconds old, a second command in parallel reads the head. A large
        summary that this store has not read yet takes one more.

        Raises:
            ConversationDeletedError: The scope's conversation was deleted, or replaced by another one.
        """
        is_fresh = self._cache.is_fresh(cached)
        read = partial(
            self.states.read_end,
            cached.conversation,
            start=start,
            limit=limit,
            has_system=has_system,
            view=view,
            known=known,
            items_from=items_from,
        )
        document, entries, passed = await self.reader.read_your_writes(
            cached,
            read if is_fresh else partial(self._with_head, cached, read),
            last=lambda found: found[1][-1].number if found[1] else 0,
            revision=lambda found: _revision(found[0], cached.revision),
        )
        state, round_trips = await self._state_of(cached, document, entries)
        cached.revision = max(cached.revision, state.revision)
        if state.newest:  # never reset: an older read may end after one that found a summary
            cached.may_have_summaries = True
        documents = (document is not None) + len(entries) + len(passed) + (not is_fresh)
        size = sum(entry.size for entry in entries) + sum(passed)
        return LogEnd(state, entries, documents, size, round_trips)

    async def _with_head(
        self, cached: CachedConversation, read: Callable[[], Awaitable[_Read]]
    ) -> _Read:
        found, _ = await together(read(), self._check_exists(cached))
        return found

    async def _state_of(
        self, cached: CachedConversation, document: Document | None, entries: Sequence[Entry]
    ) -> tuple[State, int]:
        """Return the state, and the number of round trips including the read of its document."""
        if document is None:
            await self._check_exists(cached)
            return await self._restored(cached, entries), 5 if entries else 2
        if is_newer(document, "state"):
            return State(cached.conversation, self._clock.now()), 1
        if cached.state is not None and cached.state[0] == document:
            return cached.state[1], 1
        return await self._state(cached, document)

    async def state(self, cached: CachedConversation) -> State:
        """Return the state of a conversation. As many commands as `read`."""
        return (await self.read(cached)).state

    async def _check_exists(self, cached: CachedConversation) -> None:
        if self.reader.seen(cached.scope, await self._heads.find(dict(cached.scope))) is not cached:
            raise ConversationDeletedError(DELETED)

    async def _state(self, cached: CachedConversation, document: Document) -> tuple[State, int]:
        """Return the state in a document, and the round trips; a large summary is read from its own document."""
        (token, digest) = current_summary(document)
        summary = None
        round_trips = 1
        if cached.state and current_summary(cached.state[0])[1] == digest:
            summary = cached.state[1].summary
        elif token:
            if (summary := summary_in(document)) is None:
                summary = await self.summaries.find(cached.conversation, token)
                round_trips = 2
            if summary is None or summary.digest != digest:
                key = summary_id(cached.conversation, token)
                raise CorruptDocumentError(
                    key, "the state refers to another content of it", collection=SUMMARIES
                )
        state = state_from(document, summary)
        cached.state = document, state
        return state, round_trips

    async def _restored(self, cached: CachedConversation, entries: Sequence[Entry]) -> State:
        """Rebuild and insert a lost state; an empty log has no stored state yet."""
        if not entries:
            return State(cached.conversation, self._clock.now())
        totals = entries[-1].totals
        now = self._clock.now()
        state = restored(
            cached.conversation,
            (await self.summaries.all(cached.conversation)).values(),
            (await self.reader.snapshot(cached, totals)).fits,
            revision=max(cached.revision + 1, int(now.timestamp())),
            at=now,
        )
        await self.states.insert(state)
        document = await self.states.find(cached.conversation)
        if document is None:
            raise ConversationDeletedError(DELETED)
        return (await self._state(cached, document))[0]


def _revision(document: Document | None, known: int) -> int:
    """Return the revision of a state; a missing or damaged one counts as current, because parsing it reports it."""
    revision = document.get("revision") if document else known
    return revision if isinstance(revision, int) else known

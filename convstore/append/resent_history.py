"""Appends what is new of a history that a client sends again, after comparing it with the live log.

Layer 4. The comparison reads the digests of the end of the log, as much of it as the history could know, and the writer
then adds the rest directly behind the entry that was read last; if another append came first, all is decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from langchain_core.messages import BaseMessage

from convstore.append.batch import is_heavy
from convstore.append.resent import (
    Comparable,
    Match,
    comparable,
    compare,
    is_enough,
    is_history,
    leading_systems,
    parting,
    stored,
)
from convstore.append.writer import TailMoved, Writer, pause
from convstore.exceptions import (
    ConversationDeletedError,
    HistoryDivergedError,
    ResentHistoryError,
    StoreError,
    StoreUnavailableError,
)
from convstore.log.entry import Entry, RewoundRange, Totals
from convstore.log.rewind import active_before, is_active
from convstore.messages.values import Codec
from convstore.mongo.digests import Digests
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.clock import APPEND_SECONDS
from convstore.runtime.log_reader import LogReader
from convstore.values.models import Receipt
from convstore.values.scope import Scope

__all__ = ["Decision", "Resender"]

_TRIES = 1_000
_NO_LOG = Totals()
_MARGIN = 8
_GROWTH = 4
_MOST_ENTRIES = 1_000
_BEGINNING = 200
"""Entries of the log's beginning that are compared, to say where a history parts from a long log."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How much of a history the log has.

    Attributes:
        batch: The messages of the history, compared.
        places: The messages of the log that the first ones are; leading system messages may have none.
        known: How many messages of the history, from the first, are in the log or skipped.
        tail: What the last entry says of the log that was compared.
    """

    batch: tuple[Comparable, ...]
    places: tuple[Comparable, ...] = ()
    known: int = 0
    tail: Totals = _NO_LOG

    @property
    def is_known(self) -> bool:
        """Whether the log has more of the history than leading system messages."""
        return self.known > leading_systems(self.batch)

    def receipt(self, new: Receipt | None) -> Receipt:
        """What the caller is told: the messages of the log that are known, then those that were added."""
        ids, ordinals = tuple(one.id for one in self.places), tuple(one.ordinal for one in self.places)
        if new is None:
            return Receipt(message_ids=ids, first=min(ordinals), last=max(ordinals), ordinals=ordinals, written=0)
        ordinals += new.ordinals
        update = {"message_ids": ids + new.message_ids, "ordinals": ordinals}
        return new.model_copy(update=update | {"first": min(ordinals), "last": max(ordinals)})


class _End:
    """The end of a conversation's log, as far as it was read.

    Attributes:
        live: Its live messages, in order.
        tail: What the last entry says of the whole log.
        gaps: What is rewound.
        start: The entry up to which nothing was read yet; 1 if all was read, 0 if nothing.
    """

    def __init__(self, gaps: tuple[RewoundRange, ...] = ()) -> None:
        self.live: list[Comparable] = []
        self.tail = Totals()
        self.gaps = gaps
        self.start = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Put entries before those that were read so far."""
        messages = (message for entry in entries for message in entry.messages)
        self.live[:0] = [stored(message) for message in messages if is_active(self.gaps, message.ordinal)]
        self.start = active_before(self.gaps, entries[0].number) if entries else 1


class Resender:
    """Appends histories for all conversations of a store."""

    def __init__(
        self, reader: LogReader, digests: Digests, writer: Writer, known: ConversationCache, *, codec: Codec
    ) -> None:
        self._reader, self._digests, self._writer, self._known = reader, digests, writer, known
        self._codec = codec

    async def append(
        self, scope: Scope, messages: Sequence[BaseMessage], *, skip: bool, omit: bool = False, renumber: bool = False
    ) -> Receipt:
        """Write what the log does not have of a history; see `resent` of `Conversation.append`."""
        if not is_history(messages):
            return await self._writer.append(scope, messages, omit=omit, renumber=renumber)
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                return await self._append(scope, messages, skip=skip, omit=omit, renumber=renumber)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"the append took longer than {APPEND_SECONDS:.0f} s and was given up; it may or may not be written: "
                "repeat it with the same messages"
            ) from error

    async def _append(
        self, scope: Scope, messages: Sequence[BaseMessage], *, skip: bool, omit: bool, renumber: bool
    ) -> Receipt:
        batch = await self._compared(messages)
        for tries in range(_TRIES):
            try:
                decision = await self._decide(scope, batch)
                if decision.is_known and not skip:
                    raise ResentHistoryError(known=decision.known)
                new = messages[decision.known :]
                write = partial(self._writer.append, after=decision.tail, omit=omit, renumber=renumber)
                receipt = decision.receipt(await write(scope, new) if new else None)
            except (TailMoved, ConversationDeletedError):
                await pause(tries)
                continue
            for message, place in zip(reversed(messages[: decision.known]), reversed(decision.places), strict=False):
                message.id = place.id
            return receipt
        raise StoreError(f"{_TRIES} other writers were first; append again, and less at once to one conversation")

    async def decide(self, scope: Scope, messages: Sequence[BaseMessage]) -> Decision:
        """Find out how much of a history the log has; writes nothing.

        Raises:
            HistoryDivergedError: It is not the history that the log has.
        """
        return await self._decide(scope, await self._compared(messages))

    async def _compared(self, messages: Sequence[BaseMessage]) -> tuple[Comparable, ...]:
        def work() -> tuple[Comparable, ...]:
            return tuple(comparable(message, self._codec) for message in messages)

        return await asyncio.to_thread(work) if is_heavy(messages) else work()

    async def _decide(self, scope: Scope, batch: tuple[Comparable, ...]) -> Decision:
        known = await self._reader.find(scope)
        if known is None:
            return Decision(batch)
        async with self._reader.reading(known):
            end = await self._end(known, batch)
            match = compare(batch, end.live)
            if match.known is None:
                match = await self._explained(known, end, batch, match)
        held = known.tail
        if held is None or held.entries < end.tail.entries or held.link == end.tail.link:
            self._known.confirm(known, end.tail)
        return Decision(batch, match.places, match.known or 0, end.tail)

    async def _end(self, known: CachedConversation, batch: Sequence[Comparable]) -> _End:
        """Read the end of the log until no message before could matter: mostly one command."""
        end = _End()
        limit = _likely_entries(known.tail, batch)
        end.add(await self._newest(known, end, limit))
        while end.start > 1 and not is_enough(batch, end.live):
            limit = min(_GROWTH * limit, _MOST_ENTRIES)
            entries = await self._digests.newest(known.conversation, before=end.start, limit=limit)
            await self._reader.check(known, entries, last=end.start - 1)
            end.add(entries)
        return end

    async def _newest(self, known: CachedConversation, end: _End, limit: int) -> list[Entry]:
        """The last entries; what they say of the whole log is put into `end`."""
        entries = await self._reader.read_your_writes(
            known,
            lambda: self._digests.newest(known.conversation, limit=limit),
            last=lambda found: found[-1].number if found else 0,
        )
        await self._reader.check(known, entries)
        if entries:
            end.tail = entries[-1].totals
            if marker := next((one for one in entries if one.number == end.tail.marker), None):
                known.follow(marker)
            end.gaps = await self._reader.gaps(known, end.tail.marker)
        return entries

    async def _explained(
        self, known: CachedConversation, end: _End, batch: tuple[Comparable, ...], match: Match
    ) -> Match:
        """The match of a batch that is an earlier append, repeated under its ids.

        Raises:
            HistoryDivergedError: It is none, but another history.
        """
        if repeated := await self._repeated(known, end, batch):
            return Match(len(batch), repeated)
        if end.start > 1:
            beginning = _End(end.gaps)
            entries = await self._digests.newest(
                known.conversation, before=min(end.start, _BEGINNING + 1), limit=_BEGINNING
            )
            beginning.add(entries)
            first = parting(batch, beginning.live)
            match = first if first.after else match._replace(before=match.before if match.after else None)
        raise HistoryDivergedError(
            after=match.after.id if match.after else None, before=match.before.id if match.before else None
        )

    async def _repeated(
        self, known: CachedConversation, end: _End, batch: tuple[Comparable, ...]
    ) -> tuple[Comparable, ...]:
        """The messages of the log that have the ids of a batch and are equal, live and complete; else nothing."""
        sent = batch[leading_systems(batch) :]
        rows = await self._reader.messages_by_id(known, [one.id for one in sent], retry_if_stale=False)
        found = [stored(rows[one.id].message) for one in sent if one.id in rows]
        is_same = [one.digest for one in found] == [one.digest for one in sent]
        return tuple(found) if is_same and all(is_active(end.gaps, one.ordinal) for one in found) else ()


def _likely_entries(tail: Totals | None, batch: Sequence[Comparable]) -> int:
    """How many entries are likely to hold as many compared messages as a batch has, and a few more."""
    entries_each = 2.0
    if tail:
        with_tools = any(one.type == "tool" for one in batch)
        entries_each = tail.entries / max(tail.messages if with_tools else 2 * tail.turns, 1)
    return min(int(len(batch) * max(entries_each, 1)) + _MARGIN, _MOST_ENTRIES)

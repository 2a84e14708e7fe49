"""Append the new part of a history that a client sends again, after comparing it with the active log.

The comparison reads the digests of the end of the log, as far as the history could match. The writer then appends the
rest directly after the last entry read. If another append came first, the comparison is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.append.condition import Condition, TailMoved
from convstore.append.resent import (
    Match,
    comparable,
    compare,
    leading_systems,
    parting,
)
from convstore.append.trust import read_sent, taken_from
from convstore.append.writer import Writer
from convstore.exceptions import (
    ConversationDeletedError,
    HistoryDivergedError,
    ResentHistoryError,
    UntrustedMessageError,
)
from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.messages.filing import is_history
from convstore.mongo.log import NO_CONTENT
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import append_timeout
from convstore.runtime.log_reader import LogReader, Snapshot, check_dense
from convstore.runtime.retrying import until_written
from convstore.runtime.threads import characters_in, run_in_thread_if_long
from convstore.values.append_options import PLAIN, AppendOptions, SentMessage, Trust
from convstore.values.models import Receipt
from convstore.values.scope import Scope

_NO_LOG = Totals()
_NOTHING = Receipt(message_ids=(), first=0, last=0, ordinals=(), written=0)
_LIKELY = 4
_MARGIN = 8
"""Entries of a turn where nothing is known of the log, and those that are read in addition."""
_GROWTH = 4
_MAXIMUM_ENTRIES = 1_000
_BEGINNING = 200
"""Entries at the beginning of a long log that are compared to report where a history diverges from it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The parts of a history that the log has, and that are to be written.

    Attributes:
        sent: The messages of the history.
        batch: What is compared of them.
        match: The known ones.
        taken: By index, the messages to write.
        ignored: Names of all other messages.
        tail: Totals of the log that was compared.
    """

    sent: Sequence[SentMessage]
    batch: Sequence[EntryMessage]
    match: Match
    taken: Mapping[int, BaseMessage]
    ignored: tuple[str, ...] = ()
    tail: Totals = _NO_LOG

    @property
    def is_known(self) -> bool:
        """Return True if the log has more of the history than leading system messages."""
        return self.match.known > leading_systems(self.batch)

    @property
    def known(self) -> dict[int, str]:
        """Return the ids that the log has for known messages, by index, in order."""
        return {index: self.match.matched[index].id for index in sorted(self.match.matched)}

    def receipt(self, new: Receipt | None) -> Receipt:
        """Return the receipt: the known messages of the log and those that were added, in the order of the history."""
        places = {index: (item.id, item.ordinal) for index, item in self.match.matched.items()}
        if new:
            places |= dict(
                zip(self.taken, zip(new.message_ids, new.ordinals, strict=True), strict=True)
            )
        ids, ordinals = (tuple(places[index][part] for index in sorted(places)) for part in (0, 1))
        ends = {"first": min(ordinals, default=0), "last": max(ordinals, default=0)}
        update = {"message_ids": ids, "ordinals": ordinals, "ignored": self.ignored, **ends}
        return (new or _NOTHING).model_copy(update=update)


class _End(NamedTuple):
    """The part of a conversation's log, from its end, that was read.

    Attributes:
        active: The active messages, in order.
        log: The log, if there is one.
        start: The number of the first entry read; 1 if all was read.
    """

    active: Sequence[EntryMessage] = ()
    log: Snapshot | None = None
    start: int = 1

    @property
    def tail(self) -> Totals:
        """Totals of the log."""
        return self.log.tail if self.log else _NO_LOG


class Resender:
    """Appends histories to all conversations of a store."""

    def __init__(self, reader: LogReader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer
        self._cache = reader.cache
        self._codec = reader.codec
        self._entries = partial(reader.log.entries, fields=NO_CONTENT)

    read = staticmethod(read_sent)

    async def append(
        self,
        scope: Scope,
        messages: Sequence[BaseMessage],
        *,
        skip: bool,
        trust: Trust,
        options: AppendOptions = PLAIN,
    ) -> Receipt:
        """Write the part of a history that the log lacks; see `Conversation.append_history`."""
        sent = self.read(messages, trust)
        if (trust.is_all and not is_history(messages)) or [item.message.type for item in sent] == [
            "human"
        ]:
            taken = [item.message for item in sent]
            return (await self._writer.append(scope, taken, options=options)).receipt
        async with append_timeout():
            return await self._append(scope, sent, skip=skip, trust=trust, options=options)

    async def _append(
        self,
        scope: Scope,
        sent: Sequence[SentMessage],
        *,
        skip: bool,
        trust: Trust,
        options: AppendOptions,
    ) -> Receipt:
        async def write() -> tuple[Decision, Receipt]:
            decision = await self.decide(scope, sent, trust)
            if decision.is_known and not skip:
                raise ResentHistoryError(known=decision.match.known)
            return decision, decision.receipt(await self._write(scope, decision, options))

        decision, receipt = await until_written(write, TailMoved, ConversationDeletedError)
        for index, match in decision.match.matched.items():
            if sent[index].message.type == sent[index].origin.type:
                sent[index].origin.id = match.id
        return receipt

    async def _write(
        self, scope: Scope, decision: Decision, options: AppendOptions
    ) -> Receipt | None:
        """Append what a decision takes; None for nothing."""
        if not decision.taken:
            return None
        indexes = [decision.sent[index].position for index in decision.taken]
        written = await self._writer.append(
            scope,
            list(decision.taken.values()),
            condition=Condition(decision.tail),
            options=replace(options, indexes=indexes),
        )
        return written.receipt

    async def decide(
        self, scope: Scope, sent: Sequence[SentMessage], trust: Trust, *, compares: bool = True
    ) -> Decision:
        """Find the part of a history that the log has; writes nothing, and refuses a history that differs.

        Without `compares` nothing is known, so that its questions are new.
        """
        messages = [item.message for item in sent]
        batch = await run_in_thread_if_long(
            lambda: [comparable(message, self._codec) for message in messages],
            characters=characters_in(messages),
        )
        match = Match()
        end = _End()
        cached = await self._reader.find(scope)
        if cached is not None:
            async with self._reader.reading(cached):
                end = await self._end(cached, batch)
                if compares:
                    match = compare(batch, end.active, turns=end.tail.turns, exactly=trust.is_all)
                if match.differs:
                    match = await self._explained(cached, end, batch, trust)
            tail = cached.tail
            if tail is None or tail.entries < end.tail.entries or tail.link == end.tail.link:
                self._cache.confirm(cached, end.tail)
        taken = taken_from(sent, match, end.tail.calls, trust)
        known = match.matched.keys() | taken.keys()
        ignored: tuple[str, ...] = ()
        if not trust.is_all:
            ignored = tuple(item.name for index, item in enumerate(sent) if index not in known)
        if ignored and trust.strict:
            raise UntrustedMessageError(ignored)
        return Decision(sent, batch, match, taken, ignored, end.tail)

    async def _end(self, cached: CachedConversation, batch: Sequence[EntryMessage]) -> _End:
        """Read the end of the log until it has more questions than the batch; usually one command."""
        questions = _questions(batch)
        tail = cached.tail
        each = max(tail.entries / max(tail.turns, 1), 1) if tail else _LIKELY
        limit = min(int(questions * each) + _MARGIN, _MAXIMUM_ENTRIES)
        entries = await self._reader.read_your_writes(
            cached,
            lambda: self._entries(cached.conversation, limit=limit),
            last=lambda found: found[-1].number if found else 0,
        )
        check_dense(cached.conversation, entries)
        log = await self._reader.snapshot(
            cached, entries[-1].totals if entries else _NO_LOG, entries
        )
        active = list[EntryMessage]()
        while entries:
            active[:0] = _messages(log.active.of(entries))
            start = log.active.end_before(entries[0].number)
            if start <= 1 or _questions(active) > questions:
                return _End(active, log, start)
            limit = min(_GROWTH * limit, _MAXIMUM_ENTRIES)
            entries = await self._entries(cached.conversation, before=start, limit=limit)
            check_dense(cached.conversation, entries, last=start - 1)
        return _End(active, log)

    async def _explained(
        self, cached: CachedConversation, end: _End, batch: Sequence[EntryMessage], trust: Trust
    ) -> Match:
        """Return the match of a batch that repeats an earlier append with the same ids; refuse any other."""
        if repeated := await self._repeated(cached, end, batch, trust):
            return repeated
        found = parting(batch, end.active, exactly=trust.is_all)
        if end.log and end.start > 1:
            entries = await self._entries(
                cached.conversation, before=min(end.start, _BEGINNING + 1), limit=_BEGINNING
            )
            first = parting(batch, _messages(end.log.active.of(entries)), exactly=trust.is_all)
            if first[0]:
                found = first
            elif not found[0]:
                found = (None, None)
        after_id, before_id = (message.id if message else None for message in found)
        raise HistoryDivergedError(after_id=after_id, before_id=before_id)

    async def _repeated(
        self, cached: CachedConversation, end: _End, batch: Sequence[EntryMessage], trust: Trust
    ) -> Match | None:
        """Return the match of a batch whose messages are stored under their ids, equal and active; else None."""
        start = leading_systems(batch)
        sent = {
            index: item
            for index, item in enumerate(batch)
            if index >= start and (trust.is_all or item.type == "human")
        }
        ids = [message.id for message in sent.values()]
        rows = await self._reader.messages_by_id(cached, ids, retry_if_stale=False)
        found = {
            index: rows[message.id].message for index, message in sent.items() if message.id in rows
        }
        is_same = [message.content_digest for message in found.values()] == [
            message.content_digest for message in sent.values()
        ]
        if not is_same or (
            end.log and not all(end.log.active.has(message.ordinal) for message in found.values())
        ):
            return None
        return Match(found, start=len(batch), skipped=start)


def _messages(entries: Sequence[Entry]) -> list[EntryMessage]:
    return [message for entry in entries for message in entry.messages]


def _questions(messages: Sequence[EntryMessage]) -> int:
    return sum(message.type == "human" for message in messages)

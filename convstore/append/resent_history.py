"""Append the new part of a history that a client sends again, after comparing it with the active log.

The comparison reads the digests of the end of the log, as far back as the history could match. The writer then appends
the rest directly after the last entry read. If another append came first, the comparison is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.append.condition import Condition, TailMoved
from convstore.append.resent import (
    HistoryMatch,
    comparable,
    compare,
    divergence,
    leading_systems,
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
_ENTRIES_PER_TURN = 4
"""Estimated number of entries of a turn, while the tail of the log is not cached."""
_EXTRA_ENTRIES = 8
"""Number of entries that are read in addition to the estimate."""
_GROWTH = 4
_MAXIMUM_ENTRIES = 1_000
_BEGINNING = 200
"""Entries at the beginning of a long log that are compared to report where a history diverges from it."""


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """The messages of a history that are known, that are to be written, and that are ignored.

    Attributes:
        sent: The messages of the history.
        batch: Their stored forms, with only the fields that are compared.
        match: The messages that the log has.
        taken: The messages to write, by index.
        ignored: Names of all other messages, for the receipt.
        tail: Totals of the log that was compared.
    """

    sent: Sequence[SentMessage]
    batch: Sequence[EntryMessage]
    match: HistoryMatch
    taken: Mapping[int, BaseMessage]
    ignored: tuple[str, ...] = ()
    tail: Totals = _NO_LOG

    @property
    def is_known(self) -> bool:
        """Return True if the log has more of the history than leading system messages."""
        return self.match.known > leading_systems(self.batch)

    @property
    def known(self) -> dict[int, str]:
        """Return the ids of known messages in the log, by index, in order."""
        return {index: self.match.matched[index].id for index in sorted(self.match.matched)}

    def receipt(self, new: Receipt | None) -> Receipt:
        """Return the receipt of known and new messages, in the order of the history; `new` is that of the new ones."""
        places = {index: (item.id, item.ordinal) for index, item in self.match.matched.items()}
        if new:
            places |= dict(
                zip(self.taken, zip(new.message_ids, new.ordinals, strict=True), strict=True)
            )
        ids, ordinals = (tuple(places[index][part] for index in sorted(places)) for part in (0, 1))
        ends = {"first": min(ordinals, default=0), "last": max(ordinals, default=0)}
        update = {"message_ids": ids, "ordinals": ordinals, "ignored": self.ignored, **ends}
        return (new or _NOTHING).model_copy(update=update)


class _ComparedEnd(NamedTuple):
    """The end of a conversation's log, as far as it was read.

    Attributes:
        active: The active messages, in order.
        log: The log; None if there is no conversation.
        start: The number of the first entry read; 1 if the whole log was read.
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
        async def write() -> tuple[HistoryPlan, Receipt]:
            plan = await self.decide(scope, sent, trust)
            if plan.is_known and not skip:
                raise ResentHistoryError(known=plan.match.known)
            return plan, plan.receipt(await self._write(scope, plan, options))

        plan, receipt = await until_written(write, TailMoved, ConversationDeletedError)
        for index, match in plan.match.matched.items():
            if sent[index].message.type == sent[index].origin.type:
                sent[index].origin.id = match.id
        return receipt

    async def _write(
        self, scope: Scope, plan: HistoryPlan, options: AppendOptions
    ) -> Receipt | None:
        """Append the new messages of a plan, if there are any, and return their receipt."""
        if not plan.taken:
            return None
        indexes = [plan.sent[index].position for index in plan.taken]
        written = await self._writer.append(
            scope,
            list(plan.taken.values()),
            condition=Condition(plan.tail),
            options=replace(options, indexes=indexes),
        )
        return written.receipt

    async def decide(
        self, scope: Scope, sent: Sequence[SentMessage], trust: Trust, *, compares: bool = True
    ) -> HistoryPlan:
        """Compare a history with the log and return the plan; nothing is written.

        If `compares` is false, all questions count as new.

        Raises:
            HistoryDivergedError: History and log differ.
            UntrustedMessageError: Messages would be ignored, and the trust is strict.
        """
        messages = [item.message for item in sent]
        batch = await run_in_thread_if_long(
            lambda: [comparable(message, self._codec) for message in messages],
            characters=characters_in(messages),
        )
        match = HistoryMatch()
        end = _ComparedEnd()
        cached = await self._reader.find(scope)
        if cached is not None:
            async with self._reader.reading(cached):
                end = await self._end(cached, batch)
                if compares:
                    match = compare(batch, end.active, turns=end.tail.turns, exactly=trust.is_all)
                if match.differs:
                    match = await self._match_of_repeat(cached, end, batch, trust)
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
        return HistoryPlan(sent, batch, match, taken, ignored, end.tail)

    async def _end(self, cached: CachedConversation, batch: Sequence[EntryMessage]) -> _ComparedEnd:
        """Read the end of the log until it has more questions than the batch; usually one command."""
        questions = _questions(batch)
        tail = cached.tail
        each = max(tail.entries / max(tail.turns, 1), 1) if tail else _ENTRIES_PER_TURN
        limit = min(int(questions * each) + _EXTRA_ENTRIES, _MAXIMUM_ENTRIES)
        entries = await self._reader.read_your_writes(
            cached,
            lambda: self._entries(cached.conversation, limit=limit),
            last=lambda found: found[-1].number if found else 0,
        )
        check_dense(cached.conversation, entries)
        log = await self._reader.snapshot(
            cached, entries[-1].totals if entries else _NO_LOG, entries
        )
        active: list[EntryMessage] = []
        while entries:
            active[:0] = _messages(log.active.of(entries))
            start = log.active.end_before(entries[0].number)
            if start <= 1 or _questions(active) > questions:
                return _ComparedEnd(active, log, start)
            limit = min(_GROWTH * limit, _MAXIMUM_ENTRIES)
            entries = await self._entries(cached.conversation, before=start, limit=limit)
            check_dense(cached.conversation, entries, last=start - 1)
        return _ComparedEnd(active, log)

    async def _match_of_repeat(
        self,
        cached: CachedConversation,
        end: _ComparedEnd,
        batch: Sequence[EntryMessage],
        trust: Trust,
    ) -> HistoryMatch:
        """Return the match of a batch that repeats an earlier append with the same ids.

        Raises:
            HistoryDivergedError: The batch is not such a repetition; names the messages where log and batch differ.
        """
        if repeated := await self._find_repeat(cached, end, batch, trust):
            return repeated
        found = divergence(batch, end.active, exactly=trust.is_all)
        if end.log and end.start > 1:
            entries = await self._entries(
                cached.conversation, before=min(end.start, _BEGINNING + 1), limit=_BEGINNING
            )
            first = divergence(batch, _messages(end.log.active.of(entries)), exactly=trust.is_all)
            if first[0]:
                found = first
            elif not found[0]:
                found = (None, None)
        after_id, before_id = (message.id if message else None for message in found)
        raise HistoryDivergedError(after_id=after_id, before_id=before_id)

    async def _find_repeat(
        self,
        cached: CachedConversation,
        end: _ComparedEnd,
        batch: Sequence[EntryMessage],
        trust: Trust,
    ) -> HistoryMatch | None:
        """Return the match of a batch if the log has all its messages under their ids, equal and active; else None."""
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
        return HistoryMatch(found, start=len(batch), skipped=start)


def _messages(entries: Sequence[Entry]) -> list[EntryMessage]:
    return [message for entry in entries for message in entry.messages]


def _questions(messages: Sequence[EntryMessage]) -> int:
    return sum(message.type == "human" for message in messages)

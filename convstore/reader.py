"""Reads the log: the view for the next model call, messages in full, pieces of payloads.

Layer 4. A load sends the head and a range of entries together; the range begins where the last view under the same
policy began, which this process remembers or the head tells. Only when neither does it reads backwards from the end
until the budget is full. What the range does not hold, the leading system messages and the names of the newest results
before it, never changes and is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.codec import Codec, decode_message, digest_of
from convstore.entries import Entry, EntryMessage, EntrySource, PayloadRef
from convstore.exceptions import ConversationDeletedError, CorruptDocumentError
from convstore.known import Known, KnownConversations, Scope, Start
from convstore.models import History, HistoryReport
from convstore.policy import HistoryPolicy
from convstore.repository import Head, Heads, Log, StoredMessageRow
from convstore.tokens import TokenCounter, count
from convstore.view import NOTE_RESULTS, NamedResult, View, build_view, make_note, payloads_needed, shorten
from convstore.window import Row, Window, choose_window, is_finished, leading_system, rows_of

__all__ = ["PlacedMessage", "Reader"]

PlacedMessage = tuple[EntryMessage, datetime]
"""A message of the log and when it was appended."""

_DEFAULT = HistoryPolicy()
_FIRST_ENTRIES = 4
_NEWEST_ENTRIES = 64
_ENTRIES_AT_ONCE = 100


@dataclass(slots=True)
class _Load:
    """One load under way: what is read so far and what it cost."""

    scope: Scope
    policy: HistoryPolicy
    known: Known | None = None
    start: Start | None = None
    entries: list[Entry] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    system: tuple[EntryMessage, ...] = ()
    earlier_results: tuple[NamedResult, ...] = ()
    documents: int = 0
    bytes: int = 0
    round_trips: int = 0

    @property
    def is_complete(self) -> bool:
        return bool(self.entries) and self.entries[0].number == 1

    def count(self, entries: Sequence[Entry]) -> None:
        self.documents += len(entries)
        self.bytes += sum(entry.size for entry in entries)

    def take(self, entries: list[Entry]) -> None:
        """Take entries that were just read, before those that are there."""
        self.count(entries)
        self.entries = entries + self.entries
        self.rows = rows_of(self.entries)

    def results_before(self, place: int) -> tuple[NamedResult, ...]:
        """The newest results before a row, newest first."""
        earlier = (self.rows[at].message for at in range(place - 1, -1, -1))
        own = islice((_named(message) for message in earlier if message.type == "tool"), NOTE_RESULTS)
        return (*own, *self.earlier_results)[:NOTE_RESULTS]


class Reader:
    """Reads for all conversations of a store."""

    def __init__(
        self, heads: Heads, log: Log, known: KnownConversations, *, codec: Codec, counter: TokenCounter
    ) -> None:
        self._heads, self._log, self._known = heads, log, known
        self._codec, self._counter = codec, counter

    async def find(self, scope: Scope) -> Known | None:
        """The scope's conversation; None if it has none. No command while what is remembered is fresh."""
        known = self._known.get(scope)
        if known is not None and self._known.is_fresh(known):
            return known
        return self._seen(scope, await self._heads.find(dict(scope)))

    async def load(self, scope: Scope, policy: HistoryPolicy) -> History:
        """The view of a conversation; see `Conversation.load_history`."""
        load = _Load(scope, policy)
        if not await self._read_warm(load) and not await self._read_cold(load):
            return History(messages=[], report=HistoryReport(round_trips=load.round_trips))
        window = await self._choose(load)
        self._remember(load, window)
        return await self._show(load, window)

    async def messages_by_id(self, scope: Scope, ids: Sequence[str]) -> dict[str, StoredMessageRow]:
        """Those of some messages that the conversation has, by id."""
        known = await self.find(scope)
        return await self._log.messages_by_id(known.conversation, ids) if known else {}

    async def sources_by_id(
        self, scope: Scope, numbers: Sequence[int]
    ) -> dict[int, tuple[StoredMessageRow, EntrySource]]:
        """Those of some sources that the conversation has, each with the message it came with."""
        known = await self.find(scope)
        return await self._log.sources_by_id(known.conversation, numbers) if known else {}

    async def decode_whole(self, scope: Scope, messages: Sequence[EntryMessage]) -> list[BaseMessage]:
        """Messages in full, equal to what was appended.

        Raises:
            CorruptDocumentError: What is stored is not what was written.
            ConversationDeletedError: The conversation was deleted meanwhile.
        """
        refs = {message.id: message.payload for message in messages if message.payload}
        texts = dict(zip(refs, await self._payloads(scope, list(refs.values())), strict=True))
        return [self._decode(message, texts.get(message.id)) for message in messages]

    async def payload_range(self, scope: Scope, ref: PayloadRef, start: int, end: int) -> str:
        """A piece of a payload, in characters; reads only the chunks that it lies in."""
        known = await self.find(scope)
        if known is None:
            raise ConversationDeletedError("the conversation was deleted while it was read; call again")
        return await self._log.payload_range(known.conversation, ref, start, end)

    async def iterate(self, scope: Scope) -> AsyncIterator[tuple[Entry, BaseMessage]]:
        """Every message of the log in order, with its entry; reads some entries at a time."""
        known = await self.find(scope)
        start = 1
        while known is not None:
            entries = await self._log.entries(known.conversation, start=start, before=start + _ENTRIES_AT_ONCE)
            if [entry.number for entry in entries] != list(range(start, start + len(entries))):
                raise CorruptDocumentError(f"{known.conversation}:{start:012d}", "entries are missing from here on")
            for entry in entries:
                for message in await self.decode_whole(scope, entry.messages):
                    yield entry, message
            if len(entries) < _ENTRIES_AT_ONCE:
                return
            start += _ENTRIES_AT_ONCE

    async def page(self, scope: Scope, *, before: int | None, after: int | None, limit: int) -> list[PlacedMessage]:
        """Up to `limit` messages before or after an ordinal, or the last ones, in order, each with its date."""
        known = await self.find(scope)
        if known is None:
            return []
        if after is None:
            return await self._page_before(known, 2**53 if before is None else before, limit)
        return await self._page_after(known, after, limit)

    async def _page_before(self, known: Known, before: int, limit: int) -> list[PlacedMessage]:
        found: list[PlacedMessage] = []
        while len(found) < limit and before > 1:
            entries = await self._log.entries_around(known.conversation, before=before, limit=limit)
            if not entries:
                break
            found = [placed for placed in _placed(entries) if placed[0].ordinal < before] + found
            before = entries[0].first
        return found[-limit:]

    async def _page_after(self, known: Known, after: int, limit: int) -> list[PlacedMessage]:
        found: list[PlacedMessage] = []
        entries = await self._log.entries_around(known.conversation, before=after + 2, limit=1)
        start = entries[0].number if entries else 1
        while len(found) < limit:
            entries = await self._log.entries(known.conversation, start=start, before=start + limit)
            found += [placed for placed in _placed(entries) if placed[0].ordinal > after]
            if len(entries) < limit:
                break
            start += limit
        return found[:limit]

    def shorten(self, message: EntryMessage) -> BaseMessage:
        """A message as views show it once its turn is finished."""
        try:
            return shorten(self._codec, message)
        except ValueError as error:
            raise CorruptDocumentError(message.id, str(error)) from error

    async def newest_results(self, scope: Scope, *, limit: int) -> list[EntryMessage]:
        """The last tool results of a conversation, newest first."""
        known = await self.find(scope)
        if known is None:
            return []
        entries = await self._log.newest_results(known.conversation, before=2**53, limit=limit)
        return _results_in(entries)[:limit]

    async def _read_warm(self, load: _Load) -> bool:
        """Read head and range together, if it is known where the range begins."""
        known = load.known = self._known.get(load.scope)
        if known is None:
            return False
        load.start = known.starts.get(load.policy)
        load.round_trips += 1
        head, entries = await asyncio.gather(self._heads.find(dict(load.scope)), self._range(known, load.start))
        if self._seen(load.scope, head) is not known or not _is_dense(entries, load.start):
            return False
        self._take(load, known, entries)
        return True

    async def _read_cold(self, load: _Load) -> bool:
        """Read the head and then the range; False if there is no conversation."""
        load.round_trips += 2
        head = await self._heads.find(dict(load.scope))
        known = load.known = self._seen(load.scope, head)
        if head is None or known is None:
            return False
        number, first = head.start if load.policy == _DEFAULT else (0, 0)
        load.start = Start(number, first) if number > 1 else None
        if load.start is None:
            entries = await self._range(known, None)
        else:
            entries, _ = await asyncio.gather(self._range(known, load.start), self._read_before(load, known, first))
        if not _is_dense(entries, load.start):
            raise CorruptDocumentError(f"{known.conversation}:{number:012d}", "entries are missing from here on")
        self._take(load, known, entries)
        return True

    def _take(self, load: _Load, known: Known, entries: list[Entry]) -> None:
        load.documents += 1
        load.take(entries)
        if load.start is not None and not load.earlier_results:
            load.earlier_results = load.start.results
        if load.is_complete:
            known.system = tuple(row.message for row in leading_system(load.rows))
        load.system = known.system or ()
        if entries:
            known.advance(entries[-1].totals)

    async def _range(self, known: Known, start: Start | None) -> list[Entry]:
        if start is not None:
            return await self._log.entries(known.conversation, start=start.entry)
        return await self._log.newest_entries(known.conversation, before=None, limit=_NEWEST_ENTRIES)

    async def _read_before(self, load: _Load, known: Known, first: int) -> None:
        """What a view needs of the log before an ordinal: leading system messages and names of results."""
        _, results = await asyncio.gather(
            self._read_system(load, known),
            self._log.newest_results(known.conversation, before=first, limit=NOTE_RESULTS),
        )
        load.count(results)
        load.earlier_results = tuple(_named(message) for message in _results_in(results))[:NOTE_RESULTS]

    async def _read_system(self, load: _Load, known: Known) -> None:
        if known.system is not None:
            return
        before = _FIRST_ENTRIES + 1
        while True:
            entries = await self._log.newest_entries(known.conversation, before=before, limit=before - 1)
            load.count(entries)
            rows = rows_of(entries)
            known.system = tuple(row.message for row in leading_system(rows))
            if len(known.system) < len(rows) or len(entries) < before - 1:
                return
            before *= 2

    async def _choose(self, load: _Load) -> Window:
        """Where the view begins; reads further back until that can be told."""
        known, limit = load.known, _NEWEST_ENTRIES
        assert known is not None  # noqa: S101 - something was read
        while True:
            if not load.is_complete and load.rows and load.start is None:
                load.round_trips += 1
                await self._read_before(load, known, load.rows[0].message.ordinal)
                load.system = known.system or ()
            window = choose_window(
                load.rows,
                load.policy,
                fixed_tokens=sum(message.tokens for message in load.system),
                note_tokens=cache(lambda place: count(self._counter, self._note(load, place))),
                anchored=load.start is not None,
            )
            if window is not None:
                return window
            load.round_trips += 1
            limit *= 2
            load.take(await self._log.newest_entries(known.conversation, before=load.entries[0].number, limit=limit))
            load.start = None
            if load.is_complete:
                known.system = load.system = tuple(row.message for row in leading_system(load.rows))

    def _note(self, load: _Load, place: int, left_out: int = 99_999) -> HumanMessage:
        first = load.rows[place].message.ordinal
        return make_note(left_out, load.results_before(place), first=first)

    def _remember(self, load: _Load, window: Window) -> None:
        """Keep where the next view begins, and what lies before it."""
        if not window.lasting or window.start >= len(load.rows) or load.known is None:
            return
        number = load.rows[window.start].entry
        begin = next(place for place, row in enumerate(load.rows) if row.entry == number)
        first = load.rows[begin].message.ordinal
        load.known.remember_start(load.policy, Start(number, first, load.results_before(begin)))

    async def _show(self, load: _Load, window: Window) -> History:
        rows = load.rows[window.start :]
        note = self._note(load, window.start, window.left_out_turns) if window.left_out_turns else None
        payloads = await self._read_payloads(load, payloads_needed(rows, load.policy))
        try:
            view = build_view(
                rows,
                load.policy,
                codec=self._codec,
                counter=self._counter,
                system=load.system,
                note=note,
                payloads=payloads,
            )
        except ValueError as error:
            assert load.known is not None  # noqa: S101 - something was read
            raise CorruptDocumentError(load.known.conversation, str(error)) from error
        if load.known and is_finished(load.rows):
            self._known.drop_payloads(load.known)
        return History(messages=view.messages, tokens=view.tokens, report=_report(load, window, view))

    async def _read_payloads(self, load: _Load, needed: Sequence[tuple[str, PayloadRef]]) -> dict[str, str]:
        own = load.known.payloads if load.known else {}
        missing = {id_: ref for id_, ref in needed if id_ not in own}
        if missing:
            load.round_trips += 1
            load.documents += sum(len(ref.ends) for ref in missing.values())
            load.bytes += sum(ref.size for ref in missing.values())
        texts = await self._payloads(load.scope, list(missing.values()))
        return dict(own) | dict(zip(missing, texts, strict=True))

    async def _payloads(self, scope: Scope, refs: Sequence[PayloadRef]) -> list[str]:
        if not refs:
            return []
        known = self._known.get(scope)
        if known is None:
            raise ConversationDeletedError("the conversation was deleted while it was read; call again")
        return await self._log.payloads(known.conversation, refs)

    def _decode(self, message: EntryMessage, payload: str | None) -> BaseMessage:
        ref = message.payload
        is_whole = message.digest == digest_of(message.body) if ref is None else ref.digest == digest_of(payload or "")
        if not is_whole:
            raise CorruptDocumentError(message.id, "the message is not what was written")
        try:
            return decode_message(self._codec, message.body, fetch=lambda start, end: (payload or "")[start:end])
        except ValueError as error:
            raise CorruptDocumentError(message.id, str(error)) from error

    def _seen(self, scope: Scope, head: Head | None) -> Known | None:
        """Take note of a head that was just read."""
        if head is None:
            self._known.forget(scope)
            return None
        return self._known.add(scope, head.conversation)


def _is_dense(entries: Sequence[Entry], start: Start | None) -> bool:
    """Whether entries follow each other without a hole, from the remembered start on."""
    if start is not None and (not entries or entries[0].number != start.entry):
        return False
    numbers = [entry.number for entry in entries]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def _placed(entries: Sequence[Entry]) -> list[PlacedMessage]:
    return [(message, entry.at) for entry in entries for message in entry.messages]


def _named(message: EntryMessage) -> NamedResult:
    return message.id, message.sources


def _results_in(entries: Sequence[Entry]) -> list[EntryMessage]:
    """The tool results of entries that come newest first, newest first."""
    return [message for entry in entries for message in reversed(entry.messages) if message.type == "tool"]


def _report(load: _Load, window: Window, view: View) -> HistoryReport:
    budget = load.policy.max_tokens
    return HistoryReport(
        stubbed=view.stubbed,
        placeholders=view.placeholders,
        left_out_turns=window.left_out_turns,
        missing_results=view.missing_results,
        orphans=view.orphans,
        moved=view.moved,
        over_budget=budget is not None and view.tokens > budget,
        tokens_before=load.entries[-1].totals.tokens if load.entries else 0,
        tokens_after=view.tokens,
        documents=load.documents,
        bytes=load.bytes,
        round_trips=load.round_trips,
    )

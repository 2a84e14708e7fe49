"""Loads the view of a conversation for the next model call.

Floor 4. `conversation` calls it. The log is read from its end back to the start of the last view under the same policy.
That start is cached in this process or stored in the head; head and entries are read concurrently. If it is unknown,
reading continues until the budget is full. Leading system messages and names of earlier results never change and are
read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.exceptions import ConversationDeletedError, CorruptDocumentError
from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.log.rows import Row, leading_system, rows_of, weigh
from convstore.log.selection import named_in
from convstore.log.summary import NamedResult, SummaryRecord, fits
from convstore.messages.tokens import NamedCounter, count
from convstore.messages.values import Codec
from convstore.mongo.heads import Head, Heads
from convstore.mongo.keys import entry_id
from convstore.mongo.log import Log
from convstore.runtime.cache import UNKNOWN_START, CachedConversation, ConversationCache, Start
from convstore.runtime.log_reader import LogReader, check_dense
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.models import History, HistoryReport
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope
from convstore.view.budget import Window, choose_window
from convstore.view.payloads import ShownPayloads
from convstore.view.render import NOTE_RESULTS, View, build_view, make_note, payloads_needed
from convstore.view.sizes import shown_sizes

__all__ = ["Loader"]

_DEFAULT = HistoryPolicy()
_TRIES = 3
_FIRST_ENTRIES = 4
_MIN_ENTRIES, _MAX_ENTRIES = 16, 1_000


@dataclass(slots=True)
class _Load:
    """State of one load: the rows read so far and the cost of reading them."""

    policy: HistoryPolicy
    cached: CachedConversation
    head: Head
    start: Start = UNKNOWN_START
    summary: SummaryRecord | None = None
    summary_messages: Sequence[BaseMessage] = ()
    rewinds: Rewinds = NO_REWINDS
    end: list[Entry] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    earlier_results: tuple[NamedResult, ...] | None = None
    system: tuple[EntryMessage, ...] | None = None
    documents: int = 0
    bytes: int = 0
    round_trips: int = 0

    @property
    def is_complete(self) -> bool:
        """Return True if every entry that is not summarised was read."""
        return not self.entries or self.before <= (self.summary.entry if self.summary else 1)

    @property
    def before(self) -> int:
        """Return the number before which unread entries may hold active messages."""
        return self.rewinds.active_before(self.entries[0].number)

    @property
    def reaches_start(self) -> bool:
        """Return True if the entries read so far reach back to the start of an earlier view."""
        return bool(self.start.entry and self.entries and self.entries[0].number <= self.start.entry)

    @property
    def unsummarized(self) -> int:
        """Return the tokens after the summary or the leading system messages, weighed as in a compaction plan."""
        system = () if self.summary else self.system or ()
        before = self.rows[0].before if self.rows else 0
        return max(0, before + sum(weigh(self.rows)) - sum(message.view_tokens for message in system))

    def count(self, entries: Sequence[Entry]) -> None:
        """Add documents to the report."""
        self.documents += len(entries)
        self.bytes += sum(entry.size for entry in entries)

    def prepend(self, entries: list[Entry]) -> None:
        """Prepend entries that directly precede those already read.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        last = self.before - 1 if self.entries else entries[-1].number if entries else self.start.entry
        check_dense(self.cached, entries, last=last)
        self.entries = entries + self.entries
        if entries and self.end and entries[-1].number + 1 == self.end[0].number:
            self.end = entries + self.end
        self.rows = rows_of(self.entries, self.rewinds, self.summary)
        self.earlier_results = None
        if self.entries and self.is_complete and not self.summary:
            self.set_system(self.rows)

    def set_system(self, rows: Sequence[Row]) -> None:
        """Set the leading system messages; cache them if no append or rewind can add to them."""
        self.system = tuple(row.message for row in leading_system(rows))
        if len(self.system) < len(rows) and self.cached.rewinds.entry == self.rewinds.entry:
            self.cached.system = self.system

    def named(self, results: Sequence[Entry]) -> tuple[NamedResult, ...]:
        """Return the names of the newest results, given newest first; the summary names the results it covers."""
        last = self.summary.last if self.summary else 0
        found = (message for message in named_in(results, self.rewinds) if message.ordinal > last)
        return tuple(message.name for message in found)[:NOTE_RESULTS]

    def results_before(self, index: int) -> tuple[NamedResult, ...]:
        """Return the newest results before a row, newest first."""
        earlier = (self.rows[at].message for at in range(index - 1, -1, -1))
        own = islice((message.name for message in earlier if message.is_named), NOTE_RESULTS)
        return (*own, *(self.earlier_results or ()))[:NOTE_RESULTS]

    def note(self, index: int, left_out: int = 99_999) -> HumanMessage:
        """Build the note of a view that begins with a row."""
        return make_note(left_out, self.results_before(index), first=self.rows[index].message.ordinal)

    def notes(self, window: Window) -> list[BaseMessage]:
        """Build the messages that replace everything before the view: summary and note."""
        note = [self.note(window.start, window.left_out_turns)] if window.left_out_turns else []
        return [*self.summary_messages, *note]


class Loader:
    """Loads views for all conversations of a store."""

    def __init__(
        self,
        reader: LogReader,
        heads: Heads,
        log: Log,
        conversations: ConversationCache,
        *,
        codec: Codec,
        counter: NamedCounter,
    ) -> None:
        self._reader, self._heads, self._log, self._cache = reader, heads, log, conversations
        self._codec, self._counter = codec, counter
        self._payloads = ShownPayloads(reader, conversations)

    async def load(self, scope: Scope, policy: HistoryPolicy) -> History:
        """Return the view of a conversation; see `Conversation.load_history`."""
        for _ in range(_TRIES):
            # The conversation was deleted during the load: retry with the scope's new conversation, or none.
            with suppress(ConversationDeletedError):
                return await self._load(scope, policy)
        return await self._load(scope, policy)

    async def _load(self, scope: Scope, policy: HistoryPolicy) -> History:
        load = await self._begin_warm(scope, policy) or await self._begin_cold(scope, policy)
        if load is None:
            return History(messages=[], report=HistoryReport(round_trips=1))
        async with self._reader.reading(load.cached):
            window = await self._choose(load)
            await self._remember(load, window)
            history = await self._show(load, window)
        self._cache_end(load)
        return history

    async def _begin_warm(self, scope: Scope, policy: HistoryPolicy) -> _Load | None:
        """Read head and entries concurrently if the conversation is cached; return None if the cache is stale."""
        cached = self._cache.get(scope)
        if cached is None:
            return None
        start, tail = cached.starts.get(_start_key(policy), UNKNOWN_START), cached.tail or Totals()
        limit = _entries_needed(start, tail, policy)
        cached_end = self._cache.ends.drop(cached) or ()  # cached again after a successful load
        if not _is_sufficient(cached_end, start, limit):
            cached_end = ()
        first = cached_end[-1].number if cached_end else start.entry

        async def read() -> tuple[Head | None, list[Entry]]:
            reading = self._log.newest_entries(cached.conversation, start=first, limit=limit)
            return await asyncio.gather(self._heads.find(dict(scope)), reading)

        def last(found: tuple[Head | None, list[Entry]]) -> int:
            head, entries = found
            is_replaced = head is None or head.conversation != cached.conversation
            return cached.entries if is_replaced else entries[-1].number if entries else 0

        head, entries = await self._reader.read_your_writes(cached, read, last=last)
        if head is None or self._reader.seen(scope, head) is not cached:
            return None
        is_joined = bool(cached_end) and _is_continued_by(cached_end, entries)
        if (cached_end and not is_joined and len(entries) < limit) or _differs(tail, entries):
            self._cache.forget(cached)  # the log was restored from a backup
            return await self._begin_with(head, self._cache.add(scope, head.conversation), policy, limit)
        load = _Load(policy, cached, head, start, documents=1, round_trips=1)
        load.count(entries)
        async with self._reader.reading(cached):
            cached_end = cached_end if is_joined else ()
            await self._add_first_entries(load, entries, cached_end)
        if load.reaches_start and load.entries[0].number == load.start.entry:
            load.earlier_results = load.start.results
        return load

    async def _begin_cold(self, scope: Scope, policy: HistoryPolicy) -> _Load | None:
        """Read the head and then entries; return None if there is no conversation."""
        head = await self._heads.find(dict(scope))
        cached = self._reader.seen(scope, head)
        return None if head is None or cached is None else await self._begin_with(head, cached, policy)

    async def _begin_with(
        self, head: Head, cached: CachedConversation, policy: HistoryPolicy, minimum: int = 0
    ) -> _Load:
        """Read at least `minimum` entries of a conversation of which only the head is known."""
        start = Start(*head.start)
        if _start_key(policy) != _DEFAULT or start.counter != self._counter.name:
            start = UNKNOWN_START
        load = _Load(policy, cached, head, start, documents=1, round_trips=2)
        limit = max(minimum, _entries_needed(start, head.totals, policy))
        async with self._reader.reading(cached):
            reading, results = self._read(load, limit), None
            if start.entry > (head.summary.entry if head.summary else 1) and not start.rewind_entry:
                entries, results = await asyncio.gather(reading, self._read_before(load, start.first))
            elif head.summary:
                entries, _ = await asyncio.gather(reading, self._read_system(load))
            else:
                entries = await reading
            await self._add_first_entries(load, entries)
            if results is not None and load.reaches_start and load.entries[0].number == start.entry:
                load.earlier_results = load.named(results)
        return load

    async def _add_first_entries(self, load: _Load, entries: list[Entry], cached_end: tuple[Entry, ...] = ()) -> None:
        """Apply rewinds and the summary to the entries read first; they overlap the cached end by one entry."""
        summary = load.head.summary
        if summary and (not entries or summary.last > entries[-1].totals.messages):
            # The head is newer than the entries: it was read later, or the log was restored from an older backup.
            load.round_trips += 1
            limit = len(cached_end) + len(entries) + _MIN_ENTRIES
            entries, cached_end = await self._log.newest_entries(load.cached.conversation, limit=limit), ()
            load.count(entries)
        if entries:
            await self._read_rewinds(load, entries)
            if summary and summary.last <= entries[-1].totals.messages and fits(summary, load.rewinds):
                load.summary = summary
                load.summary_messages = self._reader.standing(summary, talk=load.policy.view == "conversation")
            if (load.start.rewind_entry, load.start.revision) != (load.rewinds.entry, load.head.revision):
                load.start = UNKNOWN_START
        load.end = [*cached_end, *await self._reader.counted(entries[1:] if cached_end else entries)]
        counted = [entry for entry in load.end if entry.number >= load.start.entry]
        if counted:
            # Recounted with the store's counter, so that every process computes the same start.
            totals = await self._reader.recount_tail(load.cached, entries[-1].totals)
            counted[-1] = replace(counted[-1], totals=totals)
        load.prepend(counted)

    async def _read_rewinds(self, load: _Load, entries: Sequence[Entry]) -> None:
        """Read the rewound ranges as of the last of some entries."""
        self._cache.confirm(load.cached, entries[-1].totals)
        if entries[-1].totals.rewind_entry not in (0, load.cached.rewinds.entry):
            load.round_trips += 1
        load.rewinds = await self._reader.rewinds(load.cached, entries[-1].totals)
        load.system = load.cached.system if load.cached.rewinds.entry == load.rewinds.entry else None

    async def _read(self, load: _Load, limit: int, before: int | None = None) -> list[Entry]:
        """Read the last entries, or the last before a number, but none before the known start of the view."""
        minimum = max(load.start.entry, load.head.summary.entry if load.head.summary else 0)
        start = minimum if before is None or before > minimum else 0
        entries = await self._log.newest_entries(load.cached.conversation, start=start, before=before, limit=limit)
        load.count(entries)
        return entries

    async def _read_before(self, load: _Load, first: int) -> list[Entry]:
        """Read the leading system messages and return the newest results before an ordinal."""
        conversation = load.cached.conversation
        _, results = await asyncio.gather(
            self._read_system(load),
            self._log.newest_results(conversation, load.rewinds, before=first, limit=NOTE_RESULTS),
        )
        load.count(results)
        return results

    async def _read_system(self, load: _Load) -> None:
        """Read the log's leading system messages, which are nearly always in its first entries."""
        cached, start, until = load.cached, load.rewinds.active_after(1), _FIRST_ENTRIES
        while load.system is None:
            entries = await self._reader.entries(cached, start=start, before=start + until)
            load.count(entries)
            load.round_trips += until > _FIRST_ENTRIES
            rows = rows_of(await self._reader.counted(entries), load.rewinds)
            if len(leading_system(rows)) < len(rows) or len(entries) < until:
                load.set_system(rows)
            until *= 4

    async def _choose(self, load: _Load) -> Window:
        """Choose where the view begins, reading further back until it is certain."""
        while True:
            window = self._window(load)
            if window is not None and load.is_complete and load.entries and load.system is None:
                load.round_trips += 1
                await self._read_system(load)
                continue
            if window is not None and (load.is_complete or load.earlier_results is not None):
                return window
            load.round_trips += 1
            if window is not None:
                # Read these only once the start is certain; they make the note slightly larger.
                load.earlier_results = load.named(await self._read_before(load, load.rows[0].message.ordinal))
                continue
            before = load.before
            entries = await self._read(load, min(_MAX_ENTRIES, 4 * len(load.entries)), before)
            if not entries:
                raise CorruptDocumentError(entry_id(load.cached.conversation, before - 1), "the entry is missing")
            load.prepend(await self._reader.counted(entries))

    def _window(self, load: _Load) -> Window | None:
        """Choose where the view begins; return None if more entries must be read first."""
        summary = load.summary
        if not load.is_complete and (not load.rows or (summary and summary.counter != self._counter.name)):
            return None  # positions after a summary are unknown if another counter measured the summarised messages
        if not load.rows:
            return Window(0, 0, anchor=None)
        return choose_window(
            load.rows,
            load.policy,
            fixed_tokens=self._fixed_tokens(load),
            note_tokens=cache(lambda index: count(self._counter, load.note(index))),
            anchored=load.reaches_start,
            summarized=load.summary is not None,
            sizes=shown_sizes(load.rows, load.policy, codec=self._codec, counter=self._counter),
        )

    def _fixed_tokens(self, load: _Load) -> int:
        """Return the size of the messages at the beginning of every view: leading system messages and the summary."""
        summary_tokens = sum(count(self._counter, message) for message in load.summary_messages)
        return summary_tokens + sum(message.tokens for message in load.system or ())

    async def _remember(self, load: _Load, window: Window) -> None:
        """Cache the start of the next view; store it in the head as well if that would have saved a round trip."""
        if window.anchor is None or window.anchor >= len(load.rows):
            return
        number = load.rows[window.anchor].entry
        begin = next(index for index, row in enumerate(load.rows) if row.entry == number)
        first, results = load.rows[begin].message.ordinal, load.results_before(begin)
        start = Start(load.rewinds.entry, load.head.revision, number, first, self._counter.name, results)
        policy = _start_key(load.policy)
        load.cached.remember_start(policy, start)
        if policy == _DEFAULT and load.round_trips > 2 and start.entry > 1:
            await self._heads.hint(dict(load.cached.scope), load.cached.conversation, start=start.position)
            load.round_trips += 1

    def _cache_end(self, load: _Load) -> None:
        """Cache the end of the log, back to the earliest start of a view under any policy."""
        starts = [start.entry for start in load.cached.starts.values() if start.entry]
        first = min([*starts, *(entry.number for entry in load.entries[:1])], default=0)
        self._cache.keep_end(load.cached, [entry for entry in load.end if entry.number >= first])

    async def _show(self, load: _Load, window: Window) -> History:
        rows = load.rows[window.start :]
        payloads, read = await self._payloads.read(load.cached, rows, payloads_needed(rows, load.policy))
        if read:
            load.round_trips += 1
            load.documents += sum(len(ref.ends) for ref in read)
            load.bytes += sum(ref.size for ref in read)
        build = partial(
            build_view,
            rows,
            load.policy,
            codec=self._codec,
            counter=self._counter,
            system=load.system or (),
            notes=load.notes(window),
            payloads=payloads,
            room=window.room,
        )
        view = await run_in_thread_if_long(build, characters=characters_of([row.message for row in rows], payloads))
        if window.without and not view.is_fitting and window.without.start > window.start:
            return await self._show(load, window.without)
        summary = load.summary.text if load.summary else None
        return History(messages=view.messages, summary=summary, tokens=view.tokens, report=_report(load, window, view))


def _is_sufficient(cached_end: Sequence[Entry], start: Start, limit: int) -> bool:
    """Return True if the cached end of a log holds as much as a load would read."""
    if not cached_end or start.entry:
        return bool(cached_end) and cached_end[0].number <= start.entry
    return cached_end[0].number == 1 or len(cached_end) >= limit


def _is_continued_by(cached_end: Sequence[Entry], entries: Sequence[Entry]) -> bool:
    """Return True if the entries just read begin with the last cached one."""
    pair = [(one.totals, [message.digest for message in one.messages]) for one in (*cached_end[-1:], *entries[:1])]
    return len(pair) == 2 and pair[0] == pair[1]


def _differs(tail: Totals, entries: Sequence[Entry]) -> bool:
    """Return True if the log now has another entry at the number of the cached tail."""
    return any(entry.number == tail.entries and entry.totals.link != tail.link for entry in entries)


def _start_key(policy: HistoryPolicy) -> HistoryPolicy:
    """Return the part of a policy that decides where views begin; the provider makes no difference."""
    return replace(policy, provider=None, compact="explicit")


def _entries_needed(start: Start, totals: Totals, policy: HistoryPolicy) -> int:
    """Estimate how many entries to read first: those after a known start, or enough to fill the limits."""
    active = totals.entries * totals.active // totals.messages if totals.messages else 0
    if start.entry:
        needed = totals.entries - start.entry
    else:
        limits = ((policy.max_tokens, totals.view_tokens), (policy.max_turns, totals.turns))
        needed = min([active, *(2 * limit * active // total for limit, total in limits if limit and total)])
    return min(max(0, needed) + _MIN_ENTRIES, _MAX_ENTRIES)


def _report(load: _Load, window: Window, view: View) -> HistoryReport:
    budget = load.policy.max_tokens
    return HistoryReport(
        stubbed=view.stubbed,
        placeholders=view.placeholders,
        shortened=view.shortened,
        left_out_turns=window.left_out_turns,
        missing_results=view.missing_results,
        orphans=view.orphans,
        late_results=view.late_results,
        moved=view.moved,
        over_budget=budget is not None and view.tokens > budget,
        tokens_before=load.entries[-1].totals.tokens if load.entries else 0,
        tokens_after=view.tokens,
        tokens_unsummarized=load.unsummarized,
        documents=load.documents,
        bytes=load.bytes,
        round_trips=load.round_trips,
    )

"""Loads the view of a conversation for the next model call.

Floor 4. `conversation` calls it. One command reads the state and the entries, from the end of the log back to the start
of the last view under the same policy. That start is cached in this process, or stored in the head or the state. If it
is unknown, reading continues until the budget is full. Leading system messages and names of earlier results never
change and are read once.
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
from convstore.log.state import NO_START, State, ViewStart, system_of
from convstore.log.summary import NamedResult, SummaryRecord, fits
from convstore.messages.tokens import NamedCounter, count
from convstore.messages.values import Codec
from convstore.mongo.heads import Head
from convstore.mongo.keys import entry_id
from convstore.mongo.log import Log
from convstore.mongo.states import States
from convstore.runtime.cache import CachedConversation, ConversationCache
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import LogReader, check_dense
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.models import History, HistoryReport
from convstore.values.policy import HistoryPolicy, start_key
from convstore.values.scope import Scope
from convstore.view.budget import Window, choose_window
from convstore.view.payloads import ShownPayloads
from convstore.view.render import NOTE_RESULTS, View, build_view, make_note, payloads_needed
from convstore.view.sizes import shown_sizes

__all__ = ["Loader"]

_TRIES = 3
_FIRST_ENTRIES = 4
_MIN_ENTRIES, _MAX_ENTRIES = 16, 1_000


@dataclass(slots=True)
class _Load:
    """State of one load: the rows read so far and the cost of reading them.

    `searches` counts the reads that a start of the view in the state would have saved.
    """

    policy: HistoryPolicy
    cached: CachedConversation
    state: State
    start: ViewStart = NO_START
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
    searches: int = 0

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
        ends: LogEndReader,
        log: Log,
        states: States,
        conversations: ConversationCache,
        *,
        codec: Codec,
        counter: NamedCounter,
    ) -> None:
        self._reader, self._ends, self._cache = reader, ends, conversations
        self._log, self._states = log, states
        self._codec, self._counter = codec, counter
        self._payloads = ShownPayloads(reader, conversations)

    async def load(self, scope: Scope, policy: HistoryPolicy) -> History:
        """Return the view of a conversation; see `Conversation.load_history`."""
        for _ in range(_TRIES):
            # The conversation was deleted or restored from a backup during the load: retry with what the scope has now.
            with suppress(ConversationDeletedError):
                return await self._load(scope, policy)
        return await self._load(scope, policy)

    async def _load(self, scope: Scope, policy: HistoryPolicy) -> History:
        cached, head = await self._ends.find(scope)
        if cached is None:
            return History(messages=[], report=HistoryReport(round_trips=1))
        async with self._reader.reading(cached):
            load = await self._begin(cached, head, policy)
            window = await self._choose(load)
            await self._remember(load, window)
            history = await self._show(load, window)
        self._cache_end(load)
        return history

    async def _begin(self, cached: CachedConversation, head: Head | None, policy: HistoryPolicy) -> _Load:
        """Read the state and the entries since the last known start of the view; of cached entries, only the last."""
        start = self._known_start(cached, head, policy)
        tail = cached.tail or (head.totals if head else Totals())
        limit = _entries_needed(start, tail, policy)
        held = self._cache.ends.drop(cached) or ()  # cached again after a successful load
        if not _is_sufficient(held, start, limit):
            held = ()
        first = held[-1].number if held else start.entry
        end = await self._ends.read(cached, start=first, limit=limit, has_starts=not start.entry)
        if first and not end.entries and not held:  # the start was stored before a backup was restored
            start, end = NO_START, await self._ends.read(cached, limit=limit)
        is_joined = bool(held) and _is_continued_by(held, end.entries)
        is_replaced = bool(held) and not is_joined and len(end.entries) < limit
        if is_replaced or _differs(cached.tail, end.entries):
            self._cache.forget(cached)  # the log was restored from a backup
            raise ConversationDeletedError("the log is another one than the cached one; call again")
        load = _Load(policy, cached, end.state, start)
        load.documents, load.bytes = end.documents + bool(head), sum(entry.size for entry in end.entries)
        load.round_trips = end.round_trips + bool(head)
        await self._add_end(load, end.entries, held if is_joined else ())
        return load

    def _known_start(self, cached: CachedConversation, head: Head | None, policy: HistoryPolicy) -> ViewStart:
        key = start_key(policy)
        if (start := cached.starts.get(key)) is None and head is not None:
            start = head.start
        return start if start and (start.policy, start.counter) == (key, self._counter.name) else NO_START

    async def _add_end(self, load: _Load, entries: Sequence[Entry], held: Sequence[Entry]) -> None:
        """Apply rewinds and the summary to the last entries; they overlap the cached ones by one entry."""
        if not entries:
            load.system = ()
            return
        cached, totals = load.cached, entries[-1].totals
        self._cache.confirm(cached, totals)
        load.round_trips += totals.rewind_entry not in (0, cached.rewinds.entry)
        load.rewinds = await self._reader.rewinds(cached, totals)
        summary = load.state.summary
        if summary and summary.last <= totals.messages and fits(summary, load.rewinds):
            load.summary = summary
            load.summary_messages = self._reader.summary_messages(summary, talk=load.policy.view == "conversation")
        self._use_start(load)
        known = (one for one in (cached.system, load.state.system) if one)
        cached.system = next((one for one in known if one.is_valid(load.rewinds, self._counter.name)), None)
        load.system = cached.system.messages if cached.system else None
        load.end = [*held, *await self._reader.counted(entries[1:] if held else entries)]
        used = [entry for entry in load.end if entry.number >= load.start.entry]
        # Recounted with the store's counter, so that every process computes the same start.
        used[-1] = replace(used[-1], totals=await self._reader.recount_tail(cached, totals))
        self._prepend(load, used)
        if load.reaches_start and load.entries[0].number == load.start.entry:
            load.earlier_results = load.start.results

    def _prepend(self, load: _Load, entries: list[Entry]) -> None:
        load.prepend(entries)
        if load.is_complete and not load.summary:
            load.system = tuple(row.message for row in leading_system(load.rows))
            load.cached.system = system_of(load.rows, load.rewinds, self._counter.name)

    def _use_start(self, load: _Load) -> None:
        """Keep the known start of the view, or take that of the state, if it is still valid."""
        wanted = (load.rewinds.entry, load.state.revision, self._counter.name)
        starts = (load.start, load.state.start(start_key(load.policy)))
        valid = (one for one in starts if one.entry and (one.rewind_entry, one.revision, one.counter) == wanted)
        load.start = next(valid, NO_START)

    async def _read(self, load: _Load, limit: int, before: int) -> list[Entry]:
        """Read the last entries before a number, but none before the known start of the view."""
        minimum = max(load.start.entry, load.summary.entry if load.summary else 0)
        start = minimum if before > minimum else 0
        entries = await self._log.entries_before(load.cached.conversation, start=start, before=before, limit=limit)
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
                load.system = tuple(row.message for row in leading_system(rows))
                cached.system = system_of(rows, load.rewinds, self._counter.name)
            until *= 4

    async def _choose(self, load: _Load) -> Window:
        """Choose where the view begins, reading further back until it is certain."""
        while True:
            window = self._window(load)
            has_results = load.is_complete or load.earlier_results is not None
            if window is not None and has_results and load.system is not None:
                return window
            load.round_trips += 1
            load.searches += 1
            if window is not None and has_results:
                await self._read_system(load)
                continue
            if window is not None:
                # Read these only once the start is certain; they make the note slightly larger.
                load.earlier_results = load.named(await self._read_before(load, load.rows[0].message.ordinal))
                continue
            before = load.before
            entries = await self._read(load, min(_MAX_ENTRIES, 4 * len(load.entries)), before)
            if not entries:
                raise CorruptDocumentError(entry_id(load.cached.conversation, before - 1), "the entry is missing")
            self._prepend(load, await self._reader.counted(entries))

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
        """Cache the start of the next view; store it in the state as well if that would have saved a round trip."""
        if window.anchor is None or window.anchor >= len(load.rows):
            return
        number = load.rows[window.anchor].entry
        begin = next(index for index, row in enumerate(load.rows) if row.entry == number)
        start = ViewStart(
            load.rewinds.entry,
            load.state.revision,
            number,
            load.rows[begin].message.ordinal,
            self._counter.name,
            start_key(load.policy),
            load.results_before(begin),
        )
        load.cached.remember_start(start)
        system = load.cached.system if load.state.system is None else None
        if number > 1 and (load.searches or system):
            await self._states.remember(load.state, start, system)
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


def _is_sufficient(cached_end: Sequence[Entry], start: ViewStart, limit: int) -> bool:
    """Return True if the cached end of a log holds as much as a load would read."""
    if not cached_end or start.entry:
        return bool(cached_end) and cached_end[0].number <= start.entry
    return cached_end[0].number == 1 or len(cached_end) >= limit


def _is_continued_by(cached_end: Sequence[Entry], entries: Sequence[Entry]) -> bool:
    """Return True if the entries just read begin with the last cached one."""
    pair = [(one.totals, [message.digest for message in one.messages]) for one in (*cached_end[-1:], *entries[:1])]
    return len(pair) == 2 and pair[0] == pair[1]


def _differs(tail: Totals | None, entries: Sequence[Entry]) -> bool:
    """Return True if the log now has another entry at the number of the cached tail."""
    return any(tail and entry.number == tail.entries and entry.totals.link != tail.link for entry in entries)


def _entries_needed(start: ViewStart, totals: Totals, policy: HistoryPolicy) -> int:
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

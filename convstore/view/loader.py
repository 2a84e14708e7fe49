"""Loads the view of a conversation for the next model call.

One command reads the state and the entries, from the end of the log back to the start of the last view under the same
policy. That start is cached in this process, or stored in the state. If it is unknown, reading continues
until the budget is full. Leading system messages and names of earlier results never change and are read once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from convstore.exceptions import ConversationDeletedError, CorruptDocumentError
from convstore.log.entry import Entry, Totals
from convstore.log.rows import leading_system, rows_of
from convstore.log.state import NO_START, ViewStart, system_of
from convstore.log.summary import fits
from convstore.messages.tokens import NamedCounter, count
from convstore.messages.values import Codec
from convstore.mongo.keys import entry_id
from convstore.mongo.log import Log
from convstore.mongo.state_documents import starts_in
from convstore.mongo.states import States
from convstore.runtime.cache import CachedConversation, ConversationCache, LoadedEnd
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.models import History, HistoryReport
from convstore.values.policy import HistoryPolicy, start_key
from convstore.values.scope import Scope
from convstore.view.budget import Window
from convstore.view.load import Load, differs, entries_needed, is_continued_by, is_sufficient, newest_start
from convstore.view.payloads import ShownPayloads
from convstore.view.render import NOTE_RESULTS, View, payloads_needed
from convstore.view.view import MISSING, Stamper, stamper, view_of, window_of

_TRIES = 3
_FIRST_ENTRIES = 4
_MAX_ENTRIES = 1_000
_MIN_SHOWN = 100


class Loader:
    """Loads views for all conversations of a store."""

    _keeps_payloads = True

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
        self._missing_tokens = cache(partial(count, counter, MISSING))

    async def load(self, scope: Scope, policy: HistoryPolicy) -> History:
        """Return the view of a conversation; see `Conversation.load_history`."""
        for _ in range(_TRIES):
            # The conversation was deleted or restored from a backup during the load: retry with what the scope has now.
            with suppress(ConversationDeletedError):
                return await self._load(scope, policy)
        return await self._load(scope, policy)

    async def _load(self, scope: Scope, policy: HistoryPolicy) -> History:
        cached, found = await self._ends.find(scope)
        if cached is None:
            history = History(messages=[], report=HistoryReport(round_trips=1))
            return history.sealed(stamper("", policy, counter=self._counter.name))
        async with self._reader.reading(cached):
            load = await self._begin(cached, found, policy)
            window = await self._choose(load)
            await self._remember(load, window)
            window, view = await self._show(load, window)
        self._cache_end(load)
        return self._history(load, window, view)

    async def _begin(self, cached: CachedConversation, found: Totals | None, policy: HistoryPolicy) -> Load:
        """Read the state and the entries since the last known start of the view; of cached entries, only the last."""
        start = self._known_start(cached, policy)
        tail = cached.tail or found or Totals()
        limit = entries_needed(start, tail, policy)
        held = self._cache.ends.drop(cached) or LoadedEnd()  # cached again after a successful load
        if not is_sufficient(held.entries, start, limit):
            held = LoadedEnd()
        has_hints = not start.entry or cached.system is None
        last = held.entries[-1] if held.entries else None
        skip = None if last or not has_hints else partial(self._first_needed, start, policy)
        first = last.number if last else start.entry
        end = await self._ends.read(
            cached, start=first, limit=limit, has_hints=has_hints, first_needed=skip, known=last
        )
        if first and not end.entries and not held.entries:  # the start was stored before a backup was restored
            start, end = NO_START, await self._ends.read(cached, limit=limit)
        is_joined = bool(held.entries) and is_continued_by(held.entries, end.entries)
        is_replaced = bool(held.entries) and not is_joined and len(end.entries) < limit
        if is_replaced or differs(cached.tail, end.entries):
            self._cache.forget(cached)  # the log was restored from a backup
            raise ConversationDeletedError("the log is another one than the cached one; call again")
        load = Load(policy, cached, end.state, start, has_hints=has_hints, held=held if is_joined else LoadedEnd())
        load.documents, load.size = end.documents + bool(found), sum(entry.size for entry in end.entries)
        load.round_trips = end.round_trips + bool(found)
        await self._add_end(load, end.entries)
        return load

    def _known_start(self, cached: CachedConversation, policy: HistoryPolicy) -> ViewStart:
        start = cached.starts.get(start_key(policy), NO_START)
        return start if start.counter == self._counter.name else NO_START

    def _first_needed(self, known: ViewStart, policy: HistoryPolicy, state: Mapping[str, Any], totals: Totals) -> int:
        """Return the number of the entry at which views begin, given the state's document; 0 if it is unknown."""
        key, revision = start_key(policy), state.get("revision", -1)
        starts = (known, *(one for one in starts_in(state) if one.policy == key))
        return newest_start(starts, totals, revision=revision, counter=self._counter.name).entry

    async def _add_end(self, load: Load, entries: Sequence[Entry]) -> None:
        """Apply rewinds and the summary to the last entries; they overlap the cached ones by one entry."""
        if not entries:
            load.system = ()
            return
        cached, totals = load.cached, entries[-1].totals
        self._cache.confirm(cached, totals)
        missing = cached.rewinds.missing(totals, entries)
        load.rewinds = await self._reader.rewinds(cached, totals, entries)
        load.count_rewinds(missing)
        self._use_summary(load, totals)
        starts = (load.start, load.state.start(start_key(load.policy)))
        load.start = newest_start(starts, totals, revision=load.state.revision, counter=self._counter.name)
        known = (one for one in (cached.system, load.state.system) if one)
        cached.system = next((one for one in known if one.is_valid(load.rewinds, self._counter.name)), None)
        load.system = cached.system.messages if cached.system else None
        new = await self._reader.counted(entries[bool(load.held.entries) :])
        # Recounted with the store's counter, so that every process computes the same start.
        load.add_end(new, await self._reader.recount_tail(cached, totals))
        self._take_beginning(load)

    def _use_summary(self, load: Load, totals: Totals) -> None:
        summary = load.state.summary
        if summary and summary.last <= totals.messages and fits(summary, load.rewinds):
            load.summary = summary
            load.summary_messages = self._reader.summary_messages(summary, talk=load.policy.view == "conversation")

    def _take_beginning(self, load: Load) -> None:
        """Take the leading system messages and the results before the rows, if the rows reach back to them."""
        if load.start.entry and load.entries[0].number == load.start.entry:
            load.earlier_results = load.start.results
        if load.is_complete and not load.summary:
            load.system = tuple(row.message for row in leading_system(load.rows))
            load.cached.system = system_of(load.rows, load.rewinds, self._counter.name)

    async def _read(self, load: Load, limit: int, before: int) -> list[Entry]:
        """Read the last entries before a number, but none before the known start of the view."""
        minimum = max(load.start.entry, load.summary.entry if load.summary else 0)
        start = minimum if before > minimum else 0
        entries = await self._log.entries_before(load.cached.conversation, start=start, before=before, limit=limit)
        load.count(entries)
        return entries

    async def _read_before(self, load: Load, first: int) -> list[Entry]:
        """Read the leading system messages and return the newest results before an ordinal."""
        conversation = load.cached.conversation
        _, results = await asyncio.gather(
            self._read_system(load),
            self._log.newest_results(conversation, load.rewinds, before=first, limit=NOTE_RESULTS),
        )
        load.count(results)
        return results

    async def _read_system(self, load: Load) -> None:
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

    async def _choose(self, load: Load) -> Window:
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
            load.prepend(await self._reader.counted(entries))
            self._take_beginning(load)

    def _window(self, load: Load) -> Window | None:
        """Choose where the view begins; return None if more entries must be read first."""
        summary = load.summary
        if not load.is_complete and (not load.rows or (summary and summary.counter != self._counter.name)):
            return None  # positions after a summary are unknown if another counter measured the summarised messages
        has_results = load.is_complete or load.earlier_results is not None
        return window_of(
            load if has_results else replace(load, kept_notes={}),  # without earlier results notes are smaller
            load.policy,
            codec=self._codec,
            counter=self._counter,
            missing_tokens=self._missing_tokens(),
            known=load.required,
        )

    async def _remember(self, load: Load, window: Window) -> None:
        """Cache the start of the next view; store it in the state as well if that would have saved a round trip."""
        if window.anchor is None or window.anchor >= len(load.rows):
            return
        number, key, tail = load.rows[window.anchor].entry, start_key(load.policy), load.entries[-1].totals
        known = (load.rewinds.entry, load.state.revision, number)
        last = load.cached.starts.get(key)
        is_same = last is not None and (last.rewind_entry, last.revision, last.entry) == known
        begin = bisect_left(load.rows, number, key=lambda row: row.entry)
        start = ViewStart(
            *known,
            load.rows[begin].message.ordinal,
            window.required.through,
            window.required.turn,
            tail.link,
            self._counter.name,
            key,
            last.results if last and is_same else load.results_before(begin),
        )
        load.cached.remember_start(start)
        if is_same:
            return
        system = load.cached.system if load.has_hints and load.state.system is None else None
        is_new = load.searches and load.state.start(key) != start
        if number > 1 and (is_new or system):
            await self._states.remember(load.state, start, system)
            load.round_trips += 1

    def _cache_end(self, load: Load) -> None:
        """Cache the end of the log, back to the earliest start of a view under any policy."""
        starts = [start.entry for start in load.cached.starts.values() if start.entry]
        first = min([*starts, *(entry.number for entry in load.entries[:1])], default=0)
        entries = load.end[bisect_left(load.end, first, key=lambda entry: entry.number) :]
        rows = load.end_rows or (load.rows if load.entries[:1] == entries[:1] else ())
        rows = rows[bisect_left(rows, first, key=lambda row: row.entry) :]
        if len(load.shown) > 2 * len(rows) + _MIN_SHOWN:
            ids = {row.message.id for row in rows}
            load.shown = {id_: one for id_, one in load.shown.items() if id_ in ids}
        first_ordinal = rows[0].message.ordinal if rows else 0
        notes = {key: note for key, note in load.kept_notes.items() if key[0] >= first_ordinal}
        self._cache.keep_end(load.cached, LoadedEnd(entries, load.key, rows, notes, load.shown))

    async def _show(self, load: Load, window: Window) -> tuple[Window, View]:
        """Build the view of a window, or of the smaller one if its first turn cannot be shortened enough."""
        rows = load.rows[window.start :]
        needed = payloads_needed(rows, load.policy)
        payloads, read = await self._payloads.read(load.cached, rows, needed, keep=self._keeps_payloads)
        if read:
            load.round_trips += 1
            load.documents += sum(len(ref.ends) for ref in read)
            load.size += sum(ref.size for ref in read)
        build = partial(
            view_of,
            load,
            window,
            load.policy,
            codec=self._codec,
            counter=self._counter,
            payloads=payloads,
            known=load.shown,
        )
        new = [row.message for row in rows if row.message.id not in load.shown]
        view = await run_in_thread_if_long(build, characters=characters_of(new, payloads))
        if window.without and not view.is_fitting and window.without.start > window.start:
            return await self._show(load, window.without)
        return window, view

    def _history(self, load: Load, window: Window, view: View) -> History:
        summary = load.summary.text if load.summary else None
        report = _report(load, window, view)
        history = History(messages=view.messages, summary=summary, tokens=view.tokens, report=report)
        return history.sealed(self._stamper(load, view))

    def _stamper(self, load: Load, view: View) -> Stamper:
        """Return the function that makes the stamp of a view."""
        return stamper(
            load.cached.conversation,
            load.policy,
            counter=self._counter.name,
            entry=load.entries[-1].number if load.entries else 0,
            summary=load.summary.token if load.summary else "",
            tokens=view.tokens,
        )


def _report(load: Load, window: Window, view: View) -> HistoryReport:
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
        bytes=load.size,
        round_trips=load.round_trips,
    )

"""Loads the view of a conversation for the next model call.

One command reads the state and the entries, from the end of the log back to where the policy's record says that views
start. If there is no record, reading continues until the budget is full. A load that moves the record stores it while
it reads payloads. Leading system messages and names of earlier results never change and are read once.

The module is long because a load is one sequence of steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any

from convstore.exceptions import ConversationDeletedError, ConvstoreError, CorruptDocumentError
from convstore.log.entry import Entry, PayloadRef, Totals
from convstore.log.rows import Row, is_finished, leading_system, open_turn, rows_of
from convstore.log.state import NO_RECORD, ViewRecord, system_of
from convstore.messages.media_sizes import request_length
from convstore.messages.tokens import NamedCounter
from convstore.mongo.keys import entry_id
from convstore.mongo.log import VIEW_FIELDS
from convstore.mongo.parallel import together
from convstore.mongo.states import MAXIMUM_RECORDS
from convstore.runtime.cache import CachedConversation, CachedPayload, LoadedEnd
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import Snapshot
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.json_form import new_model
from convstore.values.models import HistoryReport
from convstore.values.policy import HistoryPolicy, view_key
from convstore.values.scope import Scope
from convstore.values.stamps import Stamper
from convstore.view.decoder import Decoder, payloads_needed
from convstore.view.load import Load, differs, entries_needed, is_continued_by
from convstore.view.load_log import LoadLog
from convstore.view.media import BYTES_PER_TOKEN
from convstore.view.render import NOTE_RESULTS, View
from convstore.view.rule import Decision
from convstore.view.view import decision_of, has_enough, stamper, view_of
from convstore.wire.history import History

_TRIES = 4
_FIRST_ENTRIES = 4
_MAX_ENTRIES = 1_000
_MAX_RECENT = 4
_UNUSED_AFTER = timedelta(days=1)
"""Time without a move after which a record may make room for that of another policy."""


class Loader:
    """Loads views for all conversations of a store."""

    _keeps_payloads = True

    def __init__(self, ends: LogEndReader) -> None:
        self._log = LoadLog()
        self._ends = ends
        self._states = ends.states
        self._reader = ends.reader
        self._cache = ends.reader.cache
        self._clock = ends.reader.clock
        self._counter = ends.reader.counter

    async def load(self, scope: Scope, policy: HistoryPolicy) -> History:
        """Return the view of a conversation; see `Conversation.load_history`."""
        history = await self._load_current(scope, policy)
        self._log.note(history, view_key(policy, self._counter.name))
        return history

    async def _load_current(self, scope: Scope, policy: HistoryPolicy) -> History:
        for _ in range(_TRIES):
            # The conversation was deleted or restored from a backup during the load, or another load moved the record:
            # retry with what the scope has now.
            with suppress(ConversationDeletedError):
                if history := await self._load(scope, policy):
                    return history
        return await self._load(scope, policy, stores=False) or History(
            messages=[], report=HistoryReport()
        )

    async def _load(
        self, scope: Scope, policy: HistoryPolicy, *, stores: bool = True
    ) -> History | None:
        """Return the view; None if another load moved the record, so that it has to be decided again."""
        cached, found = await self._ends.find(scope)
        if cached is None:
            history = History(messages=[], report=HistoryReport(round_trips=1))
            return history.sealed(stamper("", policy, counter=self._counter.name))
        async with self._reader.reading(cached):
            load = await self._begin(cached, found, policy)
            decision = await self._decide(load)
            record = self._moved(load, decision) if stores else None
            if write := self._write(load, record):
                view, is_stored = await together(self._show(load, decision), _succeeds(write))
            else:  # a task of its own would take a tenth of a load
                view = await self._show(load, decision)
                is_stored = True
            load.round_trips += max(write is not None, load.payload_reads)
        self._cache_end(load)
        return self._history(load, decision, view) if is_stored else None

    async def _begin(
        self, cached: CachedConversation, found: Totals | None, policy: HistoryPolicy
    ) -> Load:
        """Read the state and the entries since the start in the record; of cached entries, only the last."""
        key = view_key(policy, self._counter.name)
        first, start = self._first_known(cached, key)
        limit = entries_needed(start, cached.tail or found or Totals(), policy)
        held = _take_end(cached, start)
        last = held.entries[-1] if held.entries else None
        has_system = cached.system is None
        end = await self._ends.read(
            cached,
            start=last.number if last else first,
            limit=limit,
            has_system=has_system,
            view=key,
            known=last,
            items_from=max(cached.entries, found.entries if found else 0),
        )
        if first and not end.entries and last is None:
            # The record was stored before a backup was restored.
            end = await self._ends.read(cached, limit=limit)
        held = self._continued(cached, held, end.entries, is_all=len(end.entries) < limit)
        load = Load(policy, key, Snapshot(cached), end.state, held=held, has_system=has_system)
        load.record = end.state.views.get(key, NO_RECORD)
        load.documents = end.documents + bool(found)
        load.size = end.size
        load.round_trips = end.round_trips + bool(found)
        await self._add_end(load, end.entries)
        return load

    def _continued(
        self, cached: CachedConversation, held: LoadedEnd, entries: Sequence[Entry], *, is_all: bool
    ) -> LoadedEnd:
        """Return the cached end if the entries read begin with its last one, else an empty one.

        Raises:
            ConversationDeletedError: The log was restored from a backup; with `is_all`, no older entries are missing.
        """
        is_continued = is_continued_by(held.entries, entries)
        is_replaced = bool(held.entries) and not is_continued and is_all
        if is_replaced or differs(cached.tail, entries):
            self._cache.forget(cached)
            raise ConversationDeletedError("the log is another one than the cached one; call again")
        return held if is_continued else LoadedEnd()

    def _first_known(self, cached: CachedConversation, key: str) -> tuple[int, int]:
        """Return an entry before which a view needs none, and the entry at which it begins, by the state read last.

        Without a record of the policy the view may begin anywhere after the summary. 0 for what is unknown.
        """
        state = cached.state[1] if cached.state else None
        if state is None:
            return 0, 0
        summary_entry = state.summary.entry if state.summary else 1
        record = state.views.get(key)
        if record is None:
            return summary_entry, 0
        start = max(record.entry, summary_entry)
        return start, start

    async def _add_end(self, load: Load, entries: Sequence[Entry]) -> None:
        """Add the last entries, which overlap the cached ones by one entry, and what of the state fits them."""
        if not entries:
            load.system = ()
            return
        cached = load.cached
        totals = entries[-1].totals
        self._cache.confirm(cached, totals)
        await self._take_snapshot(load, await self._reader.snapshot(cached, totals, entries))
        known = (
            item
            for item in (cached.system, load.state.system)
            if item and item.counter == self._counter.name
        )
        cached.system = next(
            (item for item in known if item.gaps == load.log.active.gaps(item.through)), None
        )
        load.system = cached.system.messages if cached.system else None
        load.add_end(await self._reader.counted(entries[bool(load.held.entries) :]))
        self._take_beginning(load)

    async def _take_snapshot(self, load: Load, log: Snapshot) -> None:
        """Learn which messages are active, and use the summary if it fits them."""
        # Recounted with the store's counter, so that every process decides the same.
        load.log = log._replace(tail=await self._reader.recount_tail(load.cached, log.tail))
        load.count(load.log.read)
        load.round_trips += bool(load.log.read)
        summary = load.state.summary
        if summary and load.log.fits(summary):
            load.summary = summary
            load.summary_messages = self._reader.summary_messages(
                summary, talk=load.policy.view == "conversation"
            )

    def _take_beginning(self, load: Load) -> None:
        """Take the leading system messages from the rows, if they reach back to them."""
        if load.is_complete and not load.summary:
            load.system = tuple(row.message for row in leading_system(load.rows))
            load.cached.system = system_of(load.rows, self._counter.name, load.log.active.gaps)

    async def _read_system(self, load: Load) -> None:
        """Read the log's leading system messages if they are unknown; they are nearly always in its first entries."""
        if load.system is not None:
            return
        first = list[Entry]()
        rows = list[Row]()
        async with aclosing(self._reader.batches(load.log, at_once=_FIRST_ENTRIES)) as batches:
            async for entries in batches:
                load.count(entries)
                load.round_trips += bool(first)
                first += await self._reader.counted(entries)
                if len(leading_system(rows := rows_of(first))) < len(rows):
                    break
        load.system = tuple(row.message for row in leading_system(rows))
        load.cached.system = system_of(rows, self._counter.name, load.log.active.gaps)

    async def _read_results(self, load: Load) -> None:
        """Read the newest results before the rows, which the note may name."""
        if load.is_complete or load.earlier_results is not None:
            return
        first = load.rows[0].message.ordinal
        results = await self._reader.newest_results(load.log, before=first, limit=NOTE_RESULTS)
        load.count(results)
        load.earlier_results = load.named(results)

    async def _decide(self, load: Load) -> Decision:
        """Decide what the view shows, reading further back until that is certain."""
        while not self._has_enough(load):
            await self._read_more(load)
        await self._read_beginning(load)
        return decision_of(load, self._decoder(load), load.record.marks)

    async def _read_more(self, load: Load) -> None:
        """Read entries before those that were read, but none before those that the view needs."""
        before = load.before
        limit = min(_MAX_ENTRIES, 4 * len(load.entries))
        start = load.log.active.stretch_before(before, max(0, before - limit))
        if before > load.first_needed:
            start = max(start, load.first_needed)
        entries = await self._reader.log.entries(
            load.cached.conversation, start=start, before=before, limit=limit, fields=VIEW_FIELDS
        )
        load.count(entries)
        load.round_trips += 1
        if not entries:
            raise CorruptDocumentError(
                entry_id(load.cached.conversation, before - 1), "the entry is missing"
            )
        load.prepend(await self._reader.counted(entries))
        self._take_beginning(load)

    async def _read_beginning(self, load: Load) -> None:
        """Read the leading system messages and the newest results before the rows, unless they are known."""
        has_results = load.is_complete or load.earlier_results is not None
        if load.system is None or not has_results:
            load.round_trips += 1
            await together(self._read_system(load), self._read_results(load))

    def _has_enough(self, load: Load) -> bool:
        """Return True if no earlier row can change the view."""
        if load.is_complete or load.is_confirmed:
            return True
        # Positions after a summary are unknown if another counter measured the summarised messages.
        is_counted = load.summary is None or load.summary.counter == self._counter.name
        return bool(load.rows) and is_counted and has_enough(load, self._decoder(load))

    def _decoder(self, load: Load) -> Decoder:
        return Decoder(load.policy, self._reader.codec, self._counter)

    def _moved(self, load: Load, decision: Decision) -> ViewRecord | None:
        """Return the record to store; None if nothing moved or there is no room for one more record."""
        if (
            decision.stored == load.record.marks and not load.has_stale_results
        ) or not load.entries:
            return None
        views = load.state.views
        now = self._clock.now()
        is_full = load.key not in views and len(views) >= MAXIMUM_RECORDS
        if is_full and now - min(view.moved_at for view in views.values()) < _UNUSED_AFTER:
            return None
        return load.moved(decision.stored)._replace(moved_at=now)

    def _write(
        self, load: Load, record: ViewRecord | None
    ) -> Coroutine[Any, Any, bool | None] | None:
        """Return the command that stores what this load found out, None if it found nothing new."""
        system = load.cached.system
        is_new = load.has_system and load.state.system is None
        if record is not None:
            return self._states.move_view(
                load.state, load.key, record, seen=load.entries[-1].number, system=system
            )
        if system and is_new and load.first_needed > 1:
            return self._states.remember_system(load.state, system)
        return None

    def _cache_end(self, load: Load) -> None:
        """Cache the end of the log, back to the first entry that views under recent policies needed."""
        needed = {key: number for key, number in load.held.needed.items() if key != load.key}
        needed = dict([*needed.items()][1 - _MAX_RECENT :]) | {load.key: load.first_needed}
        first = max(min(needed.values()), load.kept_from)
        entries = load.entries[bisect_left(load.entries, first, key=lambda entry: entry.number) :]
        rows = load.known_rows[
            bisect_left(load.known_rows, first, key=lambda row: row.entry.number) :
        ]
        first_ordinal = rows[0].message.ordinal if rows else 0
        notes = {key: note for key, note in load.kept_notes.items() if key[0] >= first_ordinal}
        self._cache.keep_end(load.cached, LoadedEnd(entries, load.depends_on, rows, notes, needed))

    async def _show(self, load: Load, decision: Decision) -> View:
        """Build the view of a decision."""
        rows = load.rows[decision.begin :]
        needed = payloads_needed(rows, decision.shown, load.policy)
        # Nearly always none: only a system prompt that is too large for its entry has a payload.
        needed += [
            (message.id, message.payload) for message in load.system or () if message.payload
        ]
        payloads, read = await self._read_payloads(load.cached, rows, needed)
        if read:
            load.payload_reads = 1
            load.documents += sum(len(ref.ends) for ref in read)
            load.size += sum(ref.size for ref in read)
        decoder = self._decoder(load)
        decoder.payloads = payloads
        new = [row.message for row in rows if row.message.kept is None]
        return await run_in_thread_if_long(
            lambda: view_of(load, decision, decoder), characters=characters_of(new, payloads)
        )

    async def _read_payloads(
        self,
        cached: CachedConversation,
        rows: Sequence[Row],
        needed: Sequence[tuple[str, PayloadRef]],
    ) -> tuple[dict[str, str], list[PayloadRef]]:
        """Return the texts that a view of these rows needs, by message id, and the payloads read from the database.

        Raises:
            CorruptDocumentError: A chunk is missing or damaged.
        """
        # Taken before reading: an append that finishes during the read may drop cached payloads.
        kept = cached.payloads
        if not needed and not kept:
            return {}, []
        cached_texts = {
            id_: kept[id_].text
            for id_, ref in needed
            if id_ in kept and len(kept[id_].text) >= min(ref.own, ref.ends[-1])
        }
        missing = {id_: ref for id_, ref in needed if id_ not in cached_texts}
        read = await self._reader.payloads(cached, list(missing.values()))
        texts = cached_texts | dict(zip(missing, read, strict=True))
        payloads = {id_: texts[id_][: ref.ends[-1]] for id_, ref in needed}
        if self._keeps_payloads:
            self._keep_payloads(cached, rows, payloads, before=kept)
        return payloads, list(missing.values())

    def _keep_payloads(
        self,
        cached: CachedConversation,
        rows: Sequence[Row],
        payloads: Mapping[str, str],
        *,
        before: Mapping[str, CachedPayload],
    ) -> None:
        """Cache the payloads that this view shows and those appended while it was read."""
        current = None if is_finished(rows) else rows[-1].turn
        shown = {
            row.message.id: CachedPayload(
                payloads[row.message.id],
                row.message.payload.shown if row.message.payload and not row.message.stub else 0,
                is_lasting=row.turn != current,
            )
            for row in rows
            if row.message.id in payloads
        }
        kept = shown | {
            id_: payload for id_, payload in cached.payloads.items() if id_ not in before
        }
        self._cache.keep_payloads(cached, kept)

    def _history(self, load: Load, decision: Decision, view: View) -> History:
        summary = load.summary.text if load.summary else None
        report = _report(load, decision, view, self._counter)
        values = {
            "messages": view.messages,
            "summary": summary,
            "tokens": view.tokens,
            "report": report,
            "compaction": None,
        }
        history = new_model(History, values, private={}, fields_set=set(values))
        stamps = self._stamper(load, decision, view)
        return history.sealed(stamps, view.dropped, open_turn(load.rows))

    def _stamper(self, load: Load, decision: Decision, view: View) -> Stamper:
        """Return the function that makes the stamp of a view."""
        return stamper(
            load.cached.conversation,
            load.policy,
            counter=self._counter.name,
            entry=load.last_entry,
            ordinal=load.log.tail.messages,
            summary=load.summary.token if load.summary else "",
            marks=decision.marks,
            left_out_steps=len(decision.left),
            shortened=len(view.shortened),
            tokens=view.tokens,
            thinking_through=view.thinking_through,
            sizes=view.sizes,
            smaller=frozenset((*view.stubbed, *view.placeholders, *view.shortened)),
        )


def _take_end(cached: CachedConversation, start: int) -> LoadedEnd:
    """Remove the cached end, which a successful load caches again; return an empty one if it begins after `start`."""
    held = cached.end or LoadedEnd()
    cached.end = None
    if start and held.entries and held.entries[0].number > start:
        return LoadedEnd()
    return held


async def _succeeds(write: Coroutine[Any, Any, bool | None]) -> bool:
    """Return False if another load moved a record first; a write that fails never fails the load."""
    with suppress(ConvstoreError):
        return await write is not False
    return True


def _report(load: Load, decision: Decision, view: View, counter: NamedCounter) -> HistoryReport:
    budget = load.policy.max_tokens
    values = {
        "stubbed": view.stubbed,
        "placeholders": view.placeholders,
        "shortened": view.shortened,
        "left_out_turns": load.turns_before(decision.begin) if load.rows else 0,
        "left_out_steps": len(decision.left),
        "is_excursion": decision.is_excursion,
        "missing_results": view.missing_results,
        "orphans": view.orphans,
        "late_results": view.late_results,
        "moved": view.moved,
        "over_budget": budget is not None and view.tokens > budget,
        "tokens_before": load.log.tail.tokens,
        "tokens_after": view.tokens,
        "tokens_unsummarized": load.unsummarized,
        "counter_error": "".join(counter.errors),
        "request_bytes": BYTES_PER_TOKEN * view.tokens + sum(map(request_length, view.messages)),
        "documents": load.documents,
        "bytes": load.size,
        "round_trips": load.round_trips,
        "reasons": (),
        "reasons_before": None,
    }
    return new_model(HistoryReport, values, fields_set=set(values))

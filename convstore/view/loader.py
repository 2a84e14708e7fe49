"""Loads the view of a conversation for the next model call.

One command reads the state and the entries, from the end of the log back to the start in the policy's record. Without a
record, reading continues until the budget is full. A load that moves the record stores it while it reads payloads.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from convstore.exceptions import ConversationDeletedError, ConvstoreError
from convstore.log.entry import Entry, Totals
from convstore.log.state import NO_RECORD, ViewRecord
from convstore.mongo.parallel import together
from convstore.mongo.states import MAXIMUM_RECORDS
from convstore.runtime.cache import CachedConversation, LoadedEnd
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import Snapshot
from convstore.values.models import HistoryReport
from convstore.values.plain import counted
from convstore.values.policy import HistoryPolicy, view_key
from convstore.values.scope import Scope
from convstore.values.stamps import ViewStamp, break_between
from convstore.view.load import Load, differs, entries_needed, is_continued_by
from convstore.view.render import stamper
from convstore.view.rule import ViewPlan
from convstore.wire.history import History

_LOGGER = logging.getLogger("convstore")
_MOST_STAMPS = 1_000
_TRIES = 4
_MAX_RECENT = 4
_UNUSED_AFTER = timedelta(days=1)
"""Time without a move after which a record may be replaced by the record of another policy."""


class Loader:
    """Loads views for all conversations of a store."""

    def __init__(self, ends: LogEndReader) -> None:
        self._stamps = OrderedDict[tuple[str, str], ViewStamp]()
        self._ends = ends
        self._states = ends.states
        self._reader = ends.reader
        self._cache = ends.reader.cache
        self._clock = ends.reader.clock
        self._counter = ends.reader.counter

    async def load(self, scope: Scope, policy: HistoryPolicy) -> History:
        """Return the view of a conversation; see `Conversation.load_history`."""
        history = await self._load_current(scope, policy)
        self._log(history, view_key(policy, self._counter.name))
        return history

    def _log(self, history: History, view: str) -> None:
        """Log a load at DEBUG, with the cause of a lost prompt cache since the last one; `view` is the policy's key."""
        if not _LOGGER.isEnabledFor(logging.DEBUG) or (stamp := history.stamp) is None:
            return
        key = (stamp.conversation_id, view)
        before = self._stamps.pop(key, None)
        self._stamps[key] = stamp
        if len(self._stamps) > _MOST_STAMPS:
            self._stamps.popitem(last=False)
        report = history.report
        parts = [
            counted(len(history.messages), "message"),
            counted(history.tokens, "token"),
            counted(len(report.stubbed), "stub"),
            f"{counted(report.left_out_turns, 'turn')} left out",
        ]
        if report.orphans:
            parts.append(f"{counted(len(report.orphans), 'result')} without a call left out")
        if before:
            cause = break_between(before, stamp)
            parts.append(f"prompt cache broken: {cause}" if cause else "prompt cache held")
        _LOGGER.debug(
            "loaded conversation %s: %s",
            stamp.conversation_id or "without messages",
            ", ".join(parts),
        )

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
        """Return the view; None if another load moved the record, so that the view has to be planned again."""
        cached, found = await self._ends.find(scope)
        if cached is None:
            history = History(messages=[], report=HistoryReport(round_trips=1))
            return history.sealed(stamper("", policy, counter=self._counter.name))
        async with self._reader.reading(cached):
            load = await self._begin(cached, found, policy)
            plan = await load.decide()
            record = self._moved_record(load, plan) if stores else None
            if write := self._write(load, record):
                view, is_stored = await together(load.show(plan), _succeeds(write))
            else:  # without a task of its own, which would take a tenth of the load's time
                view = await load.show(plan)
                is_stored = True
            load.round_trips += max(write is not None, load.payload_reads)
        self._cache_end(load)
        return load.history(plan, view) if is_stored else None

    async def _begin(
        self, cached: CachedConversation, found: Totals | None, policy: HistoryPolicy
    ) -> Load:
        """Read the state, and the entries since the record's start; of cached entries, only the last one."""
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
            # The record points past the end of a log that was restored from a backup.
            end = await self._ends.read(cached, limit=limit)
        held = self._continued_end(cached, held, end.entries, is_all=len(end.entries) < limit)
        load = Load(self._reader, policy, Snapshot(cached), end.state)
        load.held = held
        load.has_system = has_system
        load.keeps_payloads = True
        load.record = end.state.views.get(key, NO_RECORD)
        load.documents = end.documents + bool(found)
        load.size = end.size
        load.round_trips = end.round_trips + bool(found)
        await self._add_end(load, end.entries)
        return load

    def _continued_end(
        self, cached: CachedConversation, held: LoadedEnd, entries: Sequence[Entry], *, is_all: bool
    ) -> LoadedEnd:
        """Return the cached end if the entries just read begin with its last entry, else an empty one.

        `is_all` is True if the read was not cut off by its limit.

        Raises:
            ConversationDeletedError: The cached entries are not in the log, because a backup was restored.
        """
        is_continued = is_continued_by(held.entries, entries)
        is_replaced = bool(held.entries) and not is_continued and is_all
        if is_replaced or differs(cached.tail, entries):
            self._cache.forget(cached)
            raise ConversationDeletedError("the log was replaced by another one; call again")
        return held if is_continued else LoadedEnd()

    def _first_known(self, cached: CachedConversation, key: str) -> tuple[int, int]:
        """Return the first entry that a view may need, and the entry at which it begins, by the cached state.

        Without a record of the policy, the view may begin anywhere after the summary. Unknown numbers are 0.
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
        """Add the last entries, which overlap the cached ones by one, and the parts of the state that fit them."""
        if not entries:
            load.system = ()
            return
        cached = load.cached
        totals = entries[-1].totals
        self._cache.confirm(cached, totals)
        await load.take_snapshot(await self._reader.snapshot(cached, totals, entries))
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
        load.take_beginning()

    def _moved_record(self, load: Load, plan: ViewPlan) -> ViewRecord | None:
        """Return the record to store; None if it did not move, or the state has no room for another record."""
        if (plan.stored == load.record.marks and not load.has_stale_results) or not load.entries:
            return None
        views = load.state.views
        now = self._clock.now()
        is_full = load.key not in views and len(views) >= MAXIMUM_RECORDS
        if is_full and now - min(view.moved_at for view in views.values()) < _UNUSED_AFTER:
            return None
        return load.moved(plan.stored)._replace(moved_at=now)

    def _write(
        self, load: Load, record: ViewRecord | None
    ) -> Coroutine[Any, Any, bool | None] | None:
        """Return the command that stores the moved record, or new leading system messages; None if neither is new."""
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
        """Cache the end of the log, back to the first entry that views under recent policies need."""
        own = load.key
        needed = {key: number for key, number in load.held.needed.items() if key != own}
        needed = dict([*needed.items()][1 - _MAX_RECENT :]) | {own: load.first_needed}
        first = max(min(needed.values()), load.kept_from)
        entries = load.entries[bisect_left(load.entries, first, key=lambda entry: entry.number) :]
        rows = load.known_rows[
            bisect_left(load.known_rows, first, key=lambda row: row.entry.number) :
        ]
        first_ordinal = rows[0].message.ordinal if rows else 0
        notes = {key: note for key, note in load.kept_notes.items() if key[0] >= first_ordinal}
        self._cache.keep_end(load.cached, LoadedEnd(entries, load.depends_on, rows, notes, needed))


def _take_end(cached: CachedConversation, start: int) -> LoadedEnd:
    """Remove and return the cached end, or an empty one if that begins after `start`.

    A successful load caches it again.
    """
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

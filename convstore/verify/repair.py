"""Repairs a log whose tail was lost when a backup was restored under a running process; see ``log.repairs``.

Missing entries are filled in ascending order, so that no process that has one of them cached can append after it. Then
a recount entry at the end stores new totals. Concurrent appends by other writers are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from convstore.log.entry import Entry, EntryMessage, Recount, Repair, RewoundRange, Totals
from convstore.log.repairs import Survey, inactive_ranges, lost_entries
from convstore.log.rewind import COUNTS, Rewinds
from convstore.log.totals import totals_after
from convstore.messages.encoding import decode_message
from convstore.messages.values import Codec
from convstore.mongo.documents import entry_from
from convstore.mongo.log import Log, SlotTaken
from convstore.runtime.clock import Clock
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.verify.findings import Subject
from convstore.verify.segments import SearchIndex

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Repairer:
    """Repairs the log of one conversation; new entries get their times and link tokens from the clock."""

    subject: Subject
    log: Log
    clock: Clock
    index: SearchIndex

    async def run(self) -> Entry | None:
        """Repair the log and return the recount entry; None if other writers took the number in every try."""
        for _ in range(_TRIES):
            survey = Survey()
            async for one in self._entries():
                survey.add(one)
            if survey.tail is None:
                break
            # Segments of lost entries may name the same links as the entries that replace these.
            breaks = [*survey.new_joins, *survey.new_lost, *(before.number + 1 for before, _ in survey.holes)]
            await self.index.drop_from(self.subject.conversation, min(breaks, default=1) - 1)
            if survey.holes:
                await self._fill(*survey.holes[0])
            elif recount_entry := await self._append_recount(survey, survey.tail):
                return recount_entry
        return None

    async def _entries(self) -> AsyncIterator[Entry]:
        async for document in self.subject.documents(self.subject.inspection.entries, self.subject.conversation):
            yield entry_from(document)

    async def _fill(self, before: Entry, after_hole: Entry) -> None:
        for entry in lost_entries(before, after_hole, at=self.clock.now(), link=self.clock.link):
            if not await self._insert(entry):
                return

    async def _insert(self, entry: Entry) -> bool:
        try:
            await self.log.insert(self.subject.conversation, entry, (), token="")
        except SlotTaken:
            return False
        return True

    async def _append_recount(self, survey: Survey, tail: Entry) -> Entry | None:
        """Insert the recount entry after the last entry; return None if another writer took its number."""
        rewound = inactive_ranges(survey.spans, survey.lost, survey.rewinds)
        number, repaired_from = tail.number + 1, [survey.repair.entry] if survey.repair else []
        first = min(number, *survey.new_joins, *survey.new_lost, *repaired_from)
        count = _Count(self.subject.codec, rewound, first)
        async for entry in self._entries():
            if entry.number < number:
                await run_in_thread_if_long(partial(count.add, entry), characters=characters_of(entry.messages, {}))
        repair = Repair(first, number, tuple(survey.joins), tuple(count.recounts))
        totals = self._recounted(survey, tail, count)
        entry = Entry(
            totals.messages + 1, self.clock.now(), (), totals, after=tail.totals.link, rewound=rewound, repair=repair
        )
        return entry if await self._insert(entry) else None

    def _recounted(self, survey: Survey, tail: Entry, count: _Count) -> Totals:
        return replace(
            count.active,
            entries=tail.number + 1,
            messages=max(span.last for span in survey.spans),
            counter=count.counters.pop() if len(count.counters) == 1 else "",
            rewind_entry=tail.number + 1,
            whole_list=tail.number + 1,
            sources_through=survey.sources_through,
            given_through=survey.sources_through,
            usage=count.all.usage,
            stored_bytes=count.all.stored_bytes,
            shown_at=count.shown_at,
            updated_at=tail.totals.updated_at,  # a repair does not use the conversation
            link=self.clock.link(),
        )


class _Count:
    """Counts the active messages of a log, entry by entry.

    Attributes:
        all: Totals of all messages, active or rewound.
        active: Totals of the active messages.
        counters: Names of the token counters that counted the active messages.
        shown_at: Number of the last entry with sources.
        recounts: The differences between stored and recounted totals, from entry `first` on.
    """

    def __init__(self, codec: Codec, rewound: tuple[RewoundRange, ...], first: int) -> None:
        self._codec, self._rewinds, self._first = codec, Rewinds(ranges=rewound), first
        self.all, self.active, self.counters = Totals(), Totals(), set[str]()
        self.shown_at = 0
        self.recounts: list[Recount] = []

    def add(self, entry: Entry) -> None:
        """Count the next entry."""
        active = [one for one in entry.messages if self._rewinds.has(one.ordinal)]
        self.all = self._add(self.all, entry, entry.messages)
        # An entry's own totals count all of its messages, as it was appended before any of them was rewound.
        appended = self._add(self.active, entry, entry.messages)
        self.active = self._add(self.active, entry, active) if len(active) < len(entry.messages) else appended
        if active:
            self.counters.add(entry.totals.counter)
        if entry.sources:
            self.shown_at = entry.number
        if entry.number >= self._first:
            self._recount(entry, appended)

    def _add(self, before: Totals, entry: Entry, messages: Sequence[EntryMessage]) -> Totals:
        decoded = ((one, decode_message(self._codec, one.body)) for one in messages)
        return totals_after(before, decoded, at=entry.at) if messages else before

    def _recount(self, entry: Entry, counted: Totals) -> None:
        more = tuple(getattr(entry.totals, name) - getattr(counted, name) for name in COUNTS)
        last = self.recounts[-1] if self.recounts else None
        if last and last.until == entry.number - 1 and last[2:] == more:
            self.recounts[-1] = last._replace(until=entry.number)
        elif any(more):
            self.recounts.append(Recount(entry.number, entry.number, *more))

"""Repairs a log whose tail was lost when a backup was restored under a running process; see ``log.repairs``.

Missing entries are filled in ascending order, so that no process that has one of them cached can append after it. Then
a recount entry at the end stores new totals. Concurrent appends by other writers are kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from convstore.log.entry import Entry, Totals
from convstore.log.repairs import LogRecount, Survey, lost_entries
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
            async for entry in self._entries():
                survey.add(entry)
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

    async def reserve(self, tail: Totals, through: int) -> Entry | None:
        """Reserve the source numbers up to one that children have, in a new entry; None if another writer was first."""
        at = self.clock.now()
        totals = replace(
            tail,
            entries=tail.entries + 1,
            sources_through=through,
            given_through=through,
            updated_at=at,
            link=self.clock.link(),
        )
        made = Entry(tail.messages + 1, at, (), totals, after=tail.link)
        return made if await self._insert(made) else None

    async def _entries(self) -> AsyncGenerator[Entry, None]:
        async with aclosing(
            self.subject.documents(self.subject.inspection.entries, self.subject.conversation)
        ) as documents:
            async for document in documents:
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
        recount = LogRecount(survey, tail, self.subject.codec)
        async with aclosing(self._entries()) as entries:
            async for entry in entries:
                if entry.number <= tail.number:
                    await run_in_thread_if_long(
                        partial(recount.add, entry), characters=characters_of(entry.messages, {})
                    )
        made = recount.entry(at=self.clock.now(), link=self.clock.link())
        return made if await self._insert(made) else None

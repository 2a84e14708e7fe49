"""Repair a log that lost entries, as after a backup was restored under running processes: copy the remaining entries.

The copy has its own id and cannot be found before the head names it. Until then it has a tombstone, so that a sweep
removes it if the repair is killed. Then one update of the head replaces the log, unless a sweep abandoned the copy or
another repair began. The replaced log is kept for 30 days. Writers with a cached id may append to it for some more
seconds: their entries are moved at once and by the sweeps of the log.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from convstore.exceptions import CorruptDocumentError, SchemaVersionError
from convstore.log.copied import LogCopy, reservation
from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.state import State, forked
from convstore.log.summary import SummaryRecord
from convstore.messages.sizes import packed
from convstore.messages.values import Codec
from convstore.mongo.collection import Document
from convstore.mongo.copies import Copies
from convstore.mongo.documents import entry_from
from convstore.mongo.heads import EntryRef
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import entry_id, repaired_id
from convstore.mongo.log import SlotTaken
from convstore.mongo.number_pools import lost_reservation
from convstore.mongo.state_documents import current_summary, state_from
from convstore.mongo.tombstones import Tombstones
from convstore.mongo.versions import is_newer
from convstore.runtime.clock import APPENDS_END_AFTER
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.retrying import until_written
from convstore.runtime.threads import characters_of, payload_characters, run_in_thread_if_long
from convstore.verify.findings import CLOCKS_DIFFER

_SWEEP_AFTER = timedelta(hours=1)
"""Time after which the copy of a killed repair is removed."""

_ROOM = 1_000
"""Source ids that the copy reserves for late writers, who continue the numbers of the replaced log.

An entry with more sources is not moved, because a number that a model has seen never changes. It is deleted with the
replaced log after 30 days.
"""

_CHARACTERS_AT_ONCE = 4_000_000
_EVER = datetime.min.replace(tzinfo=UTC)
_LOGGER = logging.getLogger("convstore")


@dataclass(frozen=True, slots=True)
class RepairedCopy:
    """A copy without a head: its id, its last totals, and the number of entries of the log that it was made from."""

    target: str
    tail: Totals
    entries: int


@dataclass(frozen=True, slots=True)
class Repairer:
    """Repairs logs; `codec` also decodes values of unknown types."""

    ends: LogEndReader
    inspection: Inspection
    copies: Copies
    tombstones: Tombstones
    codec: Codec

    async def copy(
        self, head: Document, state: Document | None, *, sound_through: int
    ) -> RepairedCopy | None:
        """Copy the remaining entries of the log of a head; None if the head has another log now.

        The entries up to `sound_through` have no break and are copied unchanged.
        """
        source = head["conversation"]
        target = repaired_id(head["conversation"], secrets.token_hex(12))
        if not await self.tombstones.begin_repair(head, target, sweep_after=_SWEEP_AFTER):
            return None
        copy = LogCopy(self.codec)
        async for entry in self._entries(source, "", entry_id(source, sound_through)):
            copy.add(entry)
            copy.match(entry)
        if sound_through:
            await self._copy_state(source, target, copy, state)
            await self.copies.entries(source, target, through=sound_through)
        reserved = lost_reservation(state or {}, through=copy.tail.sources_through)
        async with aclosing(self._batches(source, entry_id(source, sound_through))) as batches:
            async for batch in batches:
                await self._follow(source, target, copy, batch)
        through = max(reserved, copy.log_sources)
        if through and copy.matched > sound_through:
            made = self._reservation(copy.tail, through + _ROOM)
            await self.ends.reader.log.insert(target, [made])
            copy.add(made)
        await self.copies.move_annotations(source, target, copy.ordinals, since=_EVER)
        return RepairedCopy(target, copy.tail, copy.matched)

    async def replace(self, head: Document, made: RepairedCopy) -> bool:
        """Replace the log of a head by its copy, and move late entries.

        Returns False if a deletion or another repair was first.
        """
        if not await self.tombstones.keep_copy(made.target, sweep_after=_SWEEP_AFTER):
            return False
        tombstone = await self.tombstones.replace_log(
            head,
            made.target,
            entry=EntryRef(made.tail.entries, made.tail.link),
            entries=made.entries,
            at=self.ends.reader.clock.undated(),
            sweep_after=APPENDS_END_AFTER,
        )
        if tombstone is None:
            return False
        await self.tombstones.end_copy(made.target)
        self.ends.reader.cache.end_conversation(head["conversation"])
        await self.move_late(tombstone)
        return True

    async def reserve(self, conversation: str, tail: Totals, through: int) -> Entry | None:
        """Reserve all source ids up to `through`, which children use; None if another writer appended first."""
        made = self._reservation(tail, through)
        try:
            await self.ends.reader.log.insert(conversation, [made])
        except SlotTaken:
            return None
        return made

    def _reservation(self, tail: Totals, through: int) -> Entry:
        """Return an entry with the date of the last one, because a repair does not count as use of the conversation."""
        clock = self.ends.reader.clock
        return reservation(tail, through, at=tail.updated_at or clock.now(), link=clock.link())

    async def drop(self, made: RepairedCopy) -> None:
        """Remove a copy that does not replace its log."""
        if await self.tombstones.is_ended(made.target):
            await self.tombstones.clear(made.target)

    async def move_late(self, tombstone: Document) -> None:
        """Move late entries and annotations of a replaced log to the current log of the conversation.

        If a document is damaged, or was written by a newer convstore, the rest is not moved.
        """
        source = tombstone["conversation"]
        target = await self.tombstones.current(tombstone)
        if not target:
            return
        # so that loads with a cached id read the head
        await self.ends.states.remove(source)
        try:
            await until_written(partial(self._move_late, tombstone, source, target), SlotTaken)
        except (CorruptDocumentError, SchemaVersionError) as error:
            _LOGGER.warning("late entries of %s were not moved to %s: %s", source, target, error)

    async def _move_late(self, tombstone: Document, source: str, target: str) -> None:
        """Append the missing entries of a replaced log to the current log, to which other writers append, too.

        Raises:
            SlotTaken: Another writer took a number. The next attempt finds appended entries by their links.
        """
        since = tombstone["at"].replace(tzinfo=UTC) - CLOCKS_DIFFER
        entries, _ = await self.ends.reader.log.count(source)
        if entries == tombstone["entries"] and not await self.copies.has_annotations(
            source, since=since
        ):
            return
        copy = LogCopy(self.codec)
        # without them stamps of late replies lose their summaries
        with suppress(CorruptDocumentError):
            copy.summaries = frozenset(await self.ends.summaries.all(target))
        async with aclosing(self._batches(source, "")) as batches:
            async for batch in batches:
                async for entry in self._entries(target, entry_id(target, copy.tail.entries)):
                    copy.add(entry)
                await self._follow(source, target, copy, batch)
        await self.copies.move_annotations(source, target, copy.ordinals, since=since)

    async def _follow(
        self, source: str, target: str, copy: LogCopy, entries: Sequence[Entry]
    ) -> None:
        """Append the next entries of the log that the copy lacks. At most four commands."""
        missing = [entry for entry in entries if not copy.has(entry)]
        payloads = await self._copy_chunks(source, target, missing)
        messages = [message for entry in missing for message in entry.messages]
        work = partial(_following, copy, entries, payloads, source)
        made = await run_in_thread_if_long(work, characters=characters_of(messages, payloads))
        await self.ends.reader.log.insert(target, made)

    async def _copy_chunks(
        self, source: str, target: str, entries: Sequence[Entry]
    ) -> dict[str, str]:
        """Copy the chunks of entries, and return the payloads of their messages by id. Three commands."""
        await self.copies.chunks(source, target, entries)
        stored = [message for entry in entries for message in entry.messages if message.payload]
        return await self._payloads(source, stored)

    async def _payloads(self, source: str, messages: Sequence[EntryMessage]) -> dict[str, str]:
        """Return the payloads of messages by id; damaged ones, which the check has reported, are left out."""
        refs = [message.payload for message in messages if message.payload]
        if not refs:
            return {}
        wanted = [(ref, 0, ref.ends[-1]) for ref in refs]
        try:
            texts = await self.ends.reader.log.payload_ranges(source, wanted, runs=[0] * len(refs))
        except CorruptDocumentError:
            if len(messages) == 1:
                return {}
            half = len(messages) // 2
            first = await self._payloads(source, messages[:half])
            return first | await self._payloads(source, messages[half:])
        return dict(zip([message.id for message in messages], texts, strict=True))

    async def _copy_state(
        self, source: str, target: str, copy: LogCopy, document: Document | None
    ) -> None:
        """Insert the state of the copy, with the summaries that only cover messages of the copy.

        If a summary or the state is damaged, no summary is kept.
        """
        state = State(target, self.ends.reader.clock.now())
        kept: list[SummaryRecord] = []
        with suppress(CorruptDocumentError):
            if document and not is_newer(document, "state"):
                records = await self.ends.summaries.all(source)
                summary = records.get(current_summary(document)[0])
                before = state_from(document, summary)
                state, kept = forked(target, before, records, tail=copy.tail, gaps=copy.active.gaps)
        copy.summaries = frozenset(record.token for record in kept)
        for record in kept:
            await self.ends.summaries.insert(target, record)
        await self.ends.states.insert(state)

    async def _entries(
        self, conversation: str, after: str, through: str = ""
    ) -> AsyncGenerator[Entry, None]:
        """Yield the entries after a key and through another, including those that are appended meanwhile."""
        async with aclosing(self._batches(conversation, after, through)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def _batches(
        self, conversation: str, after: str, through: str = ""
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield the same entries in batches, which are limited by the size of their payloads."""
        while page := await self.inspection.entries(conversation, after=after, through=through):
            entries = map(entry_from, page)
            for batch in packed(entries, limit=_CHARACTERS_AT_ONCE, size=payload_characters):
                yield batch
            after = str(page[-1]["_id"])


def _following(
    copy: LogCopy, entries: Sequence[Entry], payloads: Mapping[str, str], source: str
) -> list[Entry]:
    """Add the next entries of a log that a copy lacks to the copy; return the entries to write.

    Entries with source ids of tools that the copy has already are logged and left out.
    """
    following: list[Entry] = []
    for entry in entries:
        made = None if copy.has(entry) else copy.follow(entry, payloads)
        if made is not None and copy.has_source_ids(made):
            line = "entry %s of %s is not in the repaired copy, where its source ids are taken"
            _LOGGER.warning(line, entry.number, source)
        elif made is not None:
            copy.add(made)
            following.append(made)
        copy.match(entry)
    return following

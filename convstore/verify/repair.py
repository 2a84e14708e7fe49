"""Repair a log that lost entries, as after a backup was restored under running processes: copy what is left of it.

The copy has an id of its own, and nobody finds it before the head names it. Until then it has a tombstone, by which a
sweep removes it if the repair is killed. Then one update of the head replaces the log, unless a sweep gave the copy up
or another repair began. The log stays for 30 days. Writers that have its id cached may append to it for a few seconds:
their entries are moved at once and by the sweeps of the log.
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
from convstore.runtime.background import SETTLE_SECONDS
from convstore.runtime.clock import APPEND_SECONDS, ID_LIFETIME
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.retrying import until_written
from convstore.runtime.threads import characters_of, payload_characters, run_in_thread_if_long

_SWEEP_AFTER = timedelta(hours=1)
"""Time after which the copy of a repair that was killed is removed."""

_MOVE_AFTER = timedelta(seconds=APPEND_SECONDS + SETTLE_SECONDS + ID_LIFETIME + 5)
"""Delay after which every append that a process with the old id began has ended."""

_ROOM = 1_000
"""Source ids that the copy leaves to late writers, who number their sources as the log says.

An entry with more is not moved: a number that a model was shown never changes. It is gone with the log, after 30 days.
"""

_CHARACTERS_AT_ONCE = 4_000_000
_CLOCKS_DIFFER = timedelta(hours=1)
_EVER = datetime.min.replace(tzinfo=UTC)
_LOGGER = logging.getLogger("convstore")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A copy that no head names yet: its id, its last totals, and the number of entries of the log that it follows."""

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
    ) -> Repaired | None:
        """Copy what is left of the log of a head; None if it has another log now.

        Up to `sound_through` the entries follow each other, and are copied as they are.
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
        return Repaired(target, copy.tail, copy.matched)

    async def replace(self, head: Document, made: Repaired) -> bool:
        """Let a head name the copy of its log, and move what came late; False if another repair or an end was first."""
        if not await self.tombstones.keep_copy(made.target, sweep_after=_SWEEP_AFTER):
            return False
        tombstone = await self.tombstones.replace_log(
            head,
            made.target,
            entry=EntryRef(made.tail.entries, made.tail.link),
            entries=made.entries,
            at=self.ends.reader.clock.undated(),
            sweep_after=_MOVE_AFTER,
        )
        if tombstone is None:
            return False
        await self.tombstones.end_copy(made.target)
        self.ends.reader.cache.end_conversation(head["conversation"])
        await self.move_late(tombstone)
        return True

    async def reserve(self, conversation: str, tail: Totals, through: int) -> Entry | None:
        """Reserve the source ids up to one that children have; None if another writer appended first."""
        made = self._reservation(tail, through)
        try:
            await self.ends.reader.log.insert(conversation, [made])
        except SlotTaken:
            return None
        return made

    def _reservation(self, tail: Totals, through: int) -> Entry:
        """Return an entry with the date of the one before it: a repair is no use of a conversation."""
        clock = self.ends.reader.clock
        return reservation(tail, through, at=tail.updated_at or clock.now(), link=clock.link())

    async def drop(self, made: Repaired) -> None:
        """Remove a copy that does not replace its log."""
        if await self.tombstones.is_ended(made.target):
            await self.tombstones.clear(made.target)

    async def move_late(self, tombstone: Document) -> None:
        """Move what came late to a replaced log to the one that the conversation has now.

        If one of them is damaged, or was written by a newer convstore, the rest stays in the log that was replaced.
        """
        source = tombstone["conversation"]
        target = await self.tombstones.current(tombstone)
        if not target:
            return
        # so that loads that have the id cached look for the head
        await self.ends.states.remove(source)
        try:
            await until_written(partial(self._move_late, tombstone, source, target), SlotTaken)
        except (CorruptDocumentError, SchemaVersionError) as error:
            _LOGGER.warning("what came late to %s was not moved to %s: %s", source, target, error)

    async def _move_late(self, tombstone: Document, source: str, target: str) -> None:
        """Append to a log, to which others append too, what it lacks of one that it replaced.

        Raises:
            SlotTaken: Another writer was faster; what was appended before is found by its links.
        """
        since = tombstone["at"].replace(tzinfo=UTC) - _CLOCKS_DIFFER
        entries, _ = await self.ends.reader.log.count(source)
        if entries == tombstone["entries"] and not await self.copies.has_annotations(
            source, since=since
        ):
            return
        copy = LogCopy(self.codec)
        with suppress(CorruptDocumentError):  # else the stamps of late answers name no summary
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
        """Append to the copy what it lacks of the next entries of the log. At most four commands."""
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
        """Return the payloads of messages by id, without those that are damaged, which was reported."""
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
        """Insert the state of the copy, with the summaries that cover no message after its last one.

        It has no summaries if they or the state are damaged.
        """
        state = State(target, self.ends.reader.clock.now())
        kept = list[SummaryRecord]()
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
        """Yield the entries after a key and through another, also those that are appended meanwhile."""
        async with aclosing(self._batches(conversation, after, through)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def _batches(
        self, conversation: str, after: str, through: str = ""
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield the same entries, as many at a time as may be in memory with their payloads."""
        while page := await self.inspection.entries(conversation, after=after, through=through):
            entries = map(entry_from, page)
            for batch in packed(entries, limit=_CHARACTERS_AT_ONCE, size=payload_characters):
                yield batch
            after = str(page[-1]["_id"])


def _following(
    copy: LogCopy, entries: Sequence[Entry], payloads: Mapping[str, str], source: str
) -> list[Entry]:
    """Add to a copy what it lacks of the next entries of a log, as far as it has room; return the entries to write."""
    following = list[Entry]()
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

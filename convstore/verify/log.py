"""Check the log of one conversation for damage.

The check makes one pass over the entries, in batches, with the payload chunks that they refer to. Memory use does not
grow with the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from bson import ObjectId
from bson.errors import InvalidId

from convstore.exceptions import CorruptDocumentError
from convstore.log.active_totals import ActiveTotals
from convstore.log.entry import Entry, PayloadRef, Totals
from convstore.log.facts.table import each
from convstore.messages.compression import decompress
from convstore.messages.encoding import digest_of
from convstore.mongo.collection import Document
from convstore.mongo.documents import entry_from, lookup_of
from convstore.mongo.inspection import all_of_pages
from convstore.mongo.keys import LOG, chunk_id, entry_id, entry_number
from convstore.mongo.payloads import payloads_in
from convstore.verify.entry import (
    Problem,
    RecentSources,
    branch_problem,
    check_entry,
    check_totals,
)
from convstore.verify.findings import ORPHAN_AGE, Subject, problem_of

_CHUNKS_AT_ONCE = 16
_HEAVY = 200_000


@dataclass(slots=True)
class LogCheck:
    """Checks the log of one conversation in a single pass.

    Attributes:
        head_entries: The number of the entry that the head names.
        wanted: Numbers of entries to keep in `kept`.
        tail: The totals of the last entry that could be read.
        is_damaged: True if an entry is missing or unreadable, so that its references are unknown.
        sound_through: Number of the last entry before the first break: an entry that is missing or names another
            predecessor; None if there is no break.
        is_readable: True if all existing entries could be read.
        active: The active messages as of the last entry, and their sums.
    """

    subject: Subject
    head_entries: int
    wanted: frozenset[int]
    kept: dict[int, Entry] = field(default_factory=dict)
    tail: Totals = field(default_factory=Totals)
    is_damaged: bool = False
    sound_through: int | None = None
    is_readable: bool = True
    active: ActiveTotals = field(default_factory=ActiveTotals)
    _next: int = 1
    _sources: RecentSources = field(default_factory=RecentSources)
    _tokens: set[str] = field(default_factory=set)
    _missing: tuple[str, str] | tuple[()] = ()
    _candidates: tuple[Totals, ...] = (Totals(),)
    _branches: dict[tuple[str, str], Totals] = field(default_factory=dict)
    _questions: set[int] = field(default_factory=set)
    _chunks: dict[str, Document] = field(default_factory=dict)

    def _report(self, kind: str, document_id: str, problem: str, **outcome: Any) -> None:
        self.subject.report(kind, LOG, document_id, problem, **outcome)

    async def run(self) -> None:
        """Check all entries and chunks."""
        inspection = self.subject.inspection
        conversation = self.subject.conversation
        async with aclosing(all_of_pages(inspection.entries, conversation)) as documents:
            async for document in documents:
                await self._entry(document)
        # A damaged entry may have lost its references to chunks; a backup of the entry would need those chunks.
        is_whole = not self.subject.findings and self.tail.entries >= self.head_entries
        last = ""
        while keys := await inspection.chunk_keys(conversation, after=last):
            await self._orphans(keys, is_whole=is_whole)
            last = keys[-1]

    async def _entry(self, document: Document) -> None:
        key = str(document["_id"])
        self._find_hole(key)
        self.subject.checked["entries"] += 1
        self._tokens |= _tokens_in(document)
        try:
            entry = entry_from(document)
        except CorruptDocumentError as error:
            self._unreadable(key, error)
            return
        if "lookup" not in document and lookup_of(entry):
            self._report("damaged", key, "it has no `lookup`, so an index misses it")
        self._check_order(entry, key)
        payloads = await self._payloads(entry)
        size = sum(len(message.body) for message in entry.messages)
        size += sum(map(len, payloads.values()))
        if size > _HEAVY:
            await asyncio.to_thread(self._check_content, entry, payloads)
        else:
            self._check_content(entry, payloads)
        await self._check_facts(entry, key)
        self.active.add(entry)
        for problem in self.active.problems:
            self._report("totals", key, problem)
        self.subject.checked["messages"] += len(entry.messages)
        self.tail = entry.totals
        if entry.number in self.wanted:
            self.kept[entry.number] = entry

    def _check_order(self, entry: Entry, key: str) -> None:
        """Check that an entry follows the one before it."""
        before = self._candidates[-1] if self._candidates else None
        if self._missing:
            self._report_break("hole", *self._missing, entry)
        elif before and before.link != entry.after:
            self._report_break("fork", key, "it does not follow the entry before it", entry)
            self._expect_any_totals()
        elif before and entry.first != before.messages + 1:
            problem = f"ordinals continue with {entry.first}, not {before.messages + 1}"
            self._report("hole", key, problem)
            self.active.lose()
        self._missing = ()

    def _report_break(self, kind: str, key: str, problem: str, entry: Entry) -> None:
        """Report that entries before an entry are lost, with the lost ordinals and source ids."""
        if self.sound_through is None:
            self.sound_through = self.tail.entries
        ordinals = _between(self.tail.messages, entry.first)
        numbers = [source.id for source in entry.sources]
        sources = _between(
            self.tail.sources_through, min(numbers, default=entry.totals.sources_through + 1)
        )
        self._report(kind, key, problem, lost_ordinals=ordinals, lost_source_ids=sources)

    def _find_hole(self, key: str) -> None:
        number = entry_number(key) or self._next
        if number > self._next:
            lost = number - self._next
            are = "1 entry is" if lost == 1 else f"{lost:,} entries are"
            self._missing = (
                entry_id(self.subject.conversation, self._next),
                f"{are} missing before {key!r}",
            )
            self._expect_anything()
        self._next = number + 1

    def _unreadable(self, key: str, error: Exception) -> None:
        if self._missing:
            self._report("hole", *self._missing)
            self._missing = ()
        self._report("damaged", key, problem_of(error))
        self.is_readable = False
        self._expect_anything()

    def _expect_anything(self) -> None:
        """Do not compare the next entry with its predecessor, which cannot be read."""
        self._expect_any_totals()
        self.is_damaged = True

    def _expect_any_totals(self) -> None:
        self._candidates = ()
        self._sources = RecentSources()
        self.active.lose()

    def _check_content(self, entry: Entry, payloads: Mapping[str, str]) -> None:
        key = entry_id(self.subject.conversation, entry.number)
        try:
            problems, messages = check_entry(entry, payloads, codec=self.subject.codec)
            problems += self._sources.check(entry)
            problems += self._turn_problems(entry)
            if messages is not None and (text := branch_problem(entry, messages, self._branches)):
                problems.append(("totals", text))
            wrong, self._candidates = check_totals(entry, messages, self._candidates)
        except Exception as error:  # noqa: BLE001 - damage may raise anything; check the next one
            self._unreadable(key, error)
            return
        for kind, text in (*problems, *wrong):
            self._report(kind, key, text)

    def _turn_problems(self, entry: Entry) -> list[Problem]:
        """Return problems of messages whose turn is not the ordinal of an earlier question."""
        problems: list[Problem] = []
        for message in entry.messages:
            if message.begins_turn and message.type == "human":
                self._questions.add(message.ordinal)
            elif message.turn and message.turn not in self._questions and not self.is_damaged:
                problems.append(
                    ("message", f"message {message.id!r}: its turn is not an earlier question")
                )
        return problems

    async def _payloads(self, entry: Entry) -> dict[str, str]:
        """Return the payloads of an entry's messages by id; damaged ones are reported and left out."""
        found = {
            message.id: await self._payload(entry, f"message {message.id!r}", message.payload)
            for message in entry.messages
            if message.payload is not None
        }
        return {id_: text for id_, text in found.items() if text is not None}

    async def _check_facts(self, entry: Entry, key: str) -> None:
        for kind, value in each(entry.facts):
            payloads: dict[str, str] = {}
            for name, ref in kind.payloads(value):
                text = await self._payload(entry, name, ref)
                if text is not None:
                    payloads[name] = text
            for problem in kind.problems(value, entry, payloads, self.subject.codec):
                self._report("checksum", key, problem)

    async def _payload(self, entry: Entry, name: str, ref: PayloadRef) -> str | None:
        conversation = self.subject.conversation
        where = f"of {name} in {entry_id(conversation, entry.number)!r}"
        texts: list[str | None] = []
        start = 0
        for number, end in enumerate(ref.ends, ref.chunk):
            key = chunk_id(conversation, ref.token, number)
            texts.append(self._chunk(where, key, await self._stored_chunk(key), end - start))
            start = end
        if None in texts:
            return None
        whole = "".join(filter(None, texts))
        if digest_of(whole[: ref.own]) != ref.digest:
            key = chunk_id(conversation, ref.token, ref.chunk)
            self._report("checksum", key, f"the payload {where} does not match its digest")
            return None
        return whole

    async def _stored_chunk(self, key: str) -> Document | None:
        """Return a chunk as it is stored, None if it is missing; the chunks after it are read with the same command."""
        if key not in self._chunks:
            self._chunks = await self.subject.inspection.chunks(
                self.subject.conversation, start=key, limit=_CHUNKS_AT_ONCE
            )
        return self._chunks.pop(key, None)

    def _chunk(
        self, where: str, key: str, document: Document | None, characters: int
    ) -> str | None:
        if document is None:
            self._report("payload_missing", key, f"{where}; it cannot be read")
            return None
        self.subject.checked["payload_chunks"] += 1
        try:
            if document.get("conversation") != self.subject.conversation:
                raise TypeError("the field `conversation` names another conversation")
            return decompress(document.get("data"), characters=characters)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            self._report("checksum", key, f"{where}: {error}")
            return None

    async def _orphans(self, keys: Sequence[str], *, is_whole: bool) -> None:
        """Report old chunks of interrupted appends; a repair removes them if the log is not damaged."""
        for token, group in groupby(keys, token_of):  # keys are in order
            age = age_of(token, self.subject.now)
            if token in self._tokens or (age is not None and age <= ORPHAN_AGE):
                continue
            found = list(group)
            repairable = age is not None and is_whole
            removed = (
                repairable
                and self.subject.repair
                and await self.subject.inspection.remove(LOG, found)
            )
            when = "of unknown age" if age is None else f"{age.days} days old"
            problem = f"{len(found)} payload chunks that no entry refers to, {when}"
            self._report(
                "orphan_chunks", found[0], problem, repairable=repairable, repaired=bool(removed)
            )


def _between(last: int, following: int) -> tuple[int, int] | None:
    """Return the first and the last number between two numbers, None if there is none."""
    return (last + 1, following - 1) if following > last + 1 else None


def age_of(token: str, now: datetime) -> timedelta | None:
    """Return the age of a token; None if it contains no time."""
    try:
        made = ObjectId(token).generation_time
    except InvalidId:
        return None
    return now - made.astimezone(UTC)


def token_of(key: str) -> str:
    """Return the token in the key of a chunk."""
    return key.partition("#")[2].partition("#")[0]


def _tokens_in(document: Document) -> set[str]:
    """Return the readable payload tokens in an entry's messages and facts."""
    messages = document.get("messages")
    rows = messages if isinstance(messages, list) else []
    payloads = [message.get("payload") for message in rows if isinstance(message, Mapping)]
    refs = [*payloads, *payloads_in(document.get("facts"))]
    return {str(ref.get("token")) for ref in refs if isinstance(ref, Mapping)}

"""Checks the log of one conversation for damage.

Floor 4. `heads` calls it. It makes one pass over the entries, in batches, with the payload chunks they refer to. Memory
use does not grow with the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from bson.errors import InvalidId

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, EntryMessage, PayloadRef, Repair, Totals
from convstore.messages.compression import decompress
from convstore.messages.encoding import digest_of
from convstore.messages.values import Codec
from convstore.mongo.documents import entry_from, lookup_of
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import LOG, chunk_id, entry_id
from convstore.values.reports import Finding
from convstore.verify.entry import RecentSources, check_entry, check_totals
from convstore.verify.findings import Checked
from convstore.verify.rewinds import ActiveTotals

__all__ = ["ORPHAN_AGE", "LogCheck", "Reporter", "age_of"]

ORPHAN_AGE = timedelta(hours=24)
"""Younger documents may belong to an append in flight, or to an administrator's investigation."""

Reporter = Callable[..., None]
"""A function that takes the fields of a `Finding` as keyword arguments."""

_CHUNKS_AT_ONCE = 16
_HEAVY = 200_000


@dataclass(slots=True)
class LogCheck:
    """Checks the log of one conversation in a single pass.

    Attributes:
        conversation: Id of the conversation.
        inspection: Reads documents.
        codec: Decodes values, including those of unknown types.
        now: The time of the check.
        repair: True to remove orphaned chunks.
        checked: Numbers of documents checked.
        head_entries: The number of the last entry that the head counts.
        wanted: Numbers of entries to keep in `kept`.
        kept: The wanted entries that were found.
        tail: The totals of the last entry that could be read.
        first_at: Time of the first entry, if it could be read.
        is_damaged: True if an entry is missing or unreadable, so that its references are unknown.
        is_broken: True if entries are missing or do not follow each other, and no repair covers that yet.
        is_readable: True if all existing entries could be read.
        keeps_chunks: True to keep chunks without an entry: after a repair, a backup may need them.
    """

    conversation: str
    inspection: Inspection
    codec: Codec
    now: datetime
    repair: bool
    checked: Checked
    head_entries: int = 0
    wanted: frozenset[int] = frozenset()
    kept: dict[int, Entry] = field(default_factory=dict)
    tail: Totals = field(default_factory=Totals)
    first_at: datetime | None = None
    is_damaged: bool = False
    is_broken: bool = False
    is_readable: bool = True
    keeps_chunks: bool = False
    findings: list[Finding] = field(default_factory=list)
    _active: ActiveTotals = field(init=False)
    _next: int = 1
    _is_whole: bool = False
    _messages: int | None = 0
    _link: int | None = 0
    _sources: RecentSources = field(default_factory=RecentSources)
    _was_lost: bool = False
    _repair: Repair | None = None
    _candidates: tuple[Totals, ...] = (Totals(),)

    def __post_init__(self) -> None:
        self._active = ActiveTotals(self.conversation, self.inspection)

    def report(self, kind: str, problem: str, *, document: str, **more: Any) -> None:
        """Add a finding about this conversation."""
        more = {"collection": LOG, **more}
        self.findings.append(
            Finding(kind=kind, document_id=document, problem=problem, conversation=self.conversation, **more)
        )

    async def run(self) -> None:
        """Check all entries and chunks."""
        self._repair = await self._last_repair()
        keys = await self.inspection.chunk_keys(self.conversation)
        unused, after = set(map(_token_of, keys)), ""
        while documents := await self.inspection.entries(self.conversation, after=after):
            for document in documents:
                unused -= _tokens_in(document)
                await self._entry(document)
            after = str(documents[-1]["_id"])
        # A damaged entry may have lost its references to chunks; a backup of the entry would need those chunks.
        self._is_whole = not self.findings and self.tail.entries >= self.head_entries and not self.keeps_chunks
        await self._orphans(keys, unused)
        while keys := await self.inspection.chunk_keys(self.conversation, after=keys[-1]) if keys else []:
            await self._orphans(keys, await self._unused(keys))

    async def _last_repair(self) -> Repair | None:
        """Return the record of the last repair, stored in the last rewind entry; None if it cannot be read."""
        last = await self.inspection.last_entry(self.conversation)
        with suppress(CorruptDocumentError):
            rewind_entry = entry_from(last).totals.rewind_entry if last else 0
            found = await self.inspection.entry(entry_id(self.conversation, rewind_entry)) if rewind_entry else None
            return entry_from(found).repair if found else None
        return None

    async def _unused(self, keys: Sequence[str]) -> set[str]:
        """Return the tokens of chunks that no entry refers to; reads all entries again, without message bodies."""
        unused, after = set(map(_token_of, keys)), ""
        while unused and (documents := await self.inspection.lean_entries(self.conversation, after=after)):
            for document in documents:
                unused -= _tokens_in(document)
            after = str(documents[-1]["_id"])
        return unused

    async def _entry(self, document: Mapping[str, Any]) -> None:
        key = str(document["_id"])
        self._find_holes(key)
        self.checked.entries += 1
        try:
            if document.get("conversation") != self.conversation:
                raise CorruptDocumentError(key, "the field `conversation` names another one")
            entry = entry_from(document)
        except CorruptDocumentError as error:
            self._unreadable(key, error)
            return
        if "lookup" not in document and lookup_of(entry):
            self.report("damaged", "it has no `lookup`, so an index misses it", document=key)
        if self._link not in (None, entry.after):
            self._accept_new_predecessor(entry, key)
        if self._was_lost and not entry.lost:
            self._candidates, self._messages, self._sources = (), None, RecentSources()
        self._was_lost = entry.lost is not None
        if entry.lost and entry.number > (self._repair.until if self._repair else 0):
            self.is_broken = True
            self.report("hole", "it replaces a lost entry, and the log was not recounted since", document=key)
        self._link = entry.totals.link
        counts_again = entry.repair and entry.repair.until == entry.number
        if self._messages is not None and entry.first != self._messages + 1 and not counts_again:
            self.report("hole", f"ordinals continue with {entry.first}, not {self._messages + 1}", document=key)
        self._messages = entry.last
        payloads = await self._payloads(entry)
        if sum(len(message.body) for message in entry.messages) + sum(map(len, payloads.values())) > _HEAVY:
            await asyncio.to_thread(self._check_content, entry, payloads)
        else:
            self._check_content(entry, payloads)
        await self._active.add(entry)
        for problem in self._active.problems(entry):
            if not self._is_recounted(entry):
                self.report("totals", problem, document=key)
        self._record(entry)

    def _accept_new_predecessor(self, entry: Entry, key: str) -> None:
        """Continue after an entry that names another predecessor; its totals cannot be checked."""
        if not self._repair or entry.number not in self._repair.joins:
            self.is_broken = True
            self.report("fork", "it does not follow the entry before it", document=key)
        self._candidates, self._messages, self._sources = (), None, RecentSources()

    def _is_recounted(self, entry: Entry) -> bool:
        """Return True if a repair recounted the totals of an entry."""
        return bool(self._repair and self._repair.entry <= entry.number < self._repair.until)

    def _find_holes(self, key: str) -> None:
        text = key.rpartition(":")[2]
        number = int(text) if text.isdecimal() else self._next
        if number > self._next:
            name = entry_id(self.conversation, self._next)
            self.report("hole", f"{number - self._next} entries are missing before {key!r}", document=name)
            self.is_broken = True
            self._expect_nothing()
        self._next = number + 1

    def _unreadable(self, key: str, error: Exception) -> None:
        self.report("damaged", str(error), document=key)
        self.is_readable = False
        self._expect_nothing()

    def _expect_nothing(self) -> None:
        """Make the next entry unchecked against its predecessor, which cannot be read."""
        self._candidates, self._messages, self._link, self.is_damaged = (), None, None, True
        self._sources = RecentSources()
        self._active.lose()

    def _check_content(self, entry: Entry, payloads: Mapping[str, str]) -> None:
        key = entry_id(self.conversation, entry.number)
        try:
            problems, messages = check_entry(entry, payloads, codec=self.codec)
            problems += self._sources.check(entry)
            wrong, self._candidates = check_totals(entry, messages, self._candidates)
        except Exception as error:  # noqa: BLE001 - damage may raise anything; continue with the next entry
            self._unreadable(key, error)
            return
        for kind, text in (*problems, *wrong):
            self.report(kind, text, document=key)

    def _record(self, entry: Entry) -> None:
        self.checked.messages += len(entry.messages)
        self.tail = entry.totals
        if entry.number == 1:
            self.first_at = entry.at
        if entry.number in self.wanted:
            self.kept[entry.number] = entry

    async def _payloads(self, entry: Entry) -> dict[str, str]:
        """Return the payloads of an entry's messages by id; damaged ones are reported and left out."""
        found: dict[str, str] = {}
        for message in entry.messages:
            if message.payload is not None:
                text = await self._payload(entry, message, message.payload)
                if text is not None:
                    found[message.id] = text
        return found

    async def _payload(self, entry: Entry, message: EntryMessage, ref: PayloadRef) -> str | None:
        texts, start, where = [], 0, entry_id(self.conversation, entry.number)
        for offset in range(0, len(ref.ends), _CHUNKS_AT_ONCE):
            ends = ref.ends[offset : offset + _CHUNKS_AT_ONCE]
            first = ref.chunk + offset
            documents = await self.inspection.chunks(self.conversation, ref.token, first, len(ends))
            for number, end in enumerate(ends, first):
                key = chunk_id(self.conversation, ref.token, number)
                text = self._chunk(f"of message {message.id!r} in {where!r}", key, documents, end - start)
                texts.append(text)
                start = end
        whole = None if None in texts else "".join(text for text in texts if text is not None)
        if whole is not None and digest_of(whole[: ref.own]) != ref.digest:
            key = chunk_id(self.conversation, ref.token, ref.chunk)
            text = f"the payload of message {message.id!r} in {where!r} does not match its digest"
            self.report("checksum", text, document=key)
            return None
        return whole

    def _chunk(self, of: str, key: str, documents: Mapping[str, Mapping[str, Any]], characters: int) -> str | None:
        if key not in documents:
            self.report("payload_missing", f"{of}; it cannot be read", document=key)
            return None
        self.checked.payload_chunks += 1
        try:
            if documents[key].get("conversation") != self.conversation:
                raise TypeError("the field `conversation` names another one")
            return decompress(documents[key].get("data"), characters=characters)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            self.report("checksum", f"{of}: {error}", document=key)
            return None

    async def _orphans(self, keys: Sequence[str], unused: set[str]) -> None:
        """Report chunks left by interrupted appends, once they are old enough; remove them when repairing."""
        orphaned: dict[str, list[str]] = {}
        for key in keys:
            if (token := _token_of(key)) in unused:
                orphaned.setdefault(token, []).append(key)
        for token, found in orphaned.items():
            age = age_of(token, self.now)
            if age is not None and age <= ORPHAN_AGE:
                continue
            is_repairable = age is not None and self._is_whole
            removed = await self.inspection.remove(LOG, found) if is_repairable and self.repair else 0
            when = "of unknown age" if age is None else f"{age.days} days old"
            self.report(
                "orphan_chunks",
                f"{len(found)} payload chunks that no entry refers to, {when}",
                document=found[0],
                repairable=is_repairable,
                repaired=removed > 0,
            )


def age_of(token: str, now: datetime) -> timedelta | None:
    """Return the age of a token; None if it contains no time."""
    try:
        made = ObjectId(token).generation_time
    except InvalidId:
        return None
    return now - made.astimezone(UTC)


def _token_of(key: str) -> str:
    return key.partition("#")[2].partition("#")[0]


def _tokens_in(document: Mapping[str, Any]) -> set[str]:
    """Return the payload tokens in an entry's messages, as far as they can be read."""
    messages = document.get("messages")
    found = messages if isinstance(messages, list) else []
    payloads = (message.get("payload") for message in found if isinstance(message, Mapping))
    return {str(payload.get("token")) for payload in payloads if isinstance(payload, Mapping)}

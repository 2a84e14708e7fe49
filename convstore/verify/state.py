"""Check the state of one conversation and its summaries, and restore a lost state.

A state can be derived from the log and the stored summaries, except that a compaction was undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.rows import rows_of
from convstore.log.state import LeadingSystem, State, ViewRecord, restored, system_of
from convstore.log.summary import SummaryRecord
from convstore.mongo.collection import Document
from convstore.mongo.documents import entry_from
from convstore.mongo.keys import LOG, SUMMARIES, entry_id, state_id, summary_id
from convstore.mongo.number_pools import check_pool
from convstore.mongo.state_documents import (
    changes_in,
    current_summary,
    moves_in,
    state_document,
    state_from,
    summary_in,
    system_document,
    views_in,
)
from convstore.mongo.summaries import summary_from
from convstore.mongo.versions import is_newer
from convstore.verify.findings import ORPHAN_AGE, Subject
from convstore.verify.log import LogCheck

_FIRST_ENTRIES = 20
"""Number of entries that are searched for leading system messages."""


@dataclass(slots=True)
class StateCheck:
    """Checks the state and the summaries of one conversation; `document` is the state, read before the log."""

    subject: Subject
    document: Document | None
    _digests: dict[str, bytes] = field(default_factory=dict)

    def _report(self, problem: str, **outcome: bool) -> None:
        self.subject.report("state", LOG, state_id(self.subject.conversation), problem, **outcome)

    def _report_summary(self, token: str, problem: str) -> None:
        self.subject.report(
            "summary", SUMMARIES, summary_id(self.subject.conversation, token), problem
        )

    async def run(self, check: LogCheck) -> None:
        """Check the state against the log and the summaries, and the summaries against the log.

        If a newer convstore wrote the state or a summary, they are not checked.
        """
        if self.document and is_newer(self.document, "state"):
            return
        found = await self._summaries()
        if found is None:
            return
        records, is_whole = found
        state = await self._state(check)
        named = self._compare(state, records) if state else None
        self._check_places(records)
        if state is None:
            return
        # If some summaries cannot be read, unused ones cannot be determined.
        used = records if named is None or not is_whole else named
        for record in records.values():
            if record.token in used:
                await self._check_range(record)
            else:
                await self._unused(record)
        await self._check_hints(state, check)

    def _check_places(self, records: Mapping[str, SummaryRecord]) -> None:
        for record in records.values():
            if problem := _misplaced(record, records):
                self._report_summary(record.token, problem)

    async def _summaries(self) -> tuple[dict[str, SummaryRecord], bool] | None:
        """Return the readable summaries by token, and True if all are readable; None if a newer convstore wrote one."""
        found: dict[str, SummaryRecord] = {}
        is_whole = True
        async with aclosing(self.subject.stored_in(SUMMARIES)) as documents:
            async for document in documents:
                self.subject.checked["summaries"] += 1
                if is_newer(document, "summary"):
                    return None
                record = self._summary(document)
                if record is None:
                    is_whole = False
                    continue
                self._digests[record.token] = record.digest
                # Texts are dropped, because the texts of all summaries together may be large.
                found[record.token] = replace(record, text="", messages=(), folded=(), results=())
        return found, is_whole

    async def _state(self, check: LogCheck) -> State | None:
        if self.document is None:
            first = check.kept.get(1)
            inspection = self.subject.inspection
            if (
                first
                and self.subject.is_old(first.at)
                and not await inspection.state(self.subject.conversation)
            ):
                await self._restore(check, "the state of the conversation is missing")
            return None
        try:
            token = current_summary(self.document)[0]
            (*_, (_, last)) = [(0, ""), *changes_in(self.document)]
            if token != last:
                raise CorruptDocumentError(
                    str(self.document["_id"]), "its current summary is not the last one"
                )
            summary = summary_in(self.document) if token else None
            check_pool(self.document, through=check.tail.sources_through)
            return state_from(self.document, summary)
        except CorruptDocumentError as error:
            await self._restore(check, error.problem)
            return None

    async def _restore(self, check: LogCheck, problem: str) -> None:
        subject = self.subject
        is_readable = check.is_readable and not check.is_damaged
        is_repaired = False
        if is_readable and subject.repair:
            records: list[SummaryRecord] = []
            async for document in subject.stored_in(SUMMARIES):
                with suppress(CorruptDocumentError):  # it was reported before
                    records.append(summary_from(document))
            stored = (self.document or {}).get("revision")
            following = stored + 1 if isinstance(stored, int) else 0
            revision = max(int(subject.now.timestamp()), following)
            active = check.active.messages
            last = check.tail.messages
            fits = [
                record
                for record in records
                if record.last <= last and record.gaps == active.gaps(record.last)
            ]
            state = restored(
                subject.conversation, records, fits.__contains__, revision=revision, at=subject.now
            )
            is_repaired = await subject.inspection.replace_state(
                self.document, state_document(state)
            )
        self._report(problem, repairable=is_readable, repaired=is_repaired)

    def _summary(self, document: Document) -> SummaryRecord | None:
        try:
            return summary_from(document)
        except CorruptDocumentError as error:
            self.subject.report("damaged", SUMMARIES, str(document["_id"]), error.problem)
            return None

    def _compare(self, state: State, found: Mapping[str, SummaryRecord]) -> set[str] | None:
        """Compare the state with the summaries; return the tokens of those that it uses, None if that is unknown."""
        token, digest = current_summary(self.document or {})
        if token in found and digest != self._digests[token]:
            self._report_summary(token, "the copy of the current summary differs from it")
        committed, missing = _chain(found, state.newest)
        for name in sorted({missing, token, *state.aside} - {"", *found}):
            self._report_summary(name, "the state refers to it, but it is missing")
        if missing:
            return None
        if state.versions != len(committed):
            problem = f"it refers to {len(committed)} summaries, but counts {state.versions}"
            self.subject.report("summary", LOG, state_id(self.subject.conversation), problem)
            return None
        return committed

    async def _unused(self, record: SummaryRecord) -> None:
        """Report an old summary that no document refers to; a repair removes it."""
        subject = self.subject
        if subject.now - record.at > ORPHAN_AGE:
            key = summary_id(subject.conversation, record.token)
            removed = bool(subject.repair and await subject.inspection.remove(SUMMARIES, [key]))
            problem = "it was never the current summary, and no document refers to it"
            subject.report(
                "summary_unused", SUMMARIES, key, problem, repairable=True, repaired=removed
            )

    async def _check_range(self, record: SummaryRecord) -> None:
        key = entry_id(self.subject.conversation, record.entry)
        entry = await self.subject.inspection.entry(key) or {}
        first = entry.get("first")
        count = entry.get("count")
        holds = (
            isinstance(first, int)
            and isinstance(count, int)
            and first <= record.last <= first + count - 1
        )
        if not holds or not 1 <= record.first <= record.last:
            text = (
                f"it replaces messages {record.first} to {record.last}, which are not in the "
                "entry it names"
            )
            self._report_summary(record.token, text)

    async def _check_hints(self, state: State, check: LogCheck) -> None:
        stored = dict((self.document or {}).get("views") or {})
        valid = {
            key: view
            for key, view in stored.items()
            if key in state.views and _is_of(check, state.views[key])
        }
        if len(valid) < len(stored):
            await self._replace_field(
                "views", valid, "a stored record of views is damaged or does not match the log"
            )
        await self._check_moves()
        if self.document and self.document.get("system") is not None:
            await self._check_system(state.system, check)

    async def _check_moves(self) -> None:
        """Check the moves of records, which are stored for past views without a stamp."""
        stored = (self.document or {}).get("moves") or {}
        sound: dict[str, Any] = {}
        for key in stored if isinstance(stored, Mapping) else ():
            with suppress(CorruptDocumentError):
                moves_in({"moves": stored}, key)
                sound[key] = stored[key]
        if len(sound) < len(stored):
            await self._replace_field(
                "moves", sound, "the stored moves of a record of views are damaged"
            )

    async def _check_system(self, system: LeadingSystem | None, check: LogCheck) -> None:
        """Compare the leading system messages with those of the log, unless loads ignore them because of a rewind."""
        found = None if check.is_damaged else await self._derived_system(check)
        if system is None or (found and system.gaps == found.gaps and not _is_same(system, found)):
            whole = system_document(found, self.subject.conversation) if found else None
            await self._replace_field(
                "system", whole, "its leading system messages differ from those of the log"
            )

    async def _derived_system(self, check: LogCheck) -> LeadingSystem | None:
        """Return the leading system messages of the log; None if one of its first entries is damaged."""
        active = check.active.messages
        conversation = self.subject.conversation
        first = active.read_from(1)
        documents = await self.subject.inspection.entries(
            conversation,
            after=entry_id(conversation, first - 1),
            through=entry_id(conversation, first + _FIRST_ENTRIES),
        )
        damaged = {item.document_id for item in check.subject.findings}
        if any(str(document["_id"]) in damaged for document in documents):
            return None
        entries = [entry_from(document) for document in documents]
        found = system_of(rows_of(active.of(entries)), "", active.gaps)
        if found is None:
            return None
        counters = {entry.totals.counter for entry in entries if entry.first <= found.through}
        return replace(found, counter=counters.pop()) if len(counters) == 1 else found

    async def _replace_field(self, name: str, value: Any, problem: str) -> None:
        subject = self.subject
        repaired = subject.repair and await subject.inspection.set_hint(
            self.document or {}, name, value
        )
        self._report(problem, repairable=True, repaired=repaired)


def _is_same(system: LeadingSystem, other: LeadingSystem) -> bool:
    """Return True if leading system messages are equal; sizes by different counters are not compared."""
    left_out: dict[str, Any] = {"content_digest": b""}  # not stored in states
    if system.counter != other.counter:
        left_out |= {"tokens": 0, "view_tokens": 0}
    pair = [[replace(message, **left_out) for message in each.messages] for each in (system, other)]
    return pair[0] == pair[1] and system.through == other.through


def record_entries(state: Mapping[str, Any] | None) -> set[int]:
    """Return the numbers of the entries in a state's records of views."""
    return {record.entry for record in views_in(state or {}).values()}


def _is_of(check: LogCheck, record: ViewRecord) -> bool:
    """Return True if the entry in a record contains the start, or is later than the log after a restore."""
    if record.start <= 1 or record.entry > check.tail.entries:
        return True
    entry = check.kept.get(record.entry)
    return entry is not None and entry.first <= record.start <= entry.last


def _misplaced(record: SummaryRecord, found: Mapping[str, SummaryRecord]) -> str:
    """Return the problem of a summary compared with earlier ones, or ""."""
    previous = found.get(record.previous)
    parent = found.get(record.parent)
    if (previous and record.version != previous.version + 1) or (
        not record.previous and record.version != 1
    ):
        return "its version does not follow that of the previous summary"
    if parent and (record.first != parent.first or record.last <= parent.last):
        return (
            "it does not begin with the same message as the summary it extends, "
            "or does not end later"
        )
    return ""


def _chain(found: Mapping[str, SummaryRecord], token: str) -> tuple[set[str], str]:
    """Return the tokens of a summary and of all earlier ones, and the first missing token, or ""."""
    chain: set[str] = set()
    while token and token not in chain:
        if token not in found:
            return chain, token
        chain.add(token)
        token = found[token].previous
    return chain, ""

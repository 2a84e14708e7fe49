"""Checks the state of one conversation and its summaries, and restores a state that was lost.

Floor 4. `heads` calls it, after the check of the log. Everything in a state can be derived again from the log and the
stored summaries, but for an undone compaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, Totals
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.log.state import LeadingSystem, State, ViewStart, restored
from convstore.log.summary import SummaryRecord
from convstore.mongo.documents import entry_from, summary_from
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import LOG, SUMMARIES, entry_id, state_id, summary_id
from convstore.mongo.state_documents import changes_in, current_summary, state_document, state_from, summary_in
from convstore.values.reports import Finding
from convstore.verify.findings import Checked
from convstore.verify.log import ORPHAN_AGE, LogCheck

__all__ = ["StateCheck", "is_wrong_start", "start_entries"]

_IN_FLIGHT = timedelta(minutes=2)


@dataclass(slots=True)
class StateCheck:
    """Checks the state and the summaries of one conversation.

    Attributes:
        conversation: Id of the conversation.
        inspection: Reads and repairs documents.
        now: The time of the check.
        repair: True to repair what can be derived.
        checked: Numbers of documents checked.
        document: The state as it was read before the log; None if it was missing.
        findings: The findings.
    """

    conversation: str
    inspection: Inspection
    now: datetime
    repair: bool
    checked: Checked
    document: Mapping[str, Any] | None
    findings: list[Finding] = field(default_factory=list)
    _digests: dict[str, bytes] = field(default_factory=dict)

    def _report(self, kind: str, problem: str, *, document: str = "", collection: str = LOG, **more: Any) -> None:
        key = document or state_id(self.conversation)
        self.findings.append(
            Finding(
                kind=kind,
                collection=collection,
                document_id=key,
                problem=problem,
                conversation=self.conversation,
                **more,
            )
        )

    async def run(self, check: LogCheck) -> None:
        """Check the state against the log and the summaries, and the summaries against the log."""
        found, is_whole = dict[str, SummaryRecord](), True
        async for document in self._stored_summaries():
            self.checked.summaries += 1
            record = self._summary(document)
            is_whole = is_whole and record is not None
            if record is not None:
                self._digests[record.token] = record.digest
                # Texts are dropped, because those of all summaries together may be large.
                found[record.token] = replace(record, text="", messages=(), folded=(), results=())
        state = await self._state(check)
        named = self._compare(state, found) if state else None
        for record in found.values():
            if problem := _misplaced(record, found):
                key = summary_id(self.conversation, record.token)
                self._report("summary", problem, document=key, collection=SUMMARIES)
            if state:
                await self._covers(record, is_named=named is None or record.token in named or not is_whole)
        if state:
            await self._check_hints(state, check)

    async def _stored_summaries(self) -> AsyncIterator[Mapping[str, Any]]:
        after = ""
        while documents := await self.inspection.documents_of(SUMMARIES, self.conversation, after=after):
            for document in documents:
                yield document
            after = str(documents[-1]["_id"])

    async def _state(self, check: LogCheck) -> State | None:
        """Return the state; report and restore a missing or damaged one."""
        self.document = self.document or await self.inspection.state(self.conversation)
        if self.document is None:
            is_new = check.first_at is None or self.now - check.first_at < _IN_FLIGHT
            if check.tail.entries and not is_new:
                await self._restore(check, "the state of the conversation is missing")
            return None
        try:
            changes_in(self.document)
            summary = summary_in(self.document) if current_summary(self.document)[0] else None
            return state_from(self.document, summary)
        except CorruptDocumentError as error:
            await self._restore(check, str(error))
            return None

    async def _restore(self, check: LogCheck, problem: str) -> None:
        is_readable, is_repaired = check.is_readable and not check.is_damaged, False
        if is_readable and self.repair:
            records = [record async for document in self._stored_summaries() if (record := _record(document))]
            stored = (self.document or {}).get("revision")
            revision = max(int(self.now.timestamp()), stored + 1 if isinstance(stored, int) else 0)
            rewinds, last = await self._rewinds(check.tail), check.tail.messages
            state = restored(self.conversation, records, rewinds, last=last, revision=revision, at=self.now)
            is_repaired = await self.inspection.replace_state(self.document, state_document(state))
        self._report("state", problem, repairable=is_readable, repaired=is_repaired)

    async def _rewinds(self, tail: Totals) -> Rewinds:
        found = (
            await self.inspection.entry(entry_id(self.conversation, tail.rewind_entry)) if tail.rewind_entry else None
        )
        return Rewinds.of(entry_from(found)) if found else NO_REWINDS

    def _summary(self, document: Mapping[str, Any]) -> SummaryRecord | None:
        key = str(document["_id"])
        try:
            record = summary_from(document)
            if (key, document.get("conversation")) != (summary_id(self.conversation, record.token), self.conversation):
                raise CorruptDocumentError(key, "the key, the conversation and the token do not agree")
        except CorruptDocumentError as error:
            self._report("damaged", str(error), document=key, collection=SUMMARIES)
            return None
        return record

    def _compare(self, state: State, found: Mapping[str, SummaryRecord]) -> set[str] | None:
        """Compare the state with the summaries; return the tokens of all that it refers to, None if that is unclear."""
        token, digest = current_summary(self.document or {})
        if token in found and digest != self._digests[token]:
            key = summary_id(self.conversation, token)
            self._report(
                "summary",
                "the copy of the current summary differs from it",
                document=key,
                collection=SUMMARIES,
            )
        committed, missing = _chain(found, state.newest)
        for name in sorted({missing, token, state.aside} - {"", *found}):
            key = summary_id(self.conversation, name)
            self._report("summary", "the state refers to it, but it is missing", document=key, collection=SUMMARIES)
        if not missing and state.versions != len(committed):
            self._report("summary", f"it refers to {len(committed)} summaries, but counts {state.versions}")
        return committed if not missing and state.versions == len(committed) else None

    async def _covers(self, record: SummaryRecord, *, is_named: bool) -> None:
        """Check that a summary covers existing messages, and that the state or another summary refers to it."""
        key = summary_id(self.conversation, record.token)
        if not is_named:
            if self.now - record.at > ORPHAN_AGE:
                removed = self.repair and await self.inspection.remove(SUMMARIES, [key])
                self._report(
                    "summary_unused",
                    "it was never the current summary, and no document refers to it",
                    document=key,
                    collection=SUMMARIES,
                    repairable=True,
                    repaired=bool(removed),
                )
            return
        entry = await self.inspection.entry_span(entry_id(self.conversation, record.entry))
        first, count = (entry or {}).get("first"), (entry or {}).get("count")
        holds = isinstance(first, int) and isinstance(count, int) and first <= record.last <= first + count - 1
        if not holds or not 1 <= record.first <= record.last:
            text = f"it replaces messages {record.first} to {record.last}, which are not in the entry it names"
            self._report("summary", text, document=key, collection=SUMMARIES)

    async def _check_hints(self, state: State, check: LogCheck) -> None:
        """Check the starts of views and the leading system messages, which loads can find again."""
        tail, kept = check.tail, check.kept
        wrong = [one for one in state.starts if is_wrong_start(one, kept.get(one.entry), tail)]
        if wrong:
            await self._drop("starts", "a stored start of views does not match the log")
        if state.system and not await self._has_messages(state.system):
            await self._drop("system", "its leading system messages are not those of the log")

    async def _has_messages(self, system: LeadingSystem) -> bool:
        for message in system.messages:
            stored = await self.inspection.entry(message.entry) or {}
            found = [one for one in stored.get("messages", ()) if isinstance(one, Mapping)]
            if message.digest not in [one.get("digest") for one in found if one.get("id") == message.id]:
                return False
        return True

    async def _drop(self, name: str, problem: str) -> None:
        repaired = self.repair and await self.inspection.drop_from_state(self.document or {}, name)
        self._report("state", problem, repairable=True, repaired=repaired)


def start_entries(state: Mapping[str, Any] | None) -> set[int]:
    """Return the numbers of the entries that a state's starts of views name, as far as they can be read."""
    starts = (state or {}).get("starts")
    found = [one for one in starts if isinstance(one, list) and len(one) > 2] if isinstance(starts, list) else []
    return {one[2] for one in found if isinstance(one[2], int)}


def is_wrong_start(start: ViewStart, entry: Entry | None, tail: Totals) -> bool:
    """Return True if a start of views names a message that is not in its entry, given that entry."""
    if not start.entry or start.entry > tail.entries:
        return False
    return entry is None or not entry.first <= start.first <= entry.last


def _record(document: Mapping[str, Any]) -> SummaryRecord | None:
    try:
        return summary_from(document)
    except CorruptDocumentError:
        return None  # reported before


def _misplaced(record: SummaryRecord, found: Mapping[str, SummaryRecord]) -> str:
    """Return the problem of a summary compared with earlier ones, "" if there is none."""
    previous, parent = found.get(record.previous), found.get(record.parent)
    if (previous and record.version != previous.version + 1) or (not record.previous and record.version != 1):
        return "its version does not follow that of the previous summary"
    if parent and (record.first != parent.first or record.last <= parent.last):
        return "it does not begin with the same message as the summary it extends, or does not end later"
    return ""


def _chain(found: Mapping[str, SummaryRecord], token: str) -> tuple[set[str], str]:
    """Return the tokens of a summary and all earlier ones, and the first missing token, "" if none is missing."""
    chain: set[str] = set()
    while token and token not in chain:
        if token not in found:
            return chain, token
        chain.add(token)
        token = found[token].previous
    return chain, ""

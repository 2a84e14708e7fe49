"""Checks one conversation: its head, its log, its summaries and its annotations.

Floor 4. `verifier` calls it. Findings are reported only if the conversation still exists afterwards, because one that
is deleted meanwhile has holes everywhere. Documents younger than the longest append are not reported, because they may
belong to an append in flight.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, Totals
from convstore.log.summary import SummaryRecord
from convstore.messages.values import Codec
from convstore.mongo.bson_values import from_stored, stored_number, utc
from convstore.mongo.documents import summary_document, summary_from, totals_document
from convstore.mongo.heads import Head, head_from
from convstore.mongo.inspection import Inspection, log_fields
from convstore.mongo.keys import ANNOTATIONS, HEADS, SUMMARIES, annotation_id, entry_id, summary_id
from convstore.mongo.log import Log
from convstore.runtime.clock import Clock
from convstore.values.reports import Finding
from convstore.verify.findings import Checked, Findings, Recheck
from convstore.verify.log import ORPHAN_AGE, LogCheck
from convstore.verify.repair import Repairer

__all__ = ["ConversationCheck"]

_IN_FLIGHT = timedelta(minutes=2)
_NO_START = [0, 0, 0, 0, ""]
_BREAKS = ("hole", "fork")


@dataclass(slots=True)
class ConversationCheck:
    """Checks one conversation, found by its head.

    Attributes:
        document: The stored head.
        inspection: Reads and repairs documents.
        log: Reads the newest totals, and inserts the entries of a repair.
        codec: Decodes values, including those of unknown types.
        clock: Gives the times of the entries of a repair.
        now: The time of the check.
        findings: Collects the findings.
        recheck: A suspected problem of the head that a writer may be about to fix; checked a second time.
    """

    document: Mapping[str, Any]
    inspection: Inspection
    log: Log
    codec: Codec
    clock: Clock
    now: datetime
    findings: Findings
    recheck: Recheck | None = None
    _found: list[Finding] = field(default_factory=list)

    @property
    def conversation(self) -> str:
        """Return the id of the conversation, "" if the head does not name it."""
        found = self.document.get("conversation")
        return found if isinstance(found, str) else ""

    async def run(self) -> None:
        """Check everything, report the findings, and repair if asked to."""
        checked = Checked()
        if not self.conversation:
            _, problem = self._head()
            self._report("head", problem or "it does not name its conversation")
        else:
            check = await self._look_at_log()
            if check.is_broken:
                check = await self._repair_and_check_again(check)
            self._found += check.findings
            checked = check.checked
            head, problem = self._head()
            await self._compare(head, problem, check)
            await self._summaries(head, checked)
            await self._annotations(checked, check.tail.messages)
        if self._found and not await self._still_exists():
            return
        for name, number in asdict(checked).items():
            setattr(self.findings.checked, name, getattr(self.findings.checked, name) + number)
        for finding in self._found:
            self.findings.add(finding)
        self.findings.advance()

    async def _look_at_log(self, *, keeps_chunks: bool = False) -> LogCheck:
        head, _ = self._head()
        head_entries = head.totals.entries if head else 0
        wanted = frozenset({head.start[2] if head else 0, head_entries})
        names = (self.conversation, self.inspection, self.codec, self.now, self.findings.repair, Checked())
        check = LogCheck(*names, head_entries, wanted, keeps_chunks=keeps_chunks)
        await check.run()
        return check

    async def _repair_and_check_again(self, check: LogCheck) -> LogCheck:
        """Repair a log whose entries do not follow each other, if asked to, and check it again."""
        broken = [one for one in check.findings if one.kind in _BREAKS]
        repairs = check.is_readable and self.findings.repair and await self._still_exists() and await self._repair_log()
        if not repairs:
            update = {"repairable": check.is_readable}
            check.findings = [one.model_copy(update=update) if one in broken else one for one in check.findings]
            return check
        again = await self._look_at_log(keeps_chunks=True)
        remaining = {(one.kind, one.document_id) for one in again.findings}
        done = {"repairable": True, "repaired": True}
        self._found += [one.model_copy(update=done) for one in broken if (one.kind, one.document_id) not in remaining]
        return again

    async def _repair_log(self) -> bool:
        """Repair the log and refresh the head; return False if other writers took the number in every try."""
        recount_entry = await Repairer(self.conversation, self.inspection, self.log, self.codec, self.clock).run()
        if recount_entry is None:
            return False
        totals = totals_document(recount_entry.totals)
        changes: dict[str, Any] = {
            "totals": totals,
            "start": [recount_entry.number, *_NO_START[1:]],
            "updated_at": recount_entry.at,
        }
        if await self.inspection.set_head(self.document, changes):
            self.document = {**self.document, **changes}
        else:  # a writer refreshed the head meanwhile, and will do so again within seconds
            self.document = await self.inspection.head(str(self.document["_id"])) or self.document
        return True

    def _report(self, kind: str, problem: str, *, document: str = "", collection: str = HEADS, **more: Any) -> None:
        key = document or str(self.document["_id"])
        self._found.append(
            Finding(
                kind=kind,
                collection=collection,
                document_id=key,
                problem=problem,
                conversation=self.conversation,
                **more,
            )
        )

    def _head(self) -> tuple[Head | None, str]:
        try:
            return head_from(self.document), ""
        except CorruptDocumentError as error:
            return None, str(error)

    async def _still_exists(self) -> bool:
        now = await self.inspection.head(str(self.document["_id"]))
        return now is not None and now.get("conversation") == self.document.get("conversation")

    async def _compare(self, head: Head | None, problem: str, check: LogCheck) -> None:
        """Compare the head with the log."""
        tail = check.tail
        if head is None:
            await self._repair_head("head", problem, self._rebuilt(check), closes=True)
            return
        if self._is_wrong_start(head, check.kept.get(head.start[2]), tail):
            problem = "the stored start of the view does not match the log"
            await self._repair_head("head_start", problem, {"start": _NO_START}, only_if_unchanged=True)
        if outdated := self._outdated_totals(head, check):
            changes, closes = self._head_changes(head, tail), self._is_old(head.open_until)
            self.recheck = Recheck(*outdated, log_fields(self.document), tail.entries, changes, closes)

    def _outdated_totals(self, head: Head, check: LogCheck) -> tuple[str, str] | None:
        """Return kind and text of the head's problem, unless a writer may be about to refresh the head."""
        at_head = check.kept.get(head.totals.entries)
        then = at_head.totals if at_head else Totals()
        log_updated_at, ahead = head.totals.updated_at, head.totals.entries - check.tail.entries
        if ahead > 0 or head.totals != then or (log_updated_at and head.updated_at < log_updated_at):
            if check.is_damaged or not self._is_old(head.updated_at):
                return None
            lost = f"; the log has {ahead} entries fewer than the head counts" if ahead > 0 else ""
            return "head_totals", f"its totals differ from those of the log{lost}"
        if ahead < 0 and self._is_old(check.tail.updated_at):
            lists = "listings read them from the log each time" if head.open_until else "listings are out of date"
            return "head_behind", f"its totals lack the last {-ahead} entries; {lists}"
        return None

    def _is_old(self, moment: datetime | None) -> bool:
        return moment is None or self.now - moment > _IN_FLIGHT

    def _is_wrong_start(self, head: Head, entry: Entry | None, tail: Totals) -> bool:
        rewind_entry, revision, number, first, _ = head.start
        if rewind_entry > max(tail.rewind_entry, head.totals.rewind_entry) or revision > head.revision:
            return True
        return bool(number) and number <= tail.entries and (entry is None or not entry.first <= first <= entry.last)

    @staticmethod
    def _head_changes(head: Head, tail: Totals) -> dict[str, Any]:
        # Setting a title counts as an update, so the date never goes back.
        return {"totals": totals_document(tail), "updated_at": max(head.updated_at, tail.updated_at or head.updated_at)}

    def _rebuilt(self, check: LogCheck) -> dict[str, Any] | None:
        """Return the fields of a damaged head that follow from the log; None if they do not repair it."""
        changes: dict[str, Any] = {"totals": totals_document(check.tail), "start": _NO_START}
        moments = {"updated_at": check.tail.updated_at, "created_at": check.first_at}
        changes |= {
            name: moment
            for name, moment in moments.items()
            if moment and not isinstance(self.document.get(name), datetime)
        }
        try:
            head_from({**self.document, **changes, "open_until": None})
        except CorruptDocumentError:
            return None
        return changes

    async def _repair_head(
        self,
        kind: str,
        problem: str,
        changes: Mapping[str, Any] | None,
        *,
        only_if_unchanged: bool = False,
        closes: bool = False,
    ) -> None:
        """Report a problem of the head, and repair it unless the head was changed meanwhile."""
        if only_if_unchanged and not await self.inspection.is_same(self.document):
            return
        repaired = False
        if changes and self.findings.repair:
            repaired = await self.inspection.set_head(self.document, changes, closes=closes)
            self.document = {**self.document, **changes} if repaired else self.document
        self._report(kind, problem, repairable=bool(changes), repaired=repaired)

    async def _summaries(self, head: Head | None, checked: Checked) -> None:
        found: dict[str, SummaryRecord] = {}
        after, is_whole = "", True
        while documents := await self.inspection.documents_of(SUMMARIES, self.conversation, after=after):
            for document in documents:
                checked.summaries += 1
                record = self._summary(document)
                is_whole = is_whole and record is not None
                if head and head.summary and record and record.token == head.summary.token:
                    self._compare_summaries(head.summary, record)
                if record is not None:
                    # Texts are dropped, because those of all summaries together may be large.
                    found[record.token] = replace(record, text="", messages=(), folded=(), results=())
            after = str(documents[-1]["_id"])
        if head is None:
            return
        committed, missing = _chain(found, head.newest)
        current = head.summary.token if head.summary else ""
        for token in sorted({missing, current, head.aside} - {"", *found}):
            name = summary_id(self.conversation, token)
            self._report("summary", "the head refers to it, but it is missing", document=name, collection=SUMMARIES)
        if not missing and head.versions != len(committed):
            self._report("summary", f"it refers to {len(committed)} summaries, but counts {head.versions}")
        retry_if_stale = is_whole and not missing and head.versions == len(committed)
        for record in found.values():
            if problem := _misplaced(record, found):
                self._report(
                    "summary", problem, document=summary_id(self.conversation, record.token), collection=SUMMARIES
                )
            await self._covers(record, is_named=record.token in committed or not retry_if_stale)

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

    def _compare_summaries(self, at_head: SummaryRecord, record: SummaryRecord) -> None:
        if summary_document(at_head) != summary_document(record):
            self._report("summary", "the copy of the current summary differs from the summary")

    async def _covers(self, record: SummaryRecord, *, is_named: bool) -> None:
        """Check that a summary covers existing messages, and that the head or another summary refers to it."""
        key = summary_id(self.conversation, record.token)
        if not is_named:
            if self.now - record.at > ORPHAN_AGE:
                removed = self.findings.repair and await self.inspection.remove(SUMMARIES, [key])
                text = "it was never the current summary, and no document refers to it"
                self._report(
                    "summary_unused",
                    text,
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

    async def _annotations(self, checked: Checked, last: int) -> None:
        after = ""
        while documents := await self.inspection.documents_of(ANNOTATIONS, self.conversation, after=after):
            for document in documents:
                checked.annotations += 1
                problem, ordinal = self._annotation_problem(document)
                if problem:
                    self._report("damaged", problem, document=str(document["_id"]), collection=ANNOTATIONS)
                elif not 1 <= ordinal <= last:
                    last = max(last, await self._last())
                    if not 1 <= ordinal <= last:
                        text = "there is no message with its ordinal"
                        self._report("annotation", text, document=str(document["_id"]), collection=ANNOTATIONS)
            after = str(documents[-1]["_id"])

    async def _last(self) -> int:
        """Return the current last ordinal; the largest integer if it cannot be read, so that no ordinal is too high."""
        try:
            return (await self.log.last_totals(self.conversation)).messages
        except CorruptDocumentError:
            return sys.maxsize

    def _annotation_problem(self, document: Mapping[str, Any]) -> tuple[str, int]:
        """Return the problem of an annotation, "" if there is none, and its ordinal."""
        try:
            ordinal = stored_number(document["ordinal"])
            if document["_id"] != annotation_id(self.conversation, ordinal):
                return "the key and the ordinal do not agree", 0
            if document["conversation"] != self.conversation:
                return "the field `conversation` names another one", 0
            utc(document["at"])
            for text in document.get("values", {}).values():
                self.codec.decode(from_stored(text))
        except Exception as error:  # noqa: BLE001 - damage may raise anything; continue with the next document
            return repr(error), 0
        return "", ordinal


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

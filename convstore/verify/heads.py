"""Checks one conversation: its head, its log, its state and its annotations.

Floor 4. `verifier` calls it. Findings are reported only if the conversation still exists afterwards, because one that
is deleted meanwhile has holes everywhere. Documents younger than the longest append are not reported, because they may
belong to an append in flight.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, Totals
from convstore.log.state import NO_START, ViewStart
from convstore.messages.values import Codec
from convstore.mongo.bson_values import from_stored, stored_number, utc
from convstore.mongo.documents import totals_document
from convstore.mongo.heads import Head, head_from
from convstore.mongo.inspection import Inspection, log_fields
from convstore.mongo.keys import ANNOTATIONS, HEADS, SEARCH, annotation_id
from convstore.mongo.log import Log
from convstore.mongo.state_documents import start_document
from convstore.runtime.clock import Clock
from convstore.values.reports import Finding
from convstore.verify.findings import Checked, Findings, Recheck
from convstore.verify.log import LogCheck
from convstore.verify.repair import Repairer
from convstore.verify.segments import check_segments
from convstore.verify.state import StateCheck, is_wrong_start, start_entries

__all__ = ["ConversationCheck"]

_IN_FLIGHT = timedelta(minutes=2)
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
    _state: Mapping[str, Any] | None = None

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
            repair = self.findings.repair
            state = StateCheck(self.conversation, self.inspection, self.now, repair, checked, self._state)
            await state.run(check)
            self._found += state.findings
            await self._annotations(checked, check.tail.messages)
            await self._segments(checked)
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
        self._state = await self.inspection.state(self.conversation)
        wanted = frozenset({head.start.entry if head else 0, head_entries, *start_entries(self._state)})
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
            "start": start_document(ViewStart(recount_entry.number)),
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
        if self._is_wrong_start(head, check.kept.get(head.start.entry), tail):
            problem = "the stored start of the view does not match the log"
            await self._repair_head("head_start", problem, {"start": start_document(NO_START)}, only_if_unchanged=True)
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
        is_newer = head.start.rewind_entry > max(tail.rewind_entry, head.totals.rewind_entry)
        return is_newer or is_wrong_start(head.start, entry, tail)

    @staticmethod
    def _head_changes(head: Head, tail: Totals) -> dict[str, Any]:
        # Setting a title counts as an update, so the date never goes back.
        return {"totals": totals_document(tail), "updated_at": max(head.updated_at, tail.updated_at or head.updated_at)}

    def _rebuilt(self, check: LogCheck) -> dict[str, Any] | None:
        """Return the fields of a damaged head that follow from the log; None if they do not repair it."""
        changes: dict[str, Any] = {"totals": totals_document(check.tail), "start": start_document(NO_START)}
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

    async def _segments(self, checked: Checked) -> None:
        repair = self.findings.repair
        checked.search_segments, problems = await check_segments(self.inspection, self.conversation, repair=repair)
        for key, problem in problems:
            self._report("segment", problem, document=key, collection=SEARCH, repairable=True, repaired=repair)

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

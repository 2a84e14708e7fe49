"""Checks one conversation: its log, its head, its state, its annotations and its search segments.

Findings are reported only if the conversation still exists afterwards, because one that is deleted meanwhile has holes
everywhere. Documents younger than the longest append are not reported, because they may belong to an append in flight.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime

from convstore.exceptions import CorruptDocumentError, SchemaVersionError
from convstore.log.entry import Entry
from convstore.mongo.annotations import state_in, values_in
from convstore.mongo.bson_values import utc
from convstore.mongo.collection import Document
from convstore.mongo.drafts import draft_in
from convstore.mongo.keys import ANNOTATIONS, DRAFTS, HEADS, LOG, application_state_id, state_id
from convstore.mongo.number_pools import UNRESERVED, lost_reservation
from convstore.mongo.versions import is_newer
from convstore.values.scope import Scope
from convstore.verify.findings import Findings, Subject
from convstore.verify.heads import check_head, read_head
from convstore.verify.log import LogCheck
from convstore.verify.repair import Repairer
from convstore.verify.segments import check_segments
from convstore.verify.state import StateCheck, record_entries

_BREAKS = ("hole", "fork")
_ANNOTATION_FIELDS = {"_id", "conversation", "ordinal", "at", "values", "names"}
_STATE_FIELDS = {"_id", "conversation", "revision", "at", "state"}


@dataclass(slots=True)
class ConversationCheck:
    """Checks the conversation that a head names; `repairer` repairs its log."""

    head: Document
    subject: Subject
    repairer: Repairer
    _state: Document | None = None

    async def run(self, findings: Findings) -> None:
        """Check everything, and repair it if asked to."""
        subject = self.subject
        if not subject.conversation:
            problem = read_head(self.head)[1] or "it does not name its conversation"
            subject.report("head", HEADS, str(self.head["_id"]), problem)
        else:
            check = await self._with_numbers(await self._checked_log())
            await check_head(subject, self.head, check)
            await StateCheck(subject, self._state).run(check)
            await _check_annotations(subject, check)
            await _check_draft(subject)
            scope: Scope = () if read_head(self.head)[1] else tuple(self.head["scope"].items())
            await check_segments(subject, scope, self.repairer.index)
        if not subject.findings or await self._still_exists():
            findings.add(subject)

    async def _checked_log(self) -> LogCheck:
        check = await self._check_log()
        if check.is_broken:
            check = await self._repaired_log(check)
        self.subject.findings += check.subject.findings
        self.subject.checked = check.subject.checked
        return check

    async def _with_numbers(self, check: LogCheck) -> LogCheck:
        """Reserve numbers that children have and whose reservation the log lost; return the check of the log then.

        Without that the next source of the conversation would get the number of a child's source.
        """
        through = lost_reservation(self._state or {}, through=check.tail.sources_through)
        is_whole = check.is_readable and not (check.is_damaged or check.is_broken)
        if not (through and is_whole and self.subject.repair and await self._still_exists()):
            return check
        entry = await self.repairer.reserve(check.tail, through)
        if entry is None:
            return check
        await self._refresh_head(entry)
        key = state_id(self.subject.conversation)
        self.subject.report("state", LOG, key, UNRESERVED, repairable=True, repaired=True)
        return await self._check_log(keeps_chunks=True)

    async def _repaired_log(self, check: LogCheck) -> LogCheck:
        """Repair entries that do not follow each other, if asked to, and check the log again."""
        found = check.subject.findings
        broken = [finding for finding in found if finding.kind in _BREAKS]
        repairs = check.is_readable and self.subject.repair and await self._still_exists() and await self._repair_log()
        if not repairs:
            update = {"repairable": check.is_readable}
            check.subject.findings = [item.model_copy(update=update) if item in broken else item for item in found]
            return check
        again = await self._check_log(keeps_chunks=True)
        remaining = {(finding.kind, finding.document_id) for finding in again.subject.findings}
        fixed = [finding for finding in broken if (finding.kind, finding.document_id) not in remaining]
        outcome = {"repairable": True, "repaired": True}
        self.subject.findings += [finding.model_copy(update=outcome) for finding in fixed]
        return again

    async def _check_log(self, *, keeps_chunks: bool = False) -> LogCheck:
        head, _ = read_head(self.head)
        head_entries = head.entry.number if head else 0
        self._state = await self.subject.inspection.state(self.subject.conversation)
        wanted = frozenset({1, head_entries, *record_entries(self._state)})
        subject = replace(self.subject, checked=Counter(), findings=[])
        check = LogCheck(subject, head_entries, wanted, keeps_chunks=keeps_chunks)
        await check.run()
        return check

    async def _repair_log(self) -> bool:
        """Repair the log and refresh the head; return False if other writers took the number in every try."""
        recount_entry = await self.repairer.run()
        if recount_entry is None:
            return False
        await self._refresh_head(recount_entry)
        return True

    async def _refresh_head(self, entry: Entry) -> None:
        """Name the new last entry in the head, unless a writer has refreshed it meanwhile."""
        inspection = self.subject.inspection
        changes = {"entry": [entry.number, entry.totals.link], "written_at": entry.at}
        await inspection.set_head(self.head, changes)
        self.head = await inspection.head(str(self.head["_id"])) or self.head

    async def _still_exists(self) -> bool:
        now = await self.subject.inspection.head(str(self.head["_id"]))
        return now is not None and now.get("conversation") == self.head.get("conversation")


async def _check_annotations(subject: Subject, check: LogCheck) -> None:
    """Check that annotations can be read and belong to a message.

    A repair removes those beyond the end of a log that is whole: the next message to get the ordinal would get them.
    """
    last, is_whole = check.tail.messages, not (check.is_damaged or check.is_broken)
    async with aclosing(
        subject.documents(subject.inspection.documents_of, ANNOTATIONS, subject.conversation)
    ) as documents:
        async for document in documents:
            subject.checked["annotations"] += 1
            key = str(document["_id"])
            try:
                if key == application_state_id(subject.conversation):
                    _check_application_state(subject, document)
                    continue
                ordinal, at = _annotation(subject, document)
            except SchemaVersionError as error:
                subject.report("newer", ANNOTATIONS, key, str(error))
                continue
            except Exception as error:  # noqa: BLE001 - damage may raise anything; continue with the next document
                subject.report("damaged", ANNOTATIONS, key, getattr(error, "problem", repr(error)))
                continue
            # A young one may belong to a message that was appended after the log was checked.
            if ordinal < 1 or (ordinal > last and subject.is_old(at)):
                removed = bool(is_whole and subject.repair and await subject.inspection.remove(ANNOTATIONS, [key]))
                problem = "there is no message with its ordinal"
                subject.report("annotation", ANNOTATIONS, key, problem, repairable=is_whole, repaired=removed)


async def _check_draft(subject: Subject) -> None:
    """Check that a draft can be read; a repair removes one that cannot, as no read shows it. A newer one stays."""
    async with aclosing(subject.documents(subject.inspection.documents_of, DRAFTS, subject.conversation)) as documents:
        async for document in documents:
            try:
                if not is_newer(document, "draft"):
                    draft_in(document)
            except CorruptDocumentError as error:
                key = str(document["_id"])
                removed = bool(subject.repair and await subject.inspection.remove(DRAFTS, [key]))
                subject.report("damaged", DRAFTS, key, error.problem, repairable=True, repaired=removed)


def _check_application_state(subject: Subject, document: Document) -> None:
    """Raise any error if the state that the application keeps is damaged."""
    _, text = state_in(document)
    _check_fields(document, _STATE_FIELDS)
    subject.codec.decode(text)
    utc(document["at"])


def _check_fields(document: Document, fields: set[str]) -> None:
    if unknown := document.keys() - fields:
        raise ValueError(f"nothing reads its field {min(unknown)!r}")


def _annotation(subject: Subject, document: Document) -> tuple[int, datetime]:
    """Return ordinal and date of an annotation; raise any error if it is damaged."""
    ordinal, values = values_in(document)
    _check_fields(document, _ANNOTATION_FIELDS)
    for text in values.values():
        subject.codec.decode(text)
    return ordinal, utc(document["at"])

"""Check one conversation: its log, its head, its state, its annotations and its search segments.

Findings are reported only if the conversation still exists afterwards, because a conversation that is deleted meanwhile
lacks documents everywhere. Documents younger than the longest append are not reported, because they may belong to an
append in flight.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from convstore.exceptions import CorruptDocumentError, SchemaVersionError
from convstore.mongo.annotations import state_in, values_in
from convstore.mongo.bson_values import utc
from convstore.mongo.collection import Document
from convstore.mongo.drafts import draft_in
from convstore.mongo.keys import (
    ANNOTATIONS,
    DRAFTS,
    HEADS,
    LOG,
    application_state_id,
    first_id,
    state_id,
)
from convstore.mongo.number_pools import UNRESERVED, lost_reservation
from convstore.mongo.versions import is_newer
from convstore.values.reports import Finding
from convstore.values.scope import Scope
from convstore.verify.findings import Findings, Subject
from convstore.verify.heads import check_head, read_head
from convstore.verify.log import LogCheck
from convstore.verify.repair import RepairedCopy, Repairer
from convstore.verify.segments import SearchIndex, check_segments
from convstore.verify.state import StateCheck, record_entries

_BREAKS = ("hole", "fork")
_NOT_FIRST = "; another repair was faster"
_ANNOTATION_FIELDS = {"_id", "conversation", "ordinal", "at", "values", "names"}
_STATE_FIELDS = {"_id", "conversation", "revision", "at", "state"}


@dataclass(slots=True)
class ConversationCheck:
    """Checks the conversation that a head names; `repairer` repairs its log."""

    head: Document
    subject: Subject
    repairer: Repairer
    index: SearchIndex
    _state: Document | None = None

    async def run(self, findings: Findings) -> None:
        """Check everything; repair damage if the subject says so."""
        if not self.subject.conversation:
            problem = read_head(self.head)[1] or "it does not name its conversation"
            self.subject.report("head", HEADS, str(self.head["_id"]), problem)
        else:
            check = await self._with_numbers(await self._checked_log())
            subject = self.subject
            await check_head(subject, self.head, check)
            await StateCheck(subject, self._state).run(check)
            await _check_annotations(subject, check)
            await _check_draft(subject)
            scope: Scope = () if read_head(self.head)[1] else tuple(self.head["scope"].items())
            await check_segments(subject, scope, self.index)
        if self.subject.findings and not await self._still_exists():
            self.subject.findings = await self._replaced_findings()
            if not self.subject.findings:
                return
        findings.add(self.subject)

    async def _replaced_findings(self) -> list[Finding]:
        """Return the breaks of a log that another repair replaced meanwhile; it may have caused the other findings."""
        now = await self.subject.inspection.head(str(self.head["_id"]))
        if now is None:
            return []
        first = first_id(str(now.get("conversation")))
        if first != first_id(self.subject.conversation):
            return []
        return [finding for finding in self.subject.findings if finding.kind in _BREAKS]

    async def _checked_log(self) -> LogCheck:
        check = await self._check_log(self.subject.conversation)
        is_repairable = check.sound_through is not None and check.is_readable
        if is_repairable and self.subject.repair and await self._still_exists():
            check = await self._repaired_log(check)
        elif is_repairable:
            _mark_breaks(check, repairable=True)
        self.subject.findings += check.subject.findings
        self.subject.checked = check.subject.checked
        return check

    async def _repaired_log(self, check: LogCheck) -> LogCheck:
        """Replace the log by a copy of its remaining entries, and return the check of the copy.

        The log is not replaced if that check finds a break, or if another repair was first.
        """
        made = await self._copied(check)
        if made is None:
            return check
        again = await self._check_log(made.target)
        is_sound = again.sound_through is None and again.is_readable
        if not (is_sound and await self.repairer.replace(self.head, made)):
            await self.repairer.drop(made)
            _mark_breaks(check, repairable=is_sound, problem=_NOT_FIRST if is_sound else "")
            return check
        _mark_breaks(check, repairable=True, repaired=True, repaired_as=made.target)
        breaks = [finding for finding in check.subject.findings if finding.kind in _BREAKS]
        self.head = await self.subject.inspection.head(str(self.head["_id"])) or self.head
        self.subject = replace(
            self.subject, conversation=made.target, findings=[*self.subject.findings, *breaks]
        )
        self._state = await self.subject.inspection.state(made.target)
        return again

    async def _copied(self, check: LogCheck) -> RepairedCopy | None:
        """Return a copy of the remaining entries of the log; None, with findings, if that is impossible."""
        try:
            made = await self.repairer.copy(
                self.head, self._state, sound_through=check.sound_through or 0
            )
        except CorruptDocumentError as error:
            # damage since the check, or the conversation is being deleted
            _mark_breaks(check, problem=f"; it cannot be copied: {error.problem}")
            return None
        if made is None:
            _mark_breaks(check, repairable=True, problem=_NOT_FIRST)
        return made

    async def _with_numbers(self, check: LogCheck) -> LogCheck:
        """Reserve again the numbers of children whose reservation the log lost; return the check with the new tail.

        Else the next source of the conversation would get the number of a child's source.
        """
        through = lost_reservation(self._state or {}, through=check.tail.sources_through)
        is_whole = check.is_readable and not check.is_damaged
        if not (through and is_whole and self.subject.repair and await self._still_exists()):
            return check
        entry = await self.repairer.reserve(self.subject.conversation, check.tail, through)
        if entry is None:
            return check
        key = state_id(self.subject.conversation)
        self.subject.report("state", LOG, key, UNRESERVED, repairable=True, repaired=True)
        self._state = await self.subject.inspection.state(self.subject.conversation)
        check.tail = entry.totals
        check.kept[entry.number] = entry
        return check

    async def _check_log(self, conversation: str) -> LogCheck:
        head, _ = read_head(self.head)
        head_entries = head.entry.number if head else 0
        state = await self.subject.inspection.state(conversation)
        if conversation == self.subject.conversation:
            self._state = state
        wanted = frozenset({1, head_entries, *record_entries(state)})
        subject = replace(self.subject, conversation=conversation, checked=Counter(), findings=[])
        check = LogCheck(subject, head_entries, wanted)
        await check.run()
        return check

    async def _still_exists(self) -> bool:
        now = await self.subject.inspection.head(str(self.head["_id"]))
        return now is not None and now.get("conversation") == self.head.get("conversation")


def _mark_breaks(check: LogCheck, *, problem: str = "", **outcome: Any) -> None:
    """Set the outcome of a repair on the findings of breaks in a log."""
    found = check.subject.findings
    for index, finding in enumerate(found):
        if finding.kind in _BREAKS:
            found[index] = finding.model_copy(
                update=outcome | {"problem": finding.problem + problem}
            )


async def _check_annotations(subject: Subject, check: LogCheck) -> None:
    """Check that annotations can be read and belong to a message.

    A repair removes annotations beyond the end of an undamaged log, because the next message with that ordinal would
    get them.
    """
    last = check.tail.messages
    async with aclosing(subject.stored_in(ANNOTATIONS)) as documents:
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
            except Exception as error:  # noqa: BLE001 - damage may raise anything; go on
                subject.report("damaged", ANNOTATIONS, key, getattr(error, "problem", repr(error)))
                continue
            # A recent one may belong to a message that was appended after the log was checked.
            if ordinal < 1 or (ordinal > last and subject.is_old(at)):
                await _report_annotation(subject, check, key)


async def _report_annotation(subject: Subject, check: LogCheck, key: str) -> None:
    """Report an annotation without a message; a repair removes it if the log is not damaged."""
    is_whole = check.sound_through is None and not check.is_damaged
    removed = 0
    if is_whole and subject.repair:
        removed = await subject.inspection.remove(ANNOTATIONS, [key])
    problem = "there is no message with its ordinal"
    subject.report(
        "annotation", ANNOTATIONS, key, problem, repairable=is_whole, repaired=bool(removed)
    )


async def _check_draft(subject: Subject) -> None:
    """Check that a draft can be read; a repair removes a damaged one. A newer one is ignored."""
    async with aclosing(subject.stored_in(DRAFTS)) as documents:
        async for document in documents:
            try:
                if not is_newer(document, "draft"):
                    draft_in(document)
            except CorruptDocumentError as error:
                key = str(document["_id"])
                removed = bool(subject.repair and await subject.inspection.remove(DRAFTS, [key]))
                subject.report(
                    "damaged", DRAFTS, key, error.problem, repairable=True, repaired=removed
                )


def _check_application_state(subject: Subject, document: Document) -> None:
    """Raise any error if the application's state is damaged."""
    _, text = state_in(document)
    _check_fields(document, _STATE_FIELDS)
    subject.codec.decode(text)
    utc(document["at"])


def _check_fields(document: Document, fields: set[str]) -> None:
    if unknown := document.keys() - fields:
        raise ValueError(f"its field {min(unknown)!r} is unknown")


def _annotation(subject: Subject, document: Document) -> tuple[int, datetime]:
    """Return ordinal and date of an annotation; raise any error if it is damaged."""
    ordinal, values = values_in(document)
    _check_fields(document, _ANNOTATION_FIELDS)
    for text in values.values():
        subject.codec.decode(text)
    return ordinal, utc(document["at"])

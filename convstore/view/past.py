"""Rebuilds past views, from a stamp or as of a message.

It reads the log only up to an entry and applies the rewinds, the summary and the policy's record of that time. It never
writes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from convstore.exceptions import (
    ConversationDeletedError,
    CorruptDocumentError,
    InvalidInputError,
    UnknownMessageError,
)
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT
from convstore.log.rows import open_turn
from convstore.log.state import NO_RECORD, State, ViewRecord
from convstore.log.summary import SummaryRecord
from convstore.messages.values import Codec
from convstore.mongo.keys import SUMMARIES, entry_id, summary_id
from convstore.mongo.log import VIEW_FIELDS, StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.models import HistoryReport
from convstore.values.policy import HistoryPolicy, view_key
from convstore.values.scope import Scope, check_id, check_number
from convstore.values.stamps import VIEW_FORMAT, ViewMarks, ViewStamp, check_stamp
from convstore.view.load import Load, entries_needed
from convstore.view.reasons import reasons_of
from convstore.view.render import stamper
from convstore.view.rule import ViewPlan
from convstore.wire.history import History, PastView

_MAX_REASONS = 500

Moment = ViewStamp | str | int | None
"""A stamp, a message id, an ordinal, or None for now."""


class ViewInputs(NamedTuple):
    """The values that a past view depends on, besides its policy.

    Attributes:
        entry: Number of the last entry of the view.
        summary: The summary that it showed.
        marks: The marks in its stamp; None without a stamp.
        record: Without a stamp, the policy's record at that time.
        is_first_use: True if that record is no longer stored, so that the view is planned as at first use.
        is_now: True for the current end of the log. Otherwise, if the last entry belongs to a variant, the variant is
            shown as if it were active.
    """

    entry: int
    summary: SummaryRecord | None
    marks: ViewMarks | None = None
    record: ViewRecord = NO_RECORD
    is_first_use: bool = False
    is_now: bool = False


class PastViews:
    """Builds past views for all conversations of a store."""

    def __init__(self, ends: LogEndReader) -> None:
        self._ends = ends
        self._states = ends.states
        self._reader = ends.reader
        self._counter = ends.reader.counter

    async def view_at(
        self,
        scope: Scope,
        at: Moment,
        policy: HistoryPolicy,
        *,
        reasons_before: int | None,
        has_policy: bool,
    ) -> PastView:
        """Return a past view; see `Conversation.view_at`."""
        if reasons_before is not None:
            check_number(reasons_before, name="reasons_before", minimum=1, maximum=2**53)
        cached = await self._reader.find(scope)
        if (
            cached is None
            and at is not None
            and not (isinstance(at, ViewStamp) and not at.conversation_id)
        ):
            raise _missing(at)
        view = self._empty(cached, policy)
        has_unknown_types = False
        if cached:
            async with self._reader.reading(cached):
                inputs = await self._inputs_at(cached, at, policy)
                if inputs.entry:
                    view, has_unknown_types = await self._load_at(
                        cached, inputs, policy, reasons_before
                    )
        return (
            view
            if has_policy
            else self._with_comparison(view, at, has_unknown_types=has_unknown_types)
        )

    def _empty(self, cached: CachedConversation | None, policy: HistoryPolicy) -> PastView:
        """Return the view before the first message."""
        stamps = stamper(cached.conversation if cached else "", policy, counter=self._counter.name)
        return PastView(messages=[], report=HistoryReport(), policy=policy).sealed(stamps)

    async def _inputs_at(
        self, cached: CachedConversation, at: Moment, policy: HistoryPolicy
    ) -> ViewInputs:
        """Return the inputs of the view that the caller asks for.

        Raises:
            UnknownMessageError: This conversation has no such message, or no view with this stamp.
        """
        key = view_key(policy, self._counter.name)
        if at is None:
            end = await self._ends.read(cached)
            number = end.entries[-1].number if end.entries else 0
            record = end.state.views.get(key, NO_RECORD)
            return ViewInputs(number, end.state.summary, record=record, is_now=True)
        if isinstance(at, ViewStamp):
            if at.conversation_id != cached.conversation:
                raise _missing(at)
            is_same = key == view_key(at.history_policy, self._counter.name)
            marks = at.marks if is_same else None
            return ViewInputs(at.entry, await self._summary(cached, at.summary), marks)
        row = await self._row_at(cached, at)
        return await self._inputs_before(cached, row.entry.number, key)

    async def _row_at(self, cached: CachedConversation, at: str | int) -> StoredMessageRow:
        """Return the message with an id or an ordinal; raise an UnknownMessageError if it does not exist."""
        if isinstance(at, str):
            row = (await self._reader.messages_by_id(cached, [at])).get(at)
        else:
            row = await self._reader.log.message_at(cached.conversation, at)
        if row is None:
            raise _missing(at)
        return row

    async def _inputs_before(self, cached: CachedConversation, entry: int, key: str) -> ViewInputs:
        """Return the inputs of a view at the time of an entry: the summary and the record of that time."""
        changes, moves, is_cut = await self._states.past(cached.conversation, key)
        token = ""
        for seen, changed_to in changes:
            if seen < entry:
                token = changed_to
        records = [move.record for move in moves if move.seen <= entry]
        return ViewInputs(
            entry,
            await self._summary(cached, token),
            record=records[-1] if records else NO_RECORD,
            is_first_use=is_cut and not records,
        )

    async def _summary(self, cached: CachedConversation, token: str) -> SummaryRecord | None:
        if not token:
            return None
        found = await self._ends.summaries.find(cached.conversation, token)
        if found is None:
            if token not in {known for _, known in await self._states.changes(cached.conversation)}:
                raise UnknownMessageError  # a stamp named it
            key = summary_id(cached.conversation, token)
            raise CorruptDocumentError(
                key, "the summary of a past view is missing", collection=SUMMARIES
            )
        return found

    async def _load_at(
        self,
        cached: CachedConversation,
        inputs: ViewInputs,
        policy: HistoryPolicy,
        reasons_before: int | None,
    ) -> tuple[PastView, bool]:
        """Load the view, and return True with it if values of unregistered types are shown in their stored form."""
        try:
            return await self._view(self._reader, cached, inputs, policy, reasons_before), False
        except CorruptDocumentError:
            lenient = Codec()
            lenient.copy_from(self._reader.codec)
            lenient.keep_unknown()
            reader = replace(self._reader, codec=lenient)
            return await self._view(reader, cached, inputs, policy, reasons_before), True

    async def _view(
        self,
        reader: LogReader,
        cached: CachedConversation,
        inputs: ViewInputs,
        policy: HistoryPolicy,
        reasons_before: int | None,
    ) -> PastView:
        """Return the view with one page of its reasons; raise an UnknownMessageError if it never existed."""
        load = await _load_until(reader, cached, inputs, policy)
        marks = inputs.marks
        plan = await load.decide() if marks is None else await _plan_from(load, marks)
        view = await load.show(plan)
        history = load.history(plan, view)
        found = reasons_of(view, load, plan)
        before = [each for each in found if reasons_before is None or each.first < reasons_before]
        page = before[-_MAX_REASONS:]
        left = page[0].first if len(page) < len(before) else None
        reasons = {"reasons": tuple(page), "reasons_before": left}
        fields: dict[str, Any] = dict(history)
        fields["report"] = history.report.model_copy(update=reasons)
        past = PastView(
            **fields,
            entry=inputs.entry,
            ordinal=load.log.tail.messages,
            is_first_use=inputs.is_first_use,
            version=load.summary.version if load.summary else 0,
            summary_reason=load.summary.reason if load.summary else "",
            policy=policy,
        )
        stamps = load.stamper(plan, view)
        return past.sealed(stamps, view.dropped, open_turn(load.rows))

    async def of_variant(
        self, scope: Scope, entry: int, policy: HistoryPolicy, record: ViewRecord
    ) -> tuple[History, ViewRecord]:
        """Return the view of a variant that is not active yet, as of its last entry, and its record.

        `record` comes from the variant's previous view. It is not stored, because the stored record of the policy is
        about the active messages.
        """
        cached = await self._reader.find(scope)
        if cached is None:
            raise ConversationDeletedError("the conversation was deleted; call chat.turn again")
        async with self._reader.reading(cached):
            state = await self._ends.state(cached)
            key = view_key(policy, self._counter.name)
            known = record if record != NO_RECORD else state.views.get(key, NO_RECORD)
            inputs = ViewInputs(entry, state.summary, record=known)
            load = await _load_until(self._reader, cached, inputs, policy)
            plan = await load.decide()
            history = load.history(plan, await load.show(plan))
            return history, load.moved(plan.stored) if load.entries else record

    def _with_comparison(self, view: PastView, at: Moment, *, has_unknown_types: bool) -> PastView:
        """Return the view with the result of a comparison with its stamp, if it has one."""
        if not isinstance(at, ViewStamp):
            return view
        if (stamp := view.stamp) and stamp.digest == at.digest:
            return view.model_copy(update={"match": "exact"})
        difference = _difference(at, self._counter.name, has_unknown_types=has_unknown_types)
        return view.model_copy(update={"match": "differs", "difference": difference})


async def _load_until(
    reader: LogReader, cached: CachedConversation, inputs: ViewInputs, policy: HistoryPolicy
) -> Load:
    """Read the end of the log up to an entry; a variant that this entry belongs to counts as active."""
    tail = cached.tail or await reader.tail(cached)
    before = inputs.entry + 1
    limit = entries_needed(0, tail, policy)
    entries = await reader.log.entries(
        cached.conversation, before=before, limit=limit, fields=VIEW_FIELDS
    )
    if not entries or entries[-1].number != inputs.entry:
        if not 1 <= inputs.entry <= (await reader.log.last_totals(cached.conversation)).entries:
            raise UnknownMessageError
        raise CorruptDocumentError(
            entry_id(cached.conversation, inputs.entry), "the entry is missing"
        )
    last = entries[-1]
    state = State(cached.conversation, last.at, summary=inputs.summary)
    load = Load(reader, policy, Snapshot(cached), state, record=inputs.record)
    load.count(entries)
    log = await reader.snapshot(cached, last.totals, entries)
    if BRANCH.of(last) is not None and not inputs.is_now:
        load.has_hidden = True
        if event := EVENT.of(last):
            branch = await reader.branch(cached, event, through=last.number)
            log = log._replace(tail=branch.totals, active=branch.active(log.active))
    await load.take_snapshot(log)
    load.add_end(await reader.counted(entries))
    load.take_beginning()
    load.system = load.system if load.is_complete and not load.summary else None
    return load


async def _plan_from(load: Load, marks: ViewMarks) -> ViewPlan:
    """Return the plan that a stamp has, reading back to its start."""
    while not load.is_complete and not (load.rows and load.rows[0].message.ordinal <= marks.start):
        await load.read_more()
    # If the view left out every turn, its note needs their number, which the first row of a turn has.
    while (
        not load.is_complete
        and load.begin == len(load.rows)
        and load.rows[-1].message.ordinal < marks.start
    ):
        await load.read_more()
    await load.read_beginning()
    return load.past_plan(load.decoder(), marks)


def check_moment(at: object) -> Moment:
    """Return the moment that a caller asks for if it is valid.

    Raises:
        InvalidInputError: It is not a stamp, message id, ordinal or None.
    """
    if at is None:
        return at
    if isinstance(at, ViewStamp):
        return check_stamp(at)
    if isinstance(at, str):
        return check_id(at, name="at")
    if type(at) is int:
        check_number(at, name="at", minimum=1, maximum=2**53)
        return at
    raise InvalidInputError(
        f"at must be a stamp, or the id or number of a message, not {type(at).__name__}"
    )


def _missing(at: Moment) -> UnknownMessageError:
    return UnknownMessageError("" if isinstance(at, ViewStamp) else str(at))


def _difference(stamp: ViewStamp, counter: str, *, has_unknown_types: bool) -> str:
    """Return the first known reason why a view differs from its stamp."""
    reasons = {
        "adapted": stamp.adapted,
        "view format": stamp.format != VIEW_FORMAT,
        "counter": stamp.counter != counter,
        "type": has_unknown_types,
    }
    return next((name for name, is_true in reasons.items() if is_true), "log")

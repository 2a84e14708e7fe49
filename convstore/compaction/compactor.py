"""Summarises old turns: plans a compaction, asks the summarizer, commits the summary.

A lease keeps a second worker from paying for the same summary. The state accepts a summary only if it has not changed
since the summary was planned, so two workers never both commit. After any failure, history loads as before.

The module is long because planning, asking and committing are one protocol under one lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from convstore.compaction.history import SummaryHistory
from convstore.compaction.plan import plan_compaction, replacement_cuts
from convstore.compaction.strategies import CompactionRequest, CompactionResult, CompactionStrategy
from convstore.exceptions import InvalidInputError, StoreError, SummaryError
from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.rows import Row, leading_system, question_in_progress, rows_of, weigh
from convstore.log.state import NO_RECORD, State
from convstore.log.summary import NAMED_RESULTS, SummaryRecord, is_summary
from convstore.log.turns import answers_among
from convstore.messages.encoding import fields_of
from convstore.messages.provenance import kind_of, without_mark
from convstore.messages.text import indented
from convstore.messages.tokens import count
from convstore.messages.tool_calls import MISSING_TEXT
from convstore.mongo.leases import while_leased
from convstore.runtime.background import Background, settle
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_end import LogEnd, LogEndReader
from convstore.runtime.log_reader import Snapshot
from convstore.sources.shortening import without_media
from convstore.values.models import Compaction
from convstore.values.plain import duration
from convstore.values.policy import CompactionRule, HistoryPolicy, view_key
from convstore.values.scope import Scope
from convstore.wire.history import History

_LOGGER = logging.getLogger("convstore")
_LEASE = timedelta(seconds=60)
_RENEW_SECONDS = 20.0
_MAX_RENEWALS = 30
_FIRST_WAIT = timedelta(seconds=30)
_MAX_DOUBLINGS = 7
_MAX_CHARACTERS = 100_000
_MAX_BODY_CHARACTERS = 1_000_000
_MAX_TRIGGERS = 8
_ENDING_SECONDS = 5.0
_MAX_PROBLEM = 1_000
_TOO_LARGE = (
    "bind max_tokens to the model, so that summaries are shorter, or raise "
    "max_tokens_before_summary"
)
_NO_SUMMARIZER = (
    "this store has no summarizer; "
    "make it with ConversationStore(..., summarizer=RunningSummarizer(model))"
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A planned summary: the log at the time of the plan, the rows to summarise, and the earlier summary to extend."""

    state: State
    log: Snapshot
    rows: Sequence[Row]
    cut: int
    earlier: SummaryRecord | None
    reason: str = ""

    @property
    def folded(self) -> Sequence[Row]:
        return self.rows[: self.cut]


class Compactor:
    """Makes summaries for all conversations of a store."""

    def __init__(
        self,
        ends: LogEndReader,
        history: SummaryHistory,
        background: Background,
        strategy: CompactionStrategy | None,
        policy: HistoryPolicy,
        *,
        wait_seconds: float,
    ) -> None:
        self._reader = ends.reader
        self._ends = ends
        self._states = ends.states
        self._summaries = ends.summaries
        self._codec = self._reader.codec
        self._counter = self._reader.counter
        self._clock = self._reader.clock
        self._history = history
        self._strategy = strategy
        self._wait_seconds = wait_seconds
        self._background = background
        self._view = view_key(policy, self._counter.name)

    @property
    def has_summarizer(self) -> bool:
        """True if the store has a summarizer; without one, `rule` and `compact` raise."""
        return self._strategy is not None

    @property
    def rule(self) -> CompactionRule:
        """The rule that says when turns are summarised; an InvalidInputError without a summarizer."""
        if self._strategy is None:
            raise InvalidInputError(_NO_SUMMARIZER)
        return self._strategy.rule

    def may_be_due(self, history: History, policy: HistoryPolicy, *, later_tokens: int = 0) -> bool:
        """Return True if `compact` may find work after a load under a policy, with `later_tokens` appended since."""
        report = history.report
        has_left = report.left_out_turns > 0 and view_key(policy, self._counter.name) == self._view
        return has_left or report.tokens_unsummarized + later_tokens > self.rule.trigger

    async def compact_in_time(self, scope: Scope) -> Compaction:
        """Run `compact`, but return after a timeout while the summarizer continues in the background."""
        done = await self._background.finish(self.compact(scope), seconds=self._wait_seconds)
        return done or Compaction(
            status="running",
            problem=(
                f"the summarizer was not done after {duration(self._wait_seconds)}; "
                "its summary is committed later"
            ),
        )

    async def compact(self, scope: Scope, *, force: bool = False) -> Compaction:
        """Summarise now if the rule requires it; see `Conversation.compact`."""
        rule = self.rule
        cached = await self._reader.find(scope)
        if cached is None:
            return Compaction(status="not_needed")
        async with self._reader.reading(cached):
            end, log = await self._end(cached)
            wait_until = end.state.wait_until
            if not force and wait_until and wait_until > self._clock.now():
                return Compaction(
                    status="waiting",
                    problem=f"the last try failed; the next one is at {wait_until}",
                )
            plan = await self._plan(end, log, rule, force=force)
        if not plan.cut:
            return Compaction(status="not_needed")
        owner = self._clock.token()
        if not await self._states.lease(plan.state, owner=owner, time=_LEASE):
            return Compaction(
                status="busy", problem="another worker is summarising this conversation"
            )
        return await self._make(plan, owner)

    async def _end(self, cached: CachedConversation) -> tuple[LogEnd, Snapshot]:
        """Return the end of the log; if its summary does not fit, first make the longest one that fits current.

        A rewind may not have done that: its process was killed, or it began before the log had summaries.
        """
        end, log = await self._read_end(cached)
        if end.state.summary is None or log.fits(end.state.summary):
            return end, log
        await self._history.reselect(log)
        return await self._read_end(cached)

    async def _read_end(self, cached: CachedConversation) -> tuple[LogEnd, Snapshot]:
        end = await self._ends.read(cached)
        totals = end.entries[-1].totals if end.entries else Totals()
        return end, await self._reader.snapshot(cached, totals)

    async def _plan(
        self, end: LogEnd, log: Snapshot, rule: CompactionRule, *, force: bool
    ) -> _Plan:
        """Read the messages that are not summarised, and plan how many of them to fold into a summary."""
        totals = log.tail
        earlier = end.state.summary
        earlier = earlier if earlier and log.fits(earlier) else None
        view_start = end.state.views.get(self._view, NO_RECORD).start
        has_left = (earlier.last if earlier else 0) + 1 < view_start <= totals.messages
        if not (force or has_left) and self._is_within(rule, log.active.of(end.entries), earlier):
            return _Plan(end.state, log, (), 0, earlier)
        rows = await self._rows(log, earlier, maximum=_MAX_TRIGGERS * rule.trigger)
        cut = plan_compaction(rows, rule, view_start=view_start if has_left else 0, force=force)
        return _Plan(end.state, log, rows, cut, earlier, _reason(rows, rule, force=force))

    def _is_within(
        self, rule: CompactionRule, entries: Sequence[Entry], earlier: SummaryRecord | None
    ) -> bool:
        """Return True if the last entry alone shows that a finished log is within the limit of the rule."""
        if not entries or not entries[-1].messages:
            return False
        totals = entries[-1].totals
        name = self._counter.name
        if not totals.over or totals.counter != name or (earlier and earlier.counter != name):
            return False
        return totals.view_tokens - (earlier.view_tokens if earlier else 0) <= rule.trigger

    async def _rows(
        self, log: Snapshot, earlier: SummaryRecord | None, *, maximum: int
    ) -> Sequence[Row]:
        """Read rows of about `maximum` tokens in total; a very long log gets several summaries."""
        found: list[Entry] = []
        async with aclosing(
            self._reader.batches(log, start=earlier.entry if earlier else 1)
        ) as batches:
            async for entries in batches:
                found += await self._reader.counted(entries)
                if (
                    sum(message.view_tokens for entry in found for message in entry.messages)
                    >= maximum
                ):
                    break
        rows = rows_of(found, earlier)
        return rows if earlier else rows[len(leading_system(rows)) :]

    async def _make(self, plan: _Plan, owner: str) -> Compaction:
        """Ask the summarizer and commit its summary; always release the lease."""
        wait = None
        try:
            record = await self._record(plan, owner)
            if record is None:
                return Compaction(status="not_needed")
            await self._reader.schema.check()  # the summarizer may have taken minutes
            await self._summaries.insert(plan.log.cached.conversation, record)
            # more may have been appended since
            last = max(plan.log.tail.entries, plan.log.cached.entries)
            is_committed = await self._states.commit(plan.state, record, entry=last, owner=owner)
            if not is_committed:
                # The conversation may have been deleted, and swept, while the summarizer worked.
                await self._summaries.drop(plan.log.cached.conversation, record.token)
            if not is_committed or not await self._still_fits(plan.log.cached, record):
                return Compaction(
                    status="busy", problem="the conversation was rewound or summarised meanwhile"
                )
            found = {record.token: record}
            if record.parent:
                # the public summary also lists the results of the summaries that it extends
                found |= await self._summaries.all(plan.log.cached.conversation)
            return Compaction(
                status="done", summary=self._history.public(record, found, is_current=True)
            )
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - of a summarizer; history loads as before
            doublings = min(plan.state.failures, _MAX_DOUBLINGS)
            wait = self._clock.now() + _FIRST_WAIT * 2**doublings
            name = type(error).__name__
            line = "conversation %s cannot be summarised (%s); the next try is at %s"
            _LOGGER.warning(line, plan.log.cached.conversation, name, wait)
            return Compaction(status="failed", problem=_error_text(error))
        finally:
            with suppress(StoreError):  # the lease expires by itself
                await self._reader.schema.check()
                await settle(self._states.give_back(plan.state, owner=owner, wait_until=wait))

    async def _still_fits(self, cached: CachedConversation, record: SummaryRecord) -> bool:
        """Return True if no rewind made meanwhile invalidates the new summary; otherwise restore an earlier one."""
        async with self._reader.reading(cached):
            log = await self._reader.snapshot(cached)
        await self._history.reselect(log)
        return log.fits(record)

    async def _record(self, plan: _Plan, owner: str) -> SummaryRecord | None:
        """Make the summary; return None if the summarizer has nothing to fold.

        Raises:
            SummaryError: The summary is not usable.
        """
        strategy = self._strategy
        assert strategy is not None  # noqa: S101 - `rule` was read before
        earlier = plan.earlier
        read = plan.rows if strategy.reads_all else plan.folded
        # In full: a later summary would not include parts that are left out here.
        async with self._reader.reading(plan.log.cached):
            messages = await self._whole(plan.log.cached, [row.message for row in read])
        summary_messages: Sequence[BaseMessage] = ()
        if earlier:
            without_results = replace(earlier, results=())
            summary_messages = self._reader.summary_messages(without_results, hint=False)

        async def size(result: CompactionResult) -> int:
            made = await self._build_record(replace(plan, cut=result.cut), owner, result)
            return self._shown(made)

        request = CompactionRequest(
            messages=messages,
            cut=plan.cut,
            size=size,
            cuts=replacement_cuts(plan.rows),
            earlier=earlier.text if earlier else None,
            summary_messages=summary_messages,
            answers=answers_among([row.message for row in read]),
        )
        result = await self._while_leased(plan, owner, strategy.fold(request))
        if result is None:
            return None
        record = await self._build_record(replace(plan, cut=result.cut), owner, result)
        self._check_size(plan, result, record)
        return record

    def _check_size(self, plan: _Plan, result: CompactionResult, record: SummaryRecord) -> None:
        """Raise a SummaryError if a summary is too large, or not smaller than the messages that it replaces."""
        summaries = [message for message in result.messages if is_summary(message)]
        written = sum(count(self._counter, message) for message in summaries)
        if written > self.rule.trigger:
            raise SummaryError(f"the summaries would take {written} tokens; {_TOO_LARGE}")
        if sum(map(len, record.messages)) > _MAX_BODY_CHARACTERS:
            raise SummaryError(
                f"the messages that replace old ones have more than {_MAX_BODY_CHARACTERS:,} "
                f"characters; {_TOO_LARGE}"
            )
        replaced = sum(weigh(plan.rows)[: result.cut])
        if plan.earlier:
            replaced += self._shown(plan.earlier)
        shown = self._shown(record)
        if shown >= replaced:
            raise SummaryError(
                f"the summary was rejected: it takes {shown} tokens, the messages it replaces only "
                f"{replaced}; bind max_tokens to the model, or raise max_tokens_before_summary"
            )

    def _shown(self, record: SummaryRecord) -> int:
        return sum(
            count(self._counter, message) for message in self._reader.summary_messages(record)
        )

    async def _whole(
        self, cached: CachedConversation, messages: Sequence[EntryMessage]
    ) -> list[BaseMessage]:
        whole = await self._reader.decode_all(cached, messages)
        return [without_media(without_mark(message), everywhere=True) for message in whole]

    async def _questions(self, plan: _Plan) -> list[EntryMessage]:
        """Return the questions whose turns continue after the summary, even if an earlier summary covers them.

        These are the question of the turn in which the summary ends, and the question in progress if turns interleave.
        """
        turns = {plan.rows[plan.cut].message.turn, question_in_progress(plan.rows)}
        folded = {row.message.ordinal: row.message for row in plan.folded}
        kept = {row.message.ordinal for row in plan.rows[plan.cut :]}
        found: list[EntryMessage] = []
        for turn in sorted(turns - kept):
            if turn in folded:
                found.append(folded[turn])
            elif plan.log.active.has(turn):
                stored = await self._reader.log.message_at(plan.log.cached.conversation, turn)
                found += [stored.message] if stored else []
        return found

    async def _build_record(
        self, plan: _Plan, owner: str, result: CompactionResult
    ) -> SummaryRecord:
        last = plan.folded[-1]
        text = await self._text(plan, result)
        bodies = self._bodies(plan, result)
        folded = [row.message for row in plan.folded]
        results = [(message.id, message.sources) for message in folded if message.type == "tool"]
        named = [message.name for message in folded if message.is_named]
        shown = result.messages or [HumanMessage(text)]
        record = SummaryRecord(
            token=owner,
            version=plan.state.versions + 1,
            parent="",
            previous=plan.state.newest,
            first=folded[0].ordinal,
            last=last.message.ordinal,
            entry=last.entry.number,
            seen=plan.log.tail.entries,
            active=last.place,
            turns=last.turn,
            view_tokens=last.before + last.message.view_tokens,
            counter=self._counter.name,
            gaps=plan.log.active.gaps(last.message.ordinal),
            text=text,
            model=self._strategy.name if self._strategy else "",
            tokens_in=sum(message.view_tokens for message in folded),
            tokens_out=sum(count(self._counter, message) for message in shown),
            at=self._clock.now(),
            reason=plan.reason,
            results=tuple(reversed(named))[:NAMED_RESULTS],
            folded=tuple(results),
            messages=bodies,
        )
        return _extending(plan.earlier, record)

    async def _text(self, plan: _Plan, result: CompactionResult) -> str:
        """Return the text of the summary, plus the questions of turns that continue, if messages do not show them."""
        text = result.text
        if result.messages:
            return text[-_MAX_CHARACTERS:]  # views show the messages
        is_inside_turn = plan.cut < len(plan.rows) and not plan.rows[plan.cut].message.begins_turn
        questions = await self._questions(plan) if is_inside_turn else []
        for going_on in questions:
            [question] = await self._whole(plan.log.cached, [going_on])
            words = question.text[: _MAX_CHARACTERS // 10]
            text = (
                f"{text}\nThe message of the user that is being worked on: {indented(words, '> ')}"
            )
        if len(text) > _MAX_CHARACTERS:
            raise SummaryError(
                f"the summary has {len(text):,} characters, more than {_MAX_CHARACTERS:,}"
            )
        return text

    def _bodies(self, plan: _Plan, result: CompactionResult) -> tuple[str, ...]:
        """Encode the messages that replace others; tool results among them become stubs."""
        results = {row.message.id: row.message for row in plan.folded if row.message.type == "tool"}
        history: list[BaseMessage] = []
        for message in result.messages:
            if isinstance(message, ToolMessage) and message.id in results:
                history.append(self._reader.stubbed(results[message.id]))
            else:
                history.append(message)
        return tuple(
            self._codec.encode(fields_of(_worded_for_views(message)), omitted=None)
            for message in history
        )

    async def _while_leased(
        self, plan: _Plan, owner: str, work: Coroutine[Any, Any, CompactionResult | None]
    ) -> CompactionResult | None:
        """Await the summarizer while renewing the lease; cancel it if it takes too long or the lease is lost."""
        renewals = 0

        async def renew() -> bool:
            nonlocal renewals
            renewals += 1
            if renewals >= _MAX_RENEWALS:
                raise SummaryError(
                    f"the summarizer took longer than {duration(_MAX_RENEWALS * _RENEW_SECONDS)}"
                )
            await self._reader.schema.check()
            return await self._states.renew(plan.state, owner=owner, time=_LEASE)

        lasts = _LEASE.total_seconds()
        ended = await while_leased(
            work, renew, every=_RENEW_SECONDS, lasts=lasts, ending=_ENDING_SECONDS
        )
        if ended is None:
            raise SummaryError("another worker took over while the summary was written")
        return _result_of(ended)


def _reason(rows: Sequence[Row], rule: CompactionRule, *, force: bool) -> str:
    """Return the reason why rows are summarised, as the end of a sentence."""
    if force:
        return "the application called compact()"
    is_over = sum(weigh(rows)) > rule.trigger
    if is_over:
        return f"more than {rule.trigger:,} tokens were not summarised"
    return "turns had left the view"


def _worded_for_views(message: BaseMessage) -> BaseMessage:
    """Give a synthetic result the text of views, because that of a chain asks the model to call again.

    Other messages are returned unchanged.
    """
    if kind_of(message) == "missing_result":
        return message.model_copy(update={"content": MISSING_TEXT})
    return message


def _result_of(task: asyncio.Future[CompactionResult | None]) -> CompactionResult | None:
    """Return the summarizer's result; raise a SummaryError for errors that are not the summarizer's own."""
    if task.cancelled():
        raise SummaryError("the summarizer was cancelled")
    error = task.exception()
    if error is not None and (isinstance(error, StoreError) or not isinstance(error, Exception)):
        raise SummaryError(_error_text(error)) from error
    return task.result()


def _error_text(error: BaseException) -> str:
    """Return the text of an error, or only its class name if it cannot be formatted."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"[:_MAX_PROBLEM]
    return type(error).__name__


def _extending(earlier: SummaryRecord | None, record: SummaryRecord) -> SummaryRecord:
    """Return a record that also covers the messages of the earlier summary, which it extends."""
    if earlier is None:
        return record
    return replace(
        record,
        parent=earlier.token,
        first=earlier.first,
        active=record.active + earlier.active,
        turns=record.turns + earlier.turns,
        view_tokens=record.view_tokens + earlier.view_tokens,
        counter=record.counter if earlier.counter == record.counter else "",
        tokens_in=record.tokens_in + earlier.tokens_out,
        results=(*record.results, *earlier.results)[:NAMED_RESULTS],
    )

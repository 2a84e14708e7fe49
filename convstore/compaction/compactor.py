"""Summarises old turns: plans, asks the summarizer, commits.

Layer 4. A lease keeps a second worker from paying for the same summary, and the head takes a summary only if it still
is as it was when the summary was planned; so two workers never both commit. Whatever fails, history loads as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from convstore.compaction.history import SummaryHistory
from convstore.compaction.plan import clean_cuts, plan_compaction
from convstore.compaction.strategies import CompactionRequest, CompactionResult, CompactionStrategy
from convstore.exceptions import InvalidInputError, StoreError, SummaryError
from convstore.log.entry import Entry, EntryMessage, RewoundRange
from convstore.log.repairs import corrected
from convstore.log.rewind import active_after
from convstore.log.rows import Row, is_finished, leading_system, rows_of, weigh
from convstore.log.summary import NAMED_RESULTS, SummaryRecord, clipped, fits
from convstore.messages.encoding import fields_of
from convstore.messages.provenance import kind_of, without_mark
from convstore.messages.text import indented
from convstore.messages.tokens import NamedCounter, count
from convstore.messages.tool_calls import MISSING_TEXT
from convstore.messages.values import Codec
from convstore.mongo.heads import Head, Heads
from convstore.mongo.log import Log
from convstore.mongo.summaries import Summaries
from convstore.runtime.background import Background
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import Clock
from convstore.runtime.log_reader import LogReader
from convstore.sources.shortening import without_media
from convstore.values.models import Compaction, History
from convstore.values.policy import CompactionRule
from convstore.values.scope import Scope

__all__ = ["Compactor"]

_LEASE, _RENEW_SECONDS, _MAX_RENEWALS = timedelta(seconds=60), 20.0, 30
_FIRST_WAIT, _MAX_DOUBLINGS = timedelta(seconds=30), 7
_MAX_CHARACTERS, _MAX_BODY_CHARACTERS = 100_000, 1_000_000
_MAX_TRIGGERS, _BATCH = 8, 100
_ENDING_SECONDS = 5.0
_MAX_PROBLEM = 1_000
_TOO_LARGE = "bind max_tokens to the model, so that summaries are shorter, or raise max_tokens_before_summary"
_NO_SUMMARIZER = (
    "this store has no summarizer; make it with ConversationStore(..., summarizer=RunningSummarizer(model))"
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A summary to be made: of which rows, behind which earlier one."""

    head: Head
    cached: CachedConversation
    rewound: tuple[RewoundRange, ...]
    rewind_entry: int
    rows: Sequence[Row]
    cut: int
    earlier: SummaryRecord | None

    @property
    def folded(self) -> Sequence[Row]:
        return self.rows[: self.cut]

    @property
    def is_inside_turn(self) -> bool:
        """Whether the turn that the last message is in goes on behind it."""
        return self.cut < len(self.rows) and self.rows[self.cut].message.type != "human"


class Compactor:
    """Makes summaries."""

    def __init__(
        self,
        reader: LogReader,
        heads: Heads,
        log: Log,
        history: SummaryHistory,
        summaries: Summaries,
        *,
        codec: Codec,
        counter: NamedCounter,
        clock: Clock,
        strategy: CompactionStrategy | None,
        wait_seconds: float,
    ) -> None:
        self._reader, self._heads, self._log = reader, heads, log
        self._history, self._summaries = history, summaries
        self._codec, self._counter, self._clock, self._strategy = codec, counter, clock, strategy
        self._wait_seconds, self._background = wait_seconds, Background()

    @property
    def has_summarizer(self) -> bool:
        """Whether the store has one; without it `rule` and `compact` raise."""
        return self._strategy is not None

    @property
    def rule(self) -> CompactionRule:
        """When turns are summarised.

        Raises:
            InvalidInputError: The store has no summarizer.
        """
        if self._strategy is None:
            raise InvalidInputError(_NO_SUMMARIZER)
        return self._strategy.rule

    def may_be_due(self, history: History, *, later_tokens: int = 0) -> bool:
        """Whether `compact` may find work: after a load, or once so much was appended behind it."""
        return history.report.tokens_unsummarized + later_tokens > self.rule.max_tokens_before_summary

    async def compact_in_time(self, scope: Scope) -> Compaction:
        """`compact`, for callers that must not hang with a summarizer: what takes too long goes on without them."""
        done = await self._background.finish(self.compact(scope), seconds=self._wait_seconds)
        return done or Compaction(
            status="running",
            problem=f"the summarizer was not done after {self._wait_seconds:g} s; what it makes is committed later",
        )

    async def close(self) -> None:
        """Cancel compactions that still run behind `compact_in_time`; their leases are given back."""
        await self._background.close()

    async def compact(self, scope: Scope, *, force: bool = False) -> Compaction:
        """Summarise now if the rule says so; see `Conversation.compact`."""
        rule = self.rule
        head = await self._heads.find(dict(scope))
        cached = self._reader.seen(scope, head)
        if head is None or cached is None:
            return Compaction(status="not_needed")
        if not force and head.wait_until and head.wait_until > self._clock.now():
            return Compaction(status="waiting", problem=f"the last try failed; the next one is at {head.wait_until}")
        async with self._reader.reading(cached):
            plan = await self._plan(head, cached, rule, force=force)
        if not plan.cut:
            return Compaction(status="not_needed")
        owner, now = self._clock.token(), self._clock.now()
        if not await self._heads.lease(dict(scope), head, owner=owner, at=now, until=now + _LEASE):
            return Compaction(status="busy", problem="another worker is summarising this conversation")
        return await self._make(plan, owner)

    async def _plan(self, head: Head, cached: CachedConversation, rule: CompactionRule, *, force: bool) -> _Plan:
        """Read what is not summarised, and decide how much of it is to be."""
        totals = await self._log.last_totals(cached.conversation)
        rewound = await self._reader.gaps(cached, totals.marker)
        earlier = head.summary
        if earlier and (earlier.last > totals.messages or not fits(earlier, rewound)):
            earlier = None
        start = earlier.entry if earlier else active_after(rewound, 1)
        entries = await self._entries(cached, rewound, start, maximum=_MAX_TRIGGERS * rule.max_tokens_before_summary)
        rows = rows_of(corrected(entries, cached.repair), rewound, earlier)
        if earlier is None:
            rows = rows[len(leading_system(rows)) :]
        return _Plan(head, cached, rewound, totals.marker, rows, plan_compaction(rows, rule, force=force), earlier)

    async def _entries(
        self, cached: CachedConversation, rewound: Sequence[RewoundRange], start: int, *, maximum: int
    ) -> list[Entry]:
        """Entries from a number on that hold about so many tokens: a long log is summarised in several summaries."""
        found: list[Entry] = []
        while maximum > 0:
            entries = await self._reader.entries(cached, start=start, before=start + _BATCH)
            entries = await self._reader.counted(entries)
            found += entries
            if len(entries) < _BATCH:
                break
            maximum -= sum(row.message.view_tokens for row in rows_of(entries, rewound))
            start = active_after(rewound, start + _BATCH)
        return found

    async def _make(self, plan: _Plan, owner: str) -> Compaction:
        """Ask the summarizer and commit what it says; give the lease back whatever happens."""
        scope, wait = dict(plan.cached.scope), None
        try:
            record = await self._record(plan, owner)
            if record is None:
                return Compaction(status="not_needed")
            await self._summaries.insert(plan.cached.conversation, record)
            is_committed = await self._heads.commit(scope, plan.head, record, owner=owner, marker=plan.rewind_entry)
            if not is_committed:
                # The conversation may have been deleted, and swept, while the summarizer worked.
                await self._summaries.drop(plan.cached.conversation, record.token)
            if not is_committed or not await self._still_fits(plan.cached, record):
                return Compaction(status="busy", problem="the conversation was rewound or summarised meanwhile")
            found = {record.token: record}
            if record.parent:
                found |= await self._summaries.all(plan.cached.conversation)  # their results are told, too
            return Compaction(status="done", summary=self._history.public(record, found, is_current=True))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a summarizer raises, history loads as before
            doublings = min(plan.head.failures, _MAX_DOUBLINGS)
            wait = self._clock.now() + _FIRST_WAIT * 2**doublings
            return Compaction(status="failed", problem=_error_text(error))
        finally:
            with suppress(StoreError):  # it ends by itself
                await self._heads.give_back(scope, plan.head, owner=owner, wait_until=wait)

    async def _still_fits(self, cached: CachedConversation, record: SummaryRecord) -> bool:
        """Whether nothing was rewound while a summary was made; if so, the one before it is the current one again."""
        async with self._reader.reading(cached):
            rewind_entry = (await self._log.last_totals(cached.conversation)).marker
            rewound = await self._reader.gaps(cached, rewind_entry)
        await self._history.reselect(cached.scope, rewound, marker=rewind_entry)
        return fits(record, rewound)

    async def _record(self, plan: _Plan, owner: str) -> SummaryRecord | None:
        """Let the summary be made; None if there is nothing that the summarizer would fold.

        Raises:
            SummaryError: What came is not a summary.
        """
        strategy, earlier = self._strategy, plan.earlier
        assert strategy is not None  # noqa: S101 - asked for its rule before
        messages = await self._shown_messages(plan, len(plan.rows) if strategy.reads_all else plan.cut)

        async def size(result: CompactionResult) -> int:
            return self._shown(await self._build_record(replace(plan, cut=result.cut), owner, result))

        request = CompactionRequest(
            messages=messages,
            cut=plan.cut,
            size=size,
            cuts=_cuts(plan.rows),
            earlier=earlier.text if earlier else None,
            summary_messages=self._reader.standing(replace(earlier, results=())) if earlier else (),
        )
        result = await self._while_leased(plan, owner, strategy.fold(request))
        if result is None:
            return None
        record = await self._build_record(replace(plan, cut=result.cut), owner, result)
        shown, replaced = self._shown(record), sum(weigh(plan.rows)[: result.cut])
        if result.messages and shown > self.rule.max_tokens_before_summary:
            raise SummaryError(f"what stands for old messages would take {shown} tokens; {_TOO_LARGE}")
        if sum(map(len, record.messages)) > _MAX_BODY_CHARACTERS:
            raise SummaryError(
                f"what stands for old messages has more than {_MAX_BODY_CHARACTERS:,} characters; {_TOO_LARGE}"
            )
        replaced += self._shown(earlier) if earlier else 0
        if shown >= replaced:
            raise SummaryError(
                f"the summary takes {shown} tokens, what it stands for {replaced}; "
                "it was refused: bind max_tokens to the model, or raise max_tokens_before_summary"
            )
        return record

    def _shown(self, record: SummaryRecord) -> int:
        return sum(count(self._counter, message) for message in self._reader.standing(record))

    async def _shown_messages(self, plan: _Plan, number: int) -> list[BaseMessage]:
        """The first messages in full: what is left out now would be in no later summary. Media have a description."""
        messages = [row.message for row in plan.rows[:number]]
        async with self._reader.reading(plan.cached):
            return await self._whole(plan.cached, messages)

    async def _whole(self, cached: CachedConversation, messages: Sequence[EntryMessage]) -> list[BaseMessage]:
        whole = await self._reader.decode_whole(cached, messages)
        return [without_media(without_mark(one), everywhere=True) for one in whole]

    async def _question(self, plan: _Plan) -> EntryMessage | None:
        """The human message of the turn that the summary ends in; an earlier summary may stand for it."""
        messages, before = [row.message for row in plan.folded], plan.folded[0].message.ordinal
        while messages:
            found = next((message for message in reversed(messages) if message.type == "human"), None)
            if found:
                return found
            page = await self._reader.page(plan.cached, before=before, after=None, limit=_BATCH)
            messages = [message for message, _ in page]
            before = messages[0].ordinal if messages else 0
        return None

    async def _build_record(self, plan: _Plan, owner: str, result: CompactionResult) -> SummaryRecord:
        earlier, last = plan.earlier, plan.folded[-1]
        text, bodies = await self._text(plan, result), self._bodies(plan, result)
        name = self._counter.name
        results = [(row.message.id, row.message.sources) for row in plan.folded if row.message.type == "tool"]
        named = [row.message.name for row in plan.folded if row.message.is_named]
        tokens_in = sum(row.message.view_tokens for row in plan.folded) + (earlier.tokens_out if earlier else 0)
        return SummaryRecord(
            token=owner,
            version=plan.head.versions + 1,
            parent=earlier.token if earlier else "",
            previous=plan.head.newest,
            first=earlier.first if earlier else plan.folded[0].message.ordinal,
            last=last.message.ordinal,
            entry=last.entry,
            live=last.place + (earlier.live if earlier else 0),
            turns=last.turn + (earlier.turns if earlier else 0),
            view_tokens=last.before + last.message.view_tokens + (earlier.view_tokens if earlier else 0),
            counter=name if earlier is None or earlier.counter == name else "",
            gaps=clipped(plan.rewound, last.message.ordinal),
            text=text,
            model=self._strategy.name if self._strategy else "",
            tokens_in=tokens_in,
            tokens_out=sum(count(self._counter, message) for message in result.messages or [HumanMessage(text)]),
            at=self._clock.now(),
            results=(*reversed(named), *(earlier.results if earlier else ()))[:NAMED_RESULTS],
            folded=tuple(results),
            messages=bodies,
        )

    async def _text(self, plan: _Plan, result: CompactionResult) -> str:
        """The text of the summary, behind it the question if its turn goes on and no message shows it.

        Raises:
            SummaryError: It is too long.
        """
        text = result.text
        if result.messages:
            return text[-_MAX_CHARACTERS:]  # views show the messages
        if plan.is_inside_turn and (last_question := await self._question(plan)):
            [question] = await self._whole(plan.cached, [last_question])
            words = question.text[: _MAX_CHARACTERS // 10]
            text = f"{text}\nThe message of the user that is being worked on: {indented(words, '> ')}"
        if len(text) > _MAX_CHARACTERS:
            raise SummaryError(f"the summary has {len(text):,} characters, more than {_MAX_CHARACTERS:,}")
        return text

    def _bodies(self, plan: _Plan, result: CompactionResult) -> tuple[str, ...]:
        """The messages that take the place of others as they are kept, results among them as stubs."""
        results = {row.message.id: row.message for row in plan.folded if row.message.type == "tool"}
        history = [
            self._reader.stubbed(results[str(message.id)])
            if isinstance(message, ToolMessage) and message.id in results
            else message
            for message in result.messages
        ]
        return tuple(self._codec.encode(fields_of(_in_words_of_views(message)), omitted=None) for message in history)

    async def _while_leased(
        self, plan: _Plan, owner: str, work: Coroutine[Any, Any, CompactionResult | None]
    ) -> CompactionResult | None:
        """Await the summarizer and keep the lease meanwhile; what takes too long, or lost its lease, is cancelled.

        Raises:
            SummaryError: That was so.
        """
        task = asyncio.ensure_future(work)
        try:
            for _ in range(_MAX_RENEWALS):
                if (await asyncio.wait({task}, timeout=_RENEW_SECONDS))[0]:
                    return _answer(task)
                until = self._clock.now() + _LEASE
                if not await self._heads.renew(dict(plan.cached.scope), plan.head, owner=owner, until=until):
                    raise SummaryError("another worker took over while the summary was written")
            raise SummaryError(f"the summarizer took longer than {_MAX_RENEWALS * _RENEW_SECONDS:.0f} s")
        finally:
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # asked for, so not logged
            task.cancel()
            await asyncio.wait({task}, timeout=_ENDING_SECONDS)  # one that does not end is not waited for


def _in_words_of_views(message: BaseMessage) -> BaseMessage:
    """The result of an open call in the words of views: not in those of a chain, which ask to call again."""
    return message.model_copy(update={"content": MISSING_TEXT}) if kind_of(message) == "missing_result" else message


def _cuts(rows: Sequence[Row]) -> list[int]:
    """Where messages may take the place of others: not inside a turn in progress whose question has large parts.

    Those stay with the log, and the question is shown whole while its turn goes on.
    """
    cuts = [cut for cut, _ in clean_cuts(rows)]
    last_question = max((index for index, row in enumerate(rows) if row.message.type == "human"), default=0)
    is_kept = bool(rows) and not is_finished(rows) and rows[last_question].message.payload is not None
    return [cut for cut in cuts if cut <= last_question] if is_kept else cuts


def _answer(task: asyncio.Future[CompactionResult | None]) -> CompactionResult | None:
    """What the summarizer gave.

    Raises:
        SummaryError: It was cancelled by itself, or failed with an error of a store, which may be another than ours,
            or with one that is no `Exception`, such as the group of a cancelled task group.
    """
    if task.cancelled():
        raise SummaryError("the summarizer was cancelled")
    error = task.exception()
    if error is not None and (isinstance(error, StoreError) or not isinstance(error, Exception)):
        raise SummaryError(_error_text(error)) from error
    return task.result()


def _error_text(error: BaseException) -> str:
    """What an error says; one that cannot even be written has its name."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"[:_MAX_PROBLEM]
    return type(error).__name__

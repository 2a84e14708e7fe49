"""Summarise a chain in steps: older sections, oversized pairs of the last ones, and many sections into one.

Floor 1. It makes the model calls, several at a time; `plan` decides which ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.chain.models import ChainSummarizerConfig, ChainSummary
from convstore.chain.parse import check_messages
from convstore.chain.plan import (
    first_kept,
    fold_cost,
    fold_reserve,
    is_one_summary,
    is_worth_it,
    messages_to_keep,
    oversized,
    sections_to_fold,
)
from convstore.chain.prompts import MIN_PROMPT_BYTES
from convstore.chain.structure import Header, Section
from convstore.chain.work import Job, Request, Work, failed
from convstore.exceptions import InvalidInputError, SummaryError
from convstore.values.policy import CompactionRule
from convstore.values.scope import check_number

__all__ = ["ChainModel", "ChainSummarizer", "SummaryHandler"]

SummaryHandler = Callable[[str], Awaitable[str]]
"""Coroutine function from the text of a request to the summary."""


@runtime_checkable
class ChainModel(Protocol):
    """A LangChain model, or anything else with its `ainvoke`."""

    async def ainvoke(self, messages: list[BaseMessage], /) -> Any:
        """Return the model's reply to a list of messages."""


_Step = Callable[[Work], Awaitable[None]]


class ChainSummarizer:
    """Keeps the chain of a long run small: old messages become summaries, recent ones stay word for word.

    The last pair of the last section is always kept, calls and results always match, and the size never grows. A second
    run on the result makes no call and changes nothing; only a failed call for an oversized pair is retried. If any
    other call fails, the input messages are returned with the error. Cancellation is not caught: it cancels all calls
    in flight.

    Args:
        handler: A coroutine function from text to text, or a LangChain model. Called concurrently.
        config: The limits; the defaults if None.
        max_concurrency: Maximum number of concurrent calls.
        max_prompt_bytes: Maximum size of a request in UTF-8 bytes, at least 8,192. Longer input is summarised in parts,
            each message whole in one or several of them, and further requests join the summaries.
        rule: When a store calls it, by the size of the messages that are not summarised yet. `config` decides the rest.
            If the result would be larger than this, a store folds more sections, and from half of it on the questions
            too.

    Raises:
        InvalidInputError: The handler is neither, or a number is out of bounds.
    """

    def __init__(
        self,
        handler: SummaryHandler | ChainModel,
        *,
        config: ChainSummarizerConfig | None = None,
        max_concurrency: int = 32,
        max_prompt_bytes: int = 64 * 1024,
        rule: CompactionRule | None = None,
    ) -> None:
        if not isinstance(handler, ChainModel) and not callable(handler):
            raise InvalidInputError(f"handler must be a coroutine function or a LangChain model, not {handler!r}")
        self.config = ChainSummarizerConfig() if config is None else config
        if rule is not None and not isinstance(rule, CompactionRule):
            raise InvalidInputError(f"rule must be a CompactionRule, not {type(rule).__name__}")
        self.rule = rule or CompactionRule(keep_last_turns=self.config.keep_sections)
        self._handler = handler
        self._max_concurrency = check_number(max_concurrency, name="max_concurrency", minimum=1)
        self._max_prompt_bytes = check_number(max_prompt_bytes, name="max_prompt_bytes", minimum=MIN_PROMPT_BYTES)

    @property
    def name(self) -> str:
        """Name of the model or of the function. It is stored with each summary."""
        names = (getattr(self._handler, key, None) for key in ("model_name", "model", "model_id", "__name__"))
        return next((name for name in names if isinstance(name, str) and name), type(self._handler).__name__)

    async def summarize(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Summarise a chain as configured: older sections first, then the last sections, then the fold.

        Args:
            messages: A chain, which is repaired if necessary. The input is never changed.

        Returns:
            The messages that replace it, and a record of the calls. A failed call is reported in its `error`.

        Raises:
            MalformedChainError: An item of `messages` is not a LangChain message.
        """
        steps: list[_Step] = [self._summarize_sections]
        steps += [self._rotate] if self.config.preserve_last else []
        steps += [self._fold] if self.config.use_qa else []
        return await self._carry_out(messages, steps)

    async def summarize_sections(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Replace the body of each section by one summary pair, except in the last `keep_sections` sections.

        All sections are summarised concurrently.

        Raises:
            MalformedChainError: An item of `messages` is not a LangChain message.
        """
        return await self._carry_out(messages, [self._summarize_sections])

    async def rotate_last_section(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Bring each of the last `keep_sections` sections within `last_section_bytes`, the newest first.

        First, each pair above `max_pair_bytes` becomes a summary; if its call fails, the pair is kept. If the section
        is still too large, the older pairs become one summary, and the newest that fit three quarters of the limit are
        kept.

        Raises:
            MalformedChainError: An item of `messages` is not a LangChain message.
        """
        return await self._carry_out(messages, [self._rotate])

    async def fold_qa_pairs(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Fold old sections into one if there are too many or they are too large.

        The newest sections that fit the limits are kept, at least `keep_sections` of them. The folded section counts
        as one.

        Raises:
            MalformedChainError: An item of `messages` is not a LangChain message.
        """
        return await self._carry_out(messages, [self._fold])

    async def _carry_out(self, messages: Sequence[BaseMessage], steps: Sequence[_Step]) -> ChainSummary:
        check_messages(messages)
        work = None
        try:
            # Parsing a long chain and writing its requests can take seconds, so both run in threads.
            work = await asyncio.to_thread(Work, messages, self.config, max_prompt_bytes=self._max_prompt_bytes)
            for step in steps:
                await step(work)
            return await asyncio.to_thread(work.result)
        except Exception as error:  # noqa: BLE001 - any failure is returned with the input messages
            return failed(messages, work.calls() if work else (), error)

    async def _summarize_sections(self, work: Work) -> None:
        due = await asyncio.to_thread(self._sections_due, work)
        texts = _all_or_raise(await self._ask(work, list(due.values())))
        pairs = [work.summary_pair(job, text) for job, text in zip(due.values(), texts, strict=True)]
        work.put({index: [pair] for index, pair in zip(due, pairs, strict=True)})

    def _sections_due(self, work: Work) -> dict[int, Job]:
        older = work.chain.sections[: -self.config.keep_sections]
        return {
            index: work.job("sections", [section.header], section.body)
            for index, section in enumerate(older)
            if not is_one_summary(section.body) and is_worth_it(section.body, config=self.config)
        }

    async def _rotate(self, work: Work) -> None:
        count = len(work.chain.sections)
        for index in range(count - 1, max(count - self.config.keep_sections, 0) - 1, -1):
            await self._summarize_oversized(work, index)
            section = work.chain.sections[index]
            if kept := first_kept(section, config=self.config):
                job = await asyncio.to_thread(work.job, "rotation", [section.header], section.body[:kept])
                [text] = _all_or_raise(await self._ask(work, [job]))
                work.put({index: [work.summary_pair(job, text), *section.body[kept:]]})

    async def _summarize_oversized(self, work: Work, index: int) -> None:
        section = work.chain.sections[index]
        body = list(section.body)
        positions = oversized(section, config=self.config)
        jobs = [
            await asyncio.to_thread(work.job, "oversized_pair", [section.header], [body[position]])
            for position in positions
        ]
        for position, job, text in zip(positions, jobs, await self._ask(work, jobs), strict=True):
            if isinstance(text, str):
                body[position] = work.summary_pair(job, text)
        work.put({index: body})

    async def _fold(self, work: Work) -> None:
        # One pass is enough unless a summary is so long that the limits are still exceeded.
        while count := sections_to_fold(work.chain, config=self.config):
            older = work.chain.sections[:count]
            headers = [section.header for section in older]
            jobs = await asyncio.to_thread(self._jobs_of_fold, work, older)
            text, *of_humans = _all_or_raise(await self._ask(work, jobs))
            human, before = work.joined_human(headers, *of_humans), headers[0].before
            pair = replace(work.summary_pair(jobs[0], text), after=messages_to_keep(older))
            work.fold(count, Section(Header(headers[0].system, human, before=before), (pair,)))

    def _jobs_of_fold(self, work: Work, older: Sequence[Section]) -> list[Job]:
        headers, pairs = [section.header for section in older], [pair for section in older for pair in section.body]
        jobs = [work.job("qa", headers, pairs, cost=fold_cost(older), limit=fold_reserve(self.config))]
        if self.config.summarize_human_in_qa and (humans := work.human_job(headers)):
            jobs.append(humans)
        return jobs

    async def _ask(self, work: Work, jobs: Sequence[Job]) -> list[str | Exception]:
        """Return the summaries in order, an exception in place of each that failed. Waits for all calls."""
        free = asyncio.Semaphore(self._max_concurrency)
        return await _gathered([self._summary(work, job, free) for job in jobs])

    async def _summary(self, work: Work, job: Job, free: asyncio.Semaphore) -> str:
        """Send all requests of a job concurrently, join the answers if there are several, and check the result."""
        requests = job.requests
        texts = await self._answers(work, job, requests, free)
        while len(texts) > 1:
            try:
                requests = await asyncio.to_thread(work.joining, job, texts)
            except SummaryError as error:
                requests[-1].error = error
                raise
            texts = await self._answers(work, job, requests, free)
        try:
            return work.check(job, texts[0])
        except SummaryError as error:
            requests[-1].error = error
            raise

    async def _answers(self, work: Work, job: Job, requests: Sequence[Request], free: asyncio.Semaphore) -> list[str]:
        async def answer(request: Request) -> str:
            async with free:
                try:
                    return work.text(job, await self._call(request.prompt))
                except Exception as error:
                    request.error = error
                    raise

        return _all_or_raise(await _gathered([answer(request) for request in requests]))

    async def _call(self, prompt: str) -> object:
        if isinstance(self._handler, ChainModel):
            reply = await self._handler.ainvoke([HumanMessage(prompt)])
            return str(reply.text) if isinstance(reply, BaseMessage) else reply
        return await self._handler(prompt)


async def _gathered(work: Sequence[Coroutine[Any, Any, str]]) -> list[str | Exception]:
    """Return the result or exception of each call, in order. Raises if a call was cancelled."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    if stopped := [answer for answer in answers if not isinstance(answer, str | Exception)]:
        raise stopped[0]
    return [answer for answer in answers if isinstance(answer, str | Exception)]


def _all_or_raise(answers: Sequence[str | Exception]) -> list[str]:
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(answers)} calls of the summarizer failed", errors)
    return [answer for answer in answers if isinstance(answer, str)]

"""Summarises a chain part by part: older sections, what is too large in the last ones, and many sections into one.

Layer 1; here the model is called, and waited for, several calls at a time. What is decided is decided in `plan`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.bounds import check_number
from convstore.chain.models import ChainSummarizerConfig, ChainSummary
from convstore.chain.plan import first_kept, fold_cost, is_one_summary, is_worth_it, oversized, sections_to_fold
from convstore.chain.structure import Header, Section
from convstore.chain.work import Job, Work, failed
from convstore.exceptions import InvalidInputError
from convstore.policy import CompactionRule

__all__ = ["ChainModel", "ChainSummarizer", "SummaryHandler"]

SummaryHandler = Callable[[str], Awaitable[str]]
"""Takes the request as text and gives the summary."""


@runtime_checkable
class ChainModel(Protocol):
    """A LangChain model, or anything else with its `ainvoke`."""

    async def ainvoke(self, messages: list[BaseMessage], /) -> Any:
        """Answer messages."""


_Step = Callable[[Work], Awaitable[None]]


class ChainSummarizer:
    """Keeps the chain of a long run small: what is old becomes summaries, what is recent stays word for word.

    The last pair of the last section always stays, calls and results always match, and the size never grows. A second
    run on what came out makes no call and changes nothing, unless a call for an oversized pair failed, which is tried
    again. Whatever else fails, the messages that came in come back with the error. Only cancellation is not caught: it
    ends all calls that are under way.

    Args:
        handler: A coroutine function from text to text, or a LangChain model. Called concurrently.
        config: The limits; the defaults if None.
        max_concurrency: At most this many calls at a time.
        rule: When a store asks it, by the size of what is not summarised; what it then does the configuration says. A
            store lets it fold more where the result would be larger than this, and questions from half of it on.

    Raises:
        InvalidInputError: The handler is neither, or the number not positive.
    """

    def __init__(
        self,
        handler: SummaryHandler | ChainModel,
        *,
        config: ChainSummarizerConfig | None = None,
        max_concurrency: int = 32,
        rule: CompactionRule | None = None,
    ) -> None:
        if not isinstance(handler, ChainModel) and not callable(handler):
            raise InvalidInputError(f"handler is a coroutine function or a LangChain model, not {handler!r}")
        self.config = ChainSummarizerConfig() if config is None else config
        if rule is not None and not isinstance(rule, CompactionRule):
            raise InvalidInputError(f"rule is a CompactionRule, not {type(rule).__name__}")
        self.rule = rule or CompactionRule(keep_last_turns=self.config.keep_sections)
        self._handler = handler
        self._max_concurrency = check_number(max_concurrency, name="max_concurrency", least=1)

    @property
    def name(self) -> str:
        """What the model calls itself, or the function; kept with each summary that is stored."""
        names = (getattr(self._handler, key, None) for key in ("model_name", "model", "model_id", "__name__"))
        return next((name for name in names if isinstance(name, str) and name), type(self._handler).__name__)

    async def summarize(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Do all that the configuration asks for: older sections, the last sections, then the fold.

        Args:
            messages: A chain; what can be repaired in it is repaired. It is never changed.

        Returns:
            The messages that take its place, and what was done for them. It is told, not raised, what went wrong.
        """
        steps: list[_Step] = [self._summarize_sections]
        steps += [self._rotate] if self.config.preserve_last else []
        steps += [self._fold] if self.config.use_qa else []
        return await self._carry_out(messages, steps)

    async def summarize_sections(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Put one summary pair in the place of the body of each section but the last `keep_sections`, all at once."""
        return await self._carry_out(messages, [self._summarize_sections])

    async def rotate_last_section(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Bring each of the last `keep_sections` sections within `last_section_bytes`, the newest first.

        First each pair above `max_pair_bytes` becomes a summary; if its call fails it stays. If the section is still
        too large, the older pairs become one summary, and the newest that fit three quarters of the limit stay.
        """
        return await self._carry_out(messages, [self._rotate])

    async def fold_qa_pairs(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Fold all but the last `keep_sections` sections into one, if there are too many or they are too large."""
        return await self._carry_out(messages, [self._fold])

    async def _carry_out(self, messages: Sequence[BaseMessage], steps: Sequence[_Step]) -> ChainSummary:
        work = None
        try:
            # What is long is done in threads: reading a long chain and writing requests takes seconds.
            work = await asyncio.to_thread(Work, messages, self.config)
            for step in steps:
                await step(work)
            return await asyncio.to_thread(work.result)
        except Exception as error:  # noqa: BLE001 - whatever it is, it comes back with the messages
            return failed(messages, work.calls() if work else (), error)

    async def _summarize_sections(self, work: Work) -> None:
        due = await asyncio.to_thread(self._sections_due, work)
        texts = _all_or_raise(await self._ask(work, list(due.values())))
        pairs = [work.summary_pair(job, text) for job, text in zip(due.values(), texts, strict=True)]
        work.put({at: [pair] for at, pair in zip(due, pairs, strict=True)})

    def _sections_due(self, work: Work) -> dict[int, Job]:
        older = work.chain.sections[: -self.config.keep_sections]
        return {
            at: work.job("sections", [section.header], section.body)
            for at, section in enumerate(older)
            if not is_one_summary(section.body) and is_worth_it(section.body, config=self.config)
        }

    async def _rotate(self, work: Work) -> None:
        count = len(work.chain.sections)
        for at in range(count - 1, max(count - self.config.keep_sections, 0) - 1, -1):
            await self._summarize_oversized(work, at)
            section = work.chain.sections[at]
            if kept := first_kept(section, config=self.config):
                job = await asyncio.to_thread(work.job, "rotation", [section.header], section.body[:kept])
                [text] = _all_or_raise(await self._ask(work, [job]))
                work.put({at: [work.summary_pair(job, text), *section.body[kept:]]})

    async def _summarize_oversized(self, work: Work, at: int) -> None:
        section = work.chain.sections[at]
        body = list(section.body)
        places = oversized(section, config=self.config)
        jobs = [
            await asyncio.to_thread(work.job, "oversized_pair", [section.header], [body[place]]) for place in places
        ]
        for place, job, text in zip(places, jobs, await self._ask(work, jobs), strict=True):
            if isinstance(text, str):
                body[place] = work.summary_pair(job, text)
        work.put({at: body})

    async def _fold(self, work: Work) -> None:
        count = sections_to_fold(work.chain, config=self.config)
        if not count:
            return
        older = work.chain.sections[:count]
        headers = [section.header for section in older]
        jobs = await asyncio.to_thread(self._jobs_of_fold, work, older)
        text, *of_humans = _all_or_raise(await self._ask(work, jobs))
        header = Header(headers[0].system, work.joined_human(headers, *of_humans))
        work.fold(count, Section(header, (work.summary_pair(jobs[0], text),)))

    def _jobs_of_fold(self, work: Work, older: Sequence[Section]) -> list[Job]:
        headers, pairs = [section.header for section in older], [pair for section in older for pair in section.body]
        jobs = [work.job("qa", headers, pairs, cost=fold_cost(older))]
        if self.config.summarize_human_in_qa and (humans := work.human_job(headers)):
            jobs.append(humans)
        return jobs

    async def _ask(self, work: Work, jobs: Sequence[Job]) -> list[str | Exception]:
        """The summaries in order; an exception where a call failed. All calls are waited for."""
        free = asyncio.Semaphore(self._max_concurrency)

        async def ask(job: Job) -> str:
            async with free:
                try:
                    return work.check(job, await self._call(job.prompt))
                except Exception as error:
                    job.error = error
                    raise

        answers = await asyncio.gather(*map(ask, jobs), return_exceptions=True)
        if stopped := [answer for answer in answers if not isinstance(answer, str | Exception)]:
            raise stopped[0]  # a call was cancelled; that is no answer
        return [answer for answer in answers if isinstance(answer, str | Exception)]

    async def _call(self, prompt: str) -> object:
        if isinstance(self._handler, ChainModel):
            reply = await self._handler.ainvoke([HumanMessage(prompt)])
            return str(reply.text) if isinstance(reply, BaseMessage) else reply
        return await self._handler(prompt)


def _all_or_raise(answers: Sequence[str | Exception]) -> list[str]:
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(answers)} calls of the summarizer failed", errors)
    return [answer for answer in answers if isinstance(answer, str)]

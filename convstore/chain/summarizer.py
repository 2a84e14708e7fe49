"""Summarise a chain in stages: older sections, oversized pairs of the last sections, then many sections at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage

from convstore.chain.models import ChainSummarizerConfig, ChainSummary, SummaryCall
from convstore.chain.parse import check_messages
from convstore.chain.work import Work, failed
from convstore.exceptions import InvalidInputError
from convstore.summarization.engine import KeptAnswers, Steps, drive_async, model_name
from convstore.summarization.prompts import MIN_PROMPT_BYTES
from convstore.values.plain import shown_value
from convstore.values.policy import CompactionRule
from convstore.values.scope import check_number

SummaryHandler = Callable[[str], Awaitable[str]]
"""Coroutine function from the text of a request to the summary."""


@runtime_checkable
class ChainModel(Protocol):
    """A LangChain model, or another object with the same `ainvoke`."""

    def ainvoke(self, messages: list[BaseMessage], /) -> Awaitable[Any]:
        """Return the model's reply to a list of messages."""
        ...


_Stage = Callable[[Work], Steps[None]]


class ChainSummarizer:
    """Keeps the chain of a long run small: old messages become summaries, recent ones stay word for word.

    The last pair of the last section is always kept, calls and results always match, and the size never grows: a part
    stays as it is if its summary would not be shorter. A second run on the result makes no call, except to retry a
    failed call for an oversized pair. If any other call fails, the input messages are returned with the error. The
    newest 256 answers are cached, so that the next run does not ask for them again. A store drops the answers that it
    used from this cache, but keeps those that were not shorter than their source. Cancellation cancels all calls in
    flight.

    Args:
        handler: A coroutine function from text to text, or a LangChain model. Called concurrently.
        config: The limits; the defaults if None.
        max_concurrency: Maximum number of concurrent calls.
        max_prompt_bytes: Maximum size of a request in UTF-8 bytes, at least 8,192. Longer input is summarised in parts,
            each message whole in one or several of them, and further requests join the summaries.
        rule: When a store calls the summarizer, by the size of the messages that are not summarised yet; `config`
            decides the rest. If the result would exceed the rule's trigger, a store folds more sections. If the
            questions alone exceed half of it, they are folded too.

    Raises:
        InvalidInputError: The handler has another type, or a number is out of bounds.
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
            raise InvalidInputError(
                "handler must be a coroutine function or a LangChain model, not "
                f"{shown_value(handler)}"
            )
        self.config = ChainSummarizerConfig() if config is None else config
        if not isinstance(self.config, ChainSummarizerConfig):
            raise InvalidInputError(
                f"config must be a ChainSummarizerConfig, not {type(config).__name__}"
            )
        if rule is not None and not isinstance(rule, CompactionRule):
            raise InvalidInputError(f"rule must be a CompactionRule, not {type(rule).__name__}")
        self.rule = rule or CompactionRule(keep_last_turns=self.config.keep_sections)
        self._handler = handler
        self._answers = KeptAnswers()
        self._max_concurrency = check_number(max_concurrency, name="max_concurrency", minimum=1)
        self._max_prompt_bytes = check_number(
            max_prompt_bytes, name="max_prompt_bytes", minimum=MIN_PROMPT_BYTES
        )

    @property
    def name(self) -> str:
        """Name of the model or of the function. It is stored with each summary."""
        return model_name(self._handler)

    async def summarize(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Summarise a chain as configured: older sections first, then the last sections, then the fold.

        Args:
            messages: A chain, which is repaired if necessary. The input is never changed.

        Returns:
            The messages that replace it, and a record of the calls. A failed call is reported in its `error`.

        Raises:
            MalformedChainError: An item of `messages` is not a LangChain message.
        """
        stages: list[_Stage] = [Work.summarize_sections]
        stages += [Work.rotate] if self.config.preserve_last else []
        stages += [Work.fold] if self.config.use_qa else []
        return await self._run(messages, stages)

    async def summarize_sections(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Replace the body of each section by one summary pair, except in the last `keep_sections` sections.

        All sections are summarised concurrently. Arguments, result and errors are those of `summarize`.
        """
        return await self._run(messages, [Work.summarize_sections])

    async def rotate_last_section(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Bring each of the last `keep_sections` sections within `last_section_bytes`, the newest first.

        First, each pair above `max_pair_bytes` becomes a summary; if its call fails, the pair is kept. If the section
        is still too large, the older pairs become one summary, and the newest that fit three quarters of the limit are
        kept. Arguments, result and errors are those of `summarize`.
        """
        return await self._run(messages, [Work.rotate])

    async def fold_qa_pairs(self, messages: Sequence[BaseMessage]) -> ChainSummary:
        """Fold old sections into one if there are too many or they are too large.

        The newest sections that fit the limits are kept, at least `keep_sections` of them. The folded section counts
        as one. Arguments, result and errors are those of `summarize`.
        """
        return await self._run(messages, [Work.fold])

    def forget(self, calls: Sequence[SummaryCall]) -> None:
        """Drop the answers of successful calls from the cache."""
        for call in calls:
            if call.error is None:
                self._answers.texts.pop(call.request, None)

    async def _run(self, messages: Sequence[BaseMessage], stages: Sequence[_Stage]) -> ChainSummary:
        # Parsing a long chain and writing its requests can take seconds, so both run in threads.
        steps = self._steps(messages, stages)
        return await drive_async(
            steps,
            self._call,
            in_threads=True,
            concurrency=self._max_concurrency,
            answers=self._answers,
        )

    def _call(self, messages: list[BaseMessage]) -> Awaitable[object]:
        if isinstance(self._handler, ChainModel):
            return self._handler.ainvoke(messages)
        return self._handler(str(messages[-1].content))

    def _steps(
        self, messages: Sequence[BaseMessage], stages: Sequence[_Stage]
    ) -> Steps[ChainSummary]:
        check_messages(messages)
        work = None
        try:
            work = Work(messages, self.config, max_prompt_bytes=self._max_prompt_bytes)
            for stage in stages:
                yield from stage(work)
            return work.result()
        except Exception as error:  # noqa: BLE001 - any failure is returned with the input messages
            return failed(messages, work.calls() if work else (), error)

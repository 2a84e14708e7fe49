"""Compaction strategies: one for each kind of summarizer.

A running summary is a single text for all folded messages. A chain summarizer returns messages that replace its input,
including the questions. Both replace one range of the log.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.chain import SUMMARY_PREFIX, ChainSummarizer, ChainSummary
from convstore.exceptions import SummaryError
from convstore.log.summary import is_summary
from convstore.messages.provenance import mark
from convstore.messages.text import indented, text_of
from convstore.messages.tool_calls import pair, without_orphans
from convstore.summarization.prompts import words_of
from convstore.summarization.summarizers import Summarizer, SummarizerLike, as_summarizer
from convstore.values.json_form import sendable_message
from convstore.values.policy import CompactionRule

_RUNNING = re.compile(r"summary-\d+")
"""Matches ids of the messages of running summaries."""


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The input of a strategy.

    Attributes:
        messages: The active messages after the earlier summary, at least up to `cut`.
        cut: Number of messages that the plan folds.
        size: Returns the size of a result in views, in tokens.
        cuts: Indexes of messages before which a summary may end, in order.
        earlier: Text of the earlier summary, None without one.
        summary_messages: The messages that show the earlier summary in views.
        answers: The `result_id` of the call that each result answers, by the result's id, as far as the log knows it;
            "" for one whose call is not among the messages.
    """

    messages: Sequence[BaseMessage]
    cut: int
    size: Callable[[CompactionResult], Awaitable[int]]
    cuts: Sequence[int] = ()
    earlier: str | None = None
    summary_messages: Sequence[BaseMessage] = ()
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The replacement for the first `cut` messages: a summary text, or messages that views show instead of it."""

    cut: int
    text: str
    messages: Sequence[BaseMessage] = field(default=())


class CompactionStrategy(ABC):
    """Folds old messages into a replacement."""

    reads_all = False
    """True if the strategy needs all messages, not only those that the plan folds."""

    def __init__(self, summarizer: Any, budget: int | None) -> None:
        self._summarizer = summarizer
        self.rule = (getattr(summarizer, "rule", None) or CompactionRule()).under(budget)
        """The rule that says when to compact."""

    @property
    def name(self) -> str:
        """The name stored as the model of a summary."""
        return str(getattr(self._summarizer, "name", type(self._summarizer).__name__))

    @abstractmethod
    async def fold(self, request: CompactionRequest) -> CompactionResult | None:
        """Return the replacement for the first messages; None if there is nothing to fold.

        Raises:
            SummaryError: The summarizer failed.
        """


class _RunningStrategy(CompactionStrategy):
    _summarizer: Summarizer

    async def fold(self, request: CompactionRequest) -> CompactionResult:
        earlier = request.earlier
        # a chain summarizer made the earlier summary, and its text alone lacks the questions
        if len(request.summary_messages) > 1:
            earlier = "\n\n".join(
                f"{item.type}: {indented(words_of(item), '  ')}"
                for item in request.summary_messages
            )
        # An application's summarizer may send the messages to a model unchanged.
        folded = without_orphans(request.messages[: request.cut], None, request.answers)
        messages = pair(folded, request.answers).messages
        text = await self._summarizer.summarize(
            list(map(sendable_message, messages)), summary=earlier
        )
        if not isinstance(text, str):
            raise SummaryError(
                "the summarizer must return a str, such as the `text` of a reply, not "
                f"{type(text).__name__}"
            )
        if not text.strip():
            raise SummaryError("the summarizer returned an empty text")
        return CompactionResult(request.cut, text)


class _ChainStrategy(CompactionStrategy):
    """Replaces old pairs of the chain by summary pairs; human messages stay as headers."""

    reads_all = True
    _summarizer: ChainSummarizer

    async def fold(self, request: CompactionRequest) -> CompactionResult | None:
        if not request.cuts:
            return None
        read = await asyncio.to_thread(_ChainInput, request)
        summarizer = await self._fit_for(read, request)
        done = await summarizer.summarize(read.chain)
        # after a SummaryError, one summary of all sections, below, may still be short enough
        if not isinstance(done.error, SummaryError):
            _check_result(done)
        folded = await asyncio.to_thread(read.folded, done)
        is_large = folded is not None and await request.size(folded) > self.rule.trigger
        if folded is None or is_large:
            # No section was worth its own summary, or the summaries are too large: fold all old sections into one.
            # Fold all, not only as many as the limits require, because a store compacts rarely and in large steps.
            again = _check_result(await self._summarizer_with().fold_qa_pairs(done.messages))
            if again.calls:
                done = _combine_steps(done, again)
                folded = await asyncio.to_thread(read.folded, done) or folded
        if folded is not None:
            self._summarizer.forget(done.calls)
        elif _check_result(done).calls:
            raise SummaryError(
                "the conversation cannot be cut where its summaries end; try again after more "
                "messages were appended"
            )
        return folded

    async def _fit_for(self, read: _ChainInput, request: CompactionRequest) -> ChainSummarizer:
        """Return the summarizer, changed to fold questions as well if these alone exceed half the trigger."""
        limit = self.rule.trigger
        end = request.cuts[-1]
        system, questions = read.headers(self._summarizer.config.keep_sections)
        if system and (size := await request.size(CompactionResult(end, "", system))) > limit:
            raise SummaryError(
                f"system messages in old turns take {size} tokens and cannot be summarised; "
                "raise max_tokens_before_summary"
            )
        if questions and await request.size(CompactionResult(end, "", questions)) > limit // 2:
            return self._summarizer_with(use_qa=True, summarize_human_in_qa=True)
        return self._summarizer

    def _summarizer_with(self, **options: bool) -> ChainSummarizer:
        """Return a copy of the summarizer with these options changed; it may fold any number of sections."""
        made = copy(self._summarizer)
        made.config = replace(made.config, max_qa_sections=made.config.keep_sections, **options)
        return made


class _ChainInput:
    """The messages to fold as a chain, with the index in the input of each message of the chain.

    System messages are not part of the chain. A message that does not fit into a chain, such as a result without its
    call, becomes the text of an AI message, so that it is not lost.
    """

    def __init__(self, request: CompactionRequest) -> None:
        summary_messages = [_as_answer(message) for message in request.summary_messages]
        messages = [*summary_messages, *request.messages]
        self._originals = dict(
            zip(map(id, summary_messages), request.summary_messages, strict=True)
        )
        self._summary_messages = len(summary_messages)
        self._cuts = request.cuts
        pairing = pair(messages, request.answers)
        kept = {index for index in pairing.indexes if index is not None}
        self._messages = messages
        self._indexes = [
            index
            for index, message in enumerate(messages)
            if not isinstance(message, SystemMessage)
        ]
        self.chain = [_as_text(messages[index], is_kept=index in kept) for index in self._indexes]

    def headers(self, keep: int) -> tuple[Sequence[BaseMessage], Sequence[BaseMessage]]:
        """Return the system and the human messages of older sections, which summaries of answers do not replace."""
        begins: list[int] = []
        was_human = False
        for index, message in enumerate(self.chain):
            is_human = isinstance(message, HumanMessage)
            if is_human and not was_human:
                begins.append(index)
            was_human = is_human
        if len(begins) < keep:
            return [], []
        older = self._messages[: self._indexes[begins[-keep]]]
        system = [message for message in older if isinstance(message, SystemMessage)]
        return system, [message for message in older if isinstance(message, HumanMessage)]

    def folded(self, done: ChainSummary) -> CompactionResult | None:
        """Return the replacement up to the first possible cut after all new summaries, or else the last one before."""
        given = {id(message) for message in self.chain}
        new: set[int] = set()
        last = -1
        for message, origins in zip(done.messages, done.origins, strict=True):
            if is_summary(message) and id(message) not in given:
                new.add(id(message))
                last = max([last, *(self._indexes[origin] for origin in origins)])
        if not new:
            return None
        for cut in self._cuts_from(last - self._summary_messages):
            messages = self.in_place_of(done, self._summary_messages + cut)
            if any(id(message) in new for message in messages):
                return CompactionResult(cut, _text_of_summaries(messages), messages)
        return None

    def _cuts_from(self, last: int) -> list[int]:
        """Return the cuts after an index, then those before it, nearest first."""
        after = [cut for cut in self._cuts if cut > last]
        before = [cut for cut in self._cuts if cut <= last]
        return [*after, *reversed(before)]

    def in_place_of(self, done: ChainSummary, end: int) -> list[BaseMessage]:
        """Return the messages that replace exactly those before index `end`; empty if they cannot be cut there."""
        count = 0
        covered: set[int] = set()
        for origins in done.origins:
            indexes = [self._indexes[origin] for origin in origins]
            if max(indexes, default=-1) >= end:
                break
            covered.update(indexes)
            count += 1
        if covered != {index for index in self._indexes if index < end}:
            return []
        replaced: list[BaseMessage] = [
            message for message in self._messages[:end] if isinstance(message, SystemMessage)
        ]
        for message, origins in zip(done.messages[:count], done.origins[:count], strict=True):
            shown = self._originals.get(id(message), message)
            replaced.append(self._with_joined_id(shown, origins))
        return replaced

    def _with_joined_id(self, message: BaseMessage, origins: Sequence[int]) -> BaseMessage:
        """Return the message; joined questions get a new id, and a mark that stored messages do not have."""
        if len(origins) < 2 or not isinstance(message, HumanMessage) or is_summary(message):
            return message
        marks = message.additional_kwargs | mark("joined")
        return message.model_copy(
            update={"id": f"{self.chain[origins[-1]].id}:joined", "additional_kwargs": marks}
        )


def as_strategy(
    given: SummarizerLike | ChainSummarizer, *, budget: int | None
) -> CompactionStrategy:
    """Return the strategy for a summarizer of any kind, under the budget of the store's policy.

    Raises:
        InvalidInputError: It is not a summarizer, or its trigger is not below the budget.
    """
    if isinstance(given, ChainSummarizer):
        return _ChainStrategy(given, budget)
    return _RunningStrategy(as_summarizer(given), budget)


def _text_of_summaries(messages: Sequence[BaseMessage]) -> str:
    texts = [
        text_of(message.content) for message in messages if is_summary(message) and message.content
    ]
    return "\n\n".join(texts)


def _as_answer(message: BaseMessage) -> BaseMessage:
    """Convert the message of a running summary to a chain summary, so that it is not treated as a question."""
    if not (
        isinstance(message, HumanMessage)
        and is_summary(message)
        and _RUNNING.fullmatch(str(message.id))
    ):
        return message
    said = f"{SUMMARY_PREFIX}{message.text}"
    return AIMessage(said, id=message.id, additional_kwargs=message.additional_kwargs)


def _as_text(message: BaseMessage, *, is_kept: bool) -> BaseMessage:
    """Return the message, or its text as an AI message if it does not fit into a chain."""
    if is_kept and isinstance(message, HumanMessage | AIMessage | ToolMessage):
        return message
    if isinstance(message, ToolMessage):
        what = f"A result of {message.name or 'a tool'} without its call"
    else:
        what = message.type
    said = f"({what}: {text_of(message.content)})"
    return AIMessage(said, id=message.id, additional_kwargs=mark("summary"))


def _check_result(done: ChainSummary) -> ChainSummary:
    """Return the chain summarizer's result; raise a SummaryError if all of its calls failed."""
    errors = [call.error for call in done.calls]
    if done.error or (errors and all(errors)):
        error = next(filter(None, [*errors, done.error]))
        raise SummaryError(
            f"the chain summarizer failed: {type(error).__name__}: {error}"
        ) from error
    return done


def _combine_steps(first: ChainSummary, second: ChainSummary) -> ChainSummary:
    """Combine two steps, of which the second read the result of the first."""
    origins = [
        sorted({index for number in indexes for index in first.origins[number]})
        for indexes in second.origins
    ]
    return replace(second, calls=(*first.calls, *second.calls), origins=tuple(map(tuple, origins)))

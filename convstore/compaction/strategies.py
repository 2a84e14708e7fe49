"""How each kind of summarizer makes what stands for old messages in views.

Layer 1, pure but for the summarizer's own calls; long chains are read in threads. A running summary is one text for all
that is folded; a chain summarizer gives messages that take the place of those it read, headers included. Both stand for
one range of the log.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.chain import SUMMARY_PREFIX, ChainSummarizer, ChainSummary
from convstore.exceptions import SummaryError
from convstore.log.summary import is_summary
from convstore.messages.provenance import mark
from convstore.messages.text import indented, text_of
from convstore.messages.tool_calls import pair
from convstore.summarization.summarizers import Summarizer, SummarizerLike, as_summarizer, words_of
from convstore.values.policy import CompactionRule

__all__ = ["CompactionRequest", "CompactionResult", "CompactionStrategy", "as_strategy"]

_RUNNING = re.compile(r"summary-\d+")
"""Ids of the messages of running summaries."""


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """What is to be folded.

    Attributes:
        messages: The live messages behind the earlier summary as views show them, up to `cut` at least.
        cut: How many of them the plan folds.
        size: Gives the tokens that views would show of what was folded.
        cuts: Where a summary may end, in messages, in order.
        earlier: Text of the earlier summary, None if there is none.
        summary_messages: The messages that show it.
    """

    messages: Sequence[BaseMessage]
    cut: int
    size: Callable[[CompactionResult], Awaitable[int]]
    cuts: Sequence[int] = ()
    earlier: str | None = None
    summary_messages: Sequence[BaseMessage] = ()


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What stands for the first messages.

    Attributes:
        cut: How many.
        text: The summary.
        messages: What takes their place in views, the standing ones included; empty if the text alone does.
    """

    cut: int
    text: str
    messages: Sequence[BaseMessage] = field(default=())


class CompactionStrategy(Protocol):
    """Makes what stands for old messages.

    Attributes:
        reads_all: Whether it is given all messages, not only those that the plan folds.
    """

    reads_all: bool

    @property
    def rule(self) -> CompactionRule:
        """When it is asked."""
        ...

    @property
    def name(self) -> str:
        """What is kept as the model of a summary."""
        ...

    async def fold(self, request: CompactionRequest) -> CompactionResult | None:
        """What takes the place of the first messages; None if there is nothing to fold.

        Raises:
            SummaryError: The summarizer failed, or some messages would be lost.
        """
        ...


class _RunningStrategy:
    """Folds messages into one text."""

    reads_all = False

    def __init__(self, summarizer: Summarizer) -> None:
        self._summarizer = summarizer

    @property
    def rule(self) -> CompactionRule:
        return getattr(self._summarizer, "rule", None) or CompactionRule()

    @property
    def name(self) -> str:
        return str(getattr(self._summarizer, "name", type(self._summarizer).__name__))

    async def fold(self, request: CompactionRequest) -> CompactionResult:
        earlier = request.earlier
        if len(request.summary_messages) > 1:  # of a chain: its text alone has no questions
            earlier = "\n\n".join(f"{one.type}: {indented(words_of(one), '  ')}" for one in request.summary_messages)
        text = await self._summarizer.summarize(request.messages[: request.cut], summary=earlier)
        if not isinstance(text, str) or not text.strip():
            raise SummaryError(f"the summarizer gave {type(text).__name__} without text")
        return CompactionResult(request.cut, text)


class _ChainStrategy:
    """Puts summary pairs in the place of old pairs of the chain; human messages stay as headers."""

    reads_all = True

    def __init__(self, summarizer: ChainSummarizer) -> None:
        self._summarizer = summarizer
        self.rule, self.name = summarizer.rule, summarizer.name

    async def fold(self, request: CompactionRequest) -> CompactionResult | None:
        if not request.cuts:
            return None
        read = await asyncio.to_thread(_ChainInput, request)
        summarizer = await self._fit_for(read, request)
        done = _checked(await summarizer.summarize(read.chain))
        folded = await asyncio.to_thread(read.folded, done)
        is_large = folded is not None and await request.size(folded) > self.rule.max_tokens_before_summary
        if folded is None or is_large:
            # Nothing was worth a summary of its own, or there are too many of them: what is old becomes one. All of it,
            # not as little as the limits ask for: a store asks in large steps.
            again = _checked(await self._changed().fold_qa_pairs(done.messages))
            if again.calls:
                done = _combined(done, again)
                folded = await asyncio.to_thread(read.folded, done) or folded
        if folded is None and done.calls:
            raise SummaryError("the conversation cannot be parted where its summaries end; try again when it went on")
        return folded

    async def _fit_for(self, read: _ChainInput, request: CompactionRequest) -> ChainSummarizer:
        """The summarizer; one that folds questions, too, if those that would stay take more than half of the trigger.

        Raises:
            SummaryError: System messages alone are larger than the trigger. No model was called.
        """
        limit, end = self.rule.max_tokens_before_summary, request.cuts[-1]
        system, questions = read.headers(self._summarizer.config.keep_sections)
        if system and (size := await request.size(CompactionResult(end, "", system))) > limit:
            raise SummaryError(
                f"system messages among old turns stay as they are and take {size} tokens; "
                "raise max_tokens_before_summary"
            )
        if questions and await request.size(CompactionResult(end, "", questions)) > limit // 2:
            return self._changed(use_qa=True, summarize_human_in_qa=True)
        return self._summarizer

    def _changed(self, **options: bool) -> ChainSummarizer:
        """The summarizer with other options; it folds however few sections there are."""
        made = copy(self._summarizer)
        made.config = replace(made.config, max_qa_sections=made.config.keep_sections, **options)
        return made


class _ChainInput:
    """What is to be folded as a chain, and where in the list each message of the chain comes from.

    System messages are no part of it. What has no place in a chain, such as a result whose call is missing, is told as
    what an AI message said, so that it is shown.
    """

    def __init__(self, request: CompactionRequest) -> None:
        summary_messages = [_as_answer(one) for one in request.summary_messages]
        messages = [*summary_messages, *request.messages]
        self._originals = {id(read): one for read, one in zip(summary_messages, request.summary_messages, strict=True)}
        self._summary_messages, self._cuts = len(summary_messages), request.cuts
        pairing = pair(messages)
        kept = {index for index in pairing.indexes if index is not None}
        self._messages = messages
        self._indexes = [index for index, one in enumerate(messages) if not isinstance(one, SystemMessage)]
        self.chain = [_as_text(messages[index], is_kept=index in kept) for index in self._indexes]

    def headers(self, keep: int) -> tuple[Sequence[BaseMessage], Sequence[BaseMessage]]:
        """The system and the human messages of all sections but the last ones: what no summary of answers replaces."""
        is_human = [isinstance(one, HumanMessage) for one in self.chain]
        begins = [at for at, is_one in enumerate(is_human) if is_one and not (at and is_human[at - 1])]
        older = self._messages[: self._indexes[begins[-keep]]] if len(begins) >= keep else []
        system = [one for one in older if isinstance(one, SystemMessage)]
        return system, [one for one in older if isinstance(one, HumanMessage)]

    def folded(self, done: ChainSummary) -> CompactionResult | None:
        """What stands for the messages up to a cut: the first one behind all new summaries, else the last before."""
        came, results = set(map(id, self.chain)), zip(done.messages, done.origins, strict=True)
        new = [(id(one), origins) for one, origins in results if is_summary(one) and id(one) not in came]
        last = max((self._indexes[origin] for _, origins in new for origin in origins), default=-1)
        last -= self._summary_messages
        after, before = [cut for cut in self._cuts if cut > last], [cut for cut in self._cuts[::-1] if cut <= last]
        for cut in [*after, *before] if new else ():
            messages = self.in_place_of(done, self._summary_messages + cut)
            if not {id(one) for one in messages}.isdisjoint(made for made, _ in new):
                texts = [text_of(one.content) for one in messages if is_summary(one) and one.content]
                return CompactionResult(cut, "\n\n".join(texts), messages)
        return None

    def in_place_of(self, done: ChainSummary, end: int) -> list[BaseMessage]:
        """What stands for all messages before a place and for no others; empty if there is no such list."""
        after = [any(self._indexes[origin] >= end for origin in origins) for origins in done.origins]
        count = after.index(True) if True in after else len(after)
        covered = {self._indexes[origin] for origins in done.origins[:count] for origin in origins}
        if covered != {index for index in self._indexes if index < end}:
            return []
        system = [one for one in self._messages[:end] if isinstance(one, SystemMessage)]
        shown = (self._originals.get(id(one), one) for one in done.messages[:count])
        return [*system, *map(self._with_joined_id, shown, done.origins)]

    def _with_joined_id(self, message: BaseMessage, origins: Sequence[int]) -> BaseMessage:
        """A message; several questions that became one under an id and with a mark that no message of the log has."""
        if len(origins) < 2 or not isinstance(message, HumanMessage) or is_summary(message):
            return message
        marks = message.additional_kwargs | mark("joined")
        return message.model_copy(update={"id": f"{self.chain[origins[-1]].id}:joined", "additional_kwargs": marks})


def as_strategy(given: SummarizerLike | ChainSummarizer) -> CompactionStrategy:
    """What folds messages for a summarizer of any kind.

    Raises:
        InvalidInputError: It is none.
    """
    return _ChainStrategy(given) if isinstance(given, ChainSummarizer) else _RunningStrategy(as_summarizer(given))


def _as_answer(message: BaseMessage) -> BaseMessage:
    """The message of a running summary as a summary of a chain, so that it is not taken for a question."""
    if not (isinstance(message, HumanMessage) and is_summary(message) and _RUNNING.fullmatch(str(message.id))):
        return message
    said = f"{SUMMARY_PREFIX}{message.text}"
    return AIMessage(said, id=message.id, additional_kwargs=message.additional_kwargs)


def _as_text(message: BaseMessage, *, is_kept: bool) -> BaseMessage:
    """What has no place in a chain as text; any other message as it is."""
    if is_kept and isinstance(message, HumanMessage | AIMessage | ToolMessage):
        return message
    what = (
        f"A result of {message.name or 'a tool'} without its call" if isinstance(message, ToolMessage) else message.type
    )
    said = f"({what}: {text_of(message.content)})"
    return AIMessage(said, id=message.id, additional_kwargs=mark("summary"))


def _checked(done: ChainSummary) -> ChainSummary:
    """What the chain summarizer made.

    Raises:
        SummaryError: It failed, in all that it tried.
    """
    errors = [call.error for call in done.calls]
    if done.error or (errors and all(errors)):
        error = next(filter(None, [*errors, done.error]))
        raise SummaryError(f"the chain summarizer failed: {type(error).__name__}: {error}") from error
    return done


def _combined(first: ChainSummary, second: ChainSummary) -> ChainSummary:
    """Two steps as one: the second read what the first made."""
    origins = [sorted({index for one in ones for index in first.origins[one]}) for ones in second.origins]
    return replace(second, calls=(*first.calls, *second.calls), origins=tuple(map(tuple, origins)))

"""Summarises a list of messages when it grows too long: the two functions, for sync and for async callers.

Floor 1. What is decided is decided in `fold`; here the model is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.language_models import LanguageModelLike
from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.prompts import ChatPromptTemplate

from convstore.summarization.fold import Options, Overflow, Summarization, SummaryTokenCounter
from convstore.summarization.models import (
    DEFAULT_EXISTING_SUMMARY_PROMPT,
    DEFAULT_FINAL_SUMMARY_PROMPT,
    DEFAULT_INITIAL_SUMMARY_PROMPT,
    RunningSummary,
    SummarizationResult,
    as_running_summary,
)

__all__ = ["asummarize_messages", "summarize_messages"]


def summarize_messages(
    messages: Sequence[BaseMessage],
    *,
    running_summary: RunningSummary | None,
    model: LanguageModelLike,
    max_tokens: int,
    max_tokens_before_summary: int | None = None,
    max_summary_tokens: int = 256,
    token_counter: SummaryTokenCounter = count_tokens_approximately,
    initial_summary_prompt: ChatPromptTemplate = DEFAULT_INITIAL_SUMMARY_PROMPT,
    existing_summary_prompt: ChatPromptTemplate = DEFAULT_EXISTING_SUMMARY_PROMPT,
    final_prompt: ChatPromptTemplate = DEFAULT_FINAL_SUMMARY_PROMPT,
    overflow: Overflow = "fold",
) -> SummarizationResult:
    """Put a summary in the place of the oldest messages once they reach a number of tokens.

    Every message that the summary stands for was shown to the model exactly once, never a call without its results
    or a result without its call. What comes out is the system message, the summary and the messages that follow it,
    in order. Below the threshold, and without an earlier summary, it is what came in. Nothing of the caller's is
    changed; if the model fails, its error reaches the caller and there is no new summary.

    Args:
        messages: The conversation, each message with an id; a leading system message needs none and is never
            summarised. The list that an earlier call gave, with messages added, will do as well.
        running_summary: What the earlier call gave; None if there was none. Its first two fields will do. Messages that
            it stands for are passed over, and if no new summary is due it is put before the others.
        model: Is called with `invoke` and a list of messages, nothing else.
        max_tokens: At most this many tokens come out wherever a cut makes that possible; at most this many are shown
            to the model at a time. Only what cannot be parted may be larger: the system message, a call and its
            results, and the open question. `SummarizationResult.over_budget` says so.
        max_tokens_before_summary: Where summarising begins: the cut is the first message where the running sum of
            what is not summarised reaches this and the rest fits `max_tokens`, less the summary and the system
            message. A human message there, or an AI message with unanswered calls, stays out if the rest still fits
            then; else it is folded with its answer. The default is `max_tokens`.
        max_summary_tokens: What the budget sets aside for the summary message, with the words that `final_prompt` adds.
            The model is not told; bind its own limit to it to enforce this.
        token_counter: Gives the size of a list of messages; is given one message at a time.
        initial_summary_prompt: Asks for the first summary; variable `messages`.
        existing_summary_prompt: Asks for an extended one; variables `messages` and `existing_summary`.
        final_prompt: Puts the summary before the rest; variables `system_message`, `summary` and `messages`.
        overflow: What if the messages do not fit `max_tokens`, less the earlier summary. "fold" shows them to the
            model in several calls, each of which extends the summary of the one before. "trim" makes one call and
            leaves out the oldest, so that it begins with a human message; if no such part fits, all are shown, with
            a RuntimeWarning.

    Returns:
        The messages, and the running summary for the next call.

    Raises:
        InvalidInputError: A ValueError: a message without an id, one that was summarised before or comes twice,
            or `max_summary_tokens` not below `max_tokens`. No model was called.
        SummaryError: The model answered without text.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> from langchain_core.messages import AIMessage, HumanMessage
    >>> talk = [HumanMessage("I am Ada.", id="1"), AIMessage("Hello!", id="2"), HumanMessage("Who am I?", id="3")]
    >>> model = FakeListChatModel(responses=["The user is Ada."])
    >>> done = summarize_messages(
    ...     talk, running_summary=None, model=model, max_tokens=2, max_summary_tokens=1, token_counter=len
    ... )
    >>> [message.text for message in done.messages], done.running_summary.last_summarized_message_id
    (['Summary of the conversation so far: The user is Ada.', 'Who am I?'], '2')
    """
    options = Options(
        max_tokens=max_tokens,
        max_tokens_before_summary=max_tokens_before_summary,
        max_summary_tokens=max_summary_tokens,
        token_counter=token_counter,
        initial_summary_prompt=initial_summary_prompt,
        existing_summary_prompt=existing_summary_prompt,
        final_prompt=final_prompt,
        overflow=overflow,
    )
    summarization = Summarization(messages, as_running_summary(running_summary), options)
    while (prompt := summarization.next_prompt()) is not None:
        summarization.answer(model.invoke(prompt))
    return summarization.result()


async def asummarize_messages(
    messages: Sequence[BaseMessage],
    *,
    running_summary: RunningSummary | None,
    model: LanguageModelLike,
    max_tokens: int,
    max_tokens_before_summary: int | None = None,
    max_summary_tokens: int = 256,
    token_counter: SummaryTokenCounter = count_tokens_approximately,
    initial_summary_prompt: ChatPromptTemplate = DEFAULT_INITIAL_SUMMARY_PROMPT,
    existing_summary_prompt: ChatPromptTemplate = DEFAULT_EXISTING_SUMMARY_PROMPT,
    final_prompt: ChatPromptTemplate = DEFAULT_FINAL_SUMMARY_PROMPT,
    overflow: Overflow = "fold",
) -> SummarizationResult:
    """`summarize_messages` with `ainvoke`: the same parameters, the same result."""
    options = Options(
        max_tokens=max_tokens,
        max_tokens_before_summary=max_tokens_before_summary,
        max_summary_tokens=max_summary_tokens,
        token_counter=token_counter,
        initial_summary_prompt=initial_summary_prompt,
        existing_summary_prompt=existing_summary_prompt,
        final_prompt=final_prompt,
        overflow=overflow,
    )
    summarization = Summarization(messages, as_running_summary(running_summary), options)
    while (prompt := summarization.next_prompt()) is not None:
        summarization.answer(await model.ainvoke(prompt))
    return summarization.result()

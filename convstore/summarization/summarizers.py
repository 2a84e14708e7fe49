"""Summarizers, which write the summaries stored with a conversation.

A summarizer receives messages and the summary of the messages before them, and returns the summary of both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, cast

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError, MissingExtraError
from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.summarization.engine import Steps, ask, drive_async, model_name
from convstore.summarization.prompts import record_prompt, record_steps, words_of
from convstore.values.policy import CompactionRule
from convstore.values.scope import check_number

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel, LanguageModelLike

_MIN_CHARACTERS = 10
_MAX_CHARACTERS = 50_000
_SMALL_TRIGGER = 4_000


class Summarizer(Protocol):
    """Writes summaries. Optional attributes: `rule`, a `CompactionRule`, and `name`, which is stored with a summary."""

    def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> Awaitable[str]:
        """Return a summary of the earlier summary, None without one, and of the messages that follow it."""
        ...


SummarizerLike = Summarizer | Callable[[Sequence[BaseMessage], str | None], Awaitable[str]]
"""A summarizer, or an async function from messages and the earlier summary to the new one."""


class RunningSummarizer:
    """Asks a chat model for the summary, in as many steps as the messages need.

    Each message is shown to the model once and whole, as escaped text between tags: a long one in pieces, cut between
    words, and media as a line with type and size. The model is called with ``ainvoke(messages)``.

    Args:
        model: Any LangChain chat model, or a runnable that answers like one; or a name for ``init_chat_model``, which
            needs the extra ``langchain``.
        max_tokens: Approximate size of a request; a longer message is shown in pieces.
        max_tokens_before_summary: Summarise once the messages that are not summarised are larger; None for half of
            the budget of the store's policy.
        max_summary_tokens: Expected size of a summary; bind the model's own limit to it to enforce this.
        keep_last_turns: Number of finished turns that are not summarised, as far as they fit in half of the trigger.
        instructions: The system prompt; None for the default.
    """

    def __init__(
        self,
        model: LanguageModelLike | str,
        *,
        max_tokens: int = 16_000,
        max_tokens_before_summary: int | None = None,
        max_summary_tokens: int = 1_000,
        keep_last_turns: int = 4,
        instructions: str | None = None,
    ) -> None:
        if isinstance(model, str):
            model = _chat_model(model)
        if not hasattr(model, "ainvoke"):
            raise InvalidInputError(
                f"model must be a LangChain chat model, not {type(model).__name__}"
            )
        check_number(max_tokens, name="max_tokens", minimum=100)
        self.rule = CompactionRule(
            max_tokens_before_summary=max_tokens_before_summary,
            max_summary_tokens=max_summary_tokens,
            keep_last_turns=keep_last_turns,
        )
        self._model = model
        # for messages next to the earlier summary
        self._room = max(max_tokens - max_summary_tokens, max_tokens // 2)
        self._instructions = instructions

    @property
    def name(self) -> str:
        """The name of the model, or of its class."""
        return model_name(self._model)

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        """Return a summary of the earlier summary and the messages, with one model call for each step.

        Raises:
            SummaryError: The model answered without text.
        """
        return await drive_async(self._steps(messages, summary), self._model.ainvoke)

    def _steps(self, messages: Sequence[BaseMessage], summary: str | None) -> Steps[str]:
        for step in record_steps(messages, self._room):
            summary = yield from ask(record_prompt(self._instructions, summary, step))
        return summary or ""


class HeadTailSummarizer:
    """Takes the beginning and the end of each message, without a model, for demos and tests. The first line says so.

    A summary larger than half of the rule's trigger, or 2,000 tokens without a trigger, loses its oldest lines; then
    the first line says that, too.

    Args:
        rule: When a store asks for a summary.
        characters: Number of characters of each message, half from its beginning and half from its end.
    """

    name = "head-and-tail"
    _TITLE = "(Made without a model, from the beginning and the end of each message.)"
    _SHORTENED = (
        "(Made without a model, from the beginning and the end of each message; "
        "older lines are left out.)"
    )

    def __init__(self, rule: CompactionRule | None = None, *, characters: int = 80) -> None:
        self.rule = rule or CompactionRule()
        self._half = check_number(characters, name="characters", minimum=_MIN_CHARACTERS) // 2

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        """Return the lines of the earlier summary and one line for each message."""
        title, *lines = [self._TITLE] if summary is None else summary.split("\n")
        lines += [
            f"{message.type}: {self._ends(' '.join(words_of(message).split()))}"
            for message in messages
        ]
        room = min(
            (self.rule.max_tokens_before_summary or _SMALL_TRIGGER) * CHARACTERS_PER_TOKEN // 2,
            _MAX_CHARACTERS,
        )
        sizes = accumulate(len(line) + 1 for line in reversed(lines))
        kept = max(1, sum(size <= room for size in sizes))
        return "\n".join(
            [title, *lines] if kept >= len(lines) else [self._SHORTENED, *lines[-kept:]]
        )

    def _ends(self, text: str) -> str:
        if len(text) <= 2 * self._half + 5:
            return text
        return f"{text[: self._half]} ... {text[-self._half :]}"


class _Function:
    def __init__(
        self, function: Callable[[Sequence[BaseMessage], str | None], Awaitable[str]]
    ) -> None:
        self.rule: CompactionRule = getattr(function, "rule", CompactionRule())
        self.name = getattr(function, "__name__", type(function).__name__)
        self._function = function

    def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> Awaitable[str]:
        return self._function(messages, summary)


def as_summarizer(given: SummarizerLike) -> Summarizer:
    """Return a summarizer; wrap a function, and raise an InvalidInputError for anything else."""
    if isinstance(given, type):
        raise InvalidInputError(
            f"summarizer must be a Summarizer, not its class: pass {given.__name__}(...)"
        )
    if not isinstance(rule := getattr(given, "rule", None), CompactionRule | None):
        raise InvalidInputError(
            f"the rule of a summarizer must be a CompactionRule, not {type(rule).__name__}"
        )
    if hasattr(given, "summarize"):
        return cast("Summarizer", given)
    if not callable(given):
        raise InvalidInputError(
            f"summarizer must be a Summarizer or an async function, not {type(given).__name__}"
        )
    return _Function(given)


def _chat_model(name: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model  # noqa: PLC0415 - only a model's name needs langchain
    except ImportError as error:
        raise MissingExtraError(package="langchain", extra="langchain") from error
    model: BaseChatModel = init_chat_model(name)
    return model

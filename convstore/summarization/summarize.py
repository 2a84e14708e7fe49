"""Summarise a list of messages when it grows too long, with a function for sync and one for async callers.

Providers reject a result without its call. So a result that was added after its call was summarised is shown as text.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from langchain_core.language_models import LanguageModelLike
from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.messages.utils import count_tokens_approximately, trim_messages
from langchain_core.prompts import ChatPromptTemplate

from convstore.exceptions import InvalidInputError
from convstore.messages.provenance import kind_of, mark
from convstore.messages.tool_calls import pair, without_orphans
from convstore.summarization.cuts import Cuts, choose_cut, next_step
from convstore.summarization.engine import Steps, ask, drive, drive_async
from convstore.summarization.models import (
    DEFAULT_EXISTING_SUMMARY_PROMPT,
    DEFAULT_FINAL_SUMMARY_PROMPT,
    DEFAULT_INITIAL_SUMMARY_PROMPT,
    RunningSummary,
    SummarizationResult,
    as_running_summary,
)
from convstore.values.plain import shown_value
from convstore.values.scope import check_number

Overflow = Literal["fold", "trim"]
"""Policy for messages that do not fit one call of the summarizer."""

SummaryTokenCounter = Callable[[list[BaseMessage]], int]
"""Function that returns the tokens of a list of messages; it is called with one message at a time."""

_MIN_SHARE = 4
_CALLER = 6
"""Stack level of the caller of `summarize_messages` for a warning in `_Input.trimmed`."""


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
    """Replace the oldest messages by a summary once they reach a number of tokens.

    Each summarised message is shown to the model exactly once, a call always with its results. The result is the system
    message, the summary and the other messages in order; below the threshold and without an earlier summary, the input.
    The input is never changed. An error of the model reaches the caller.

    Args:
        messages: The conversation, or the result of an earlier call with messages added. Each needs an id, except a
            leading system message, which is never summarised.
        running_summary: The summary of the earlier call, None without one. Its messages are skipped.
        model: The model, which is called with `invoke(messages)`.
        max_tokens: Limit of the result and of each call of the model. Only the system message, a call with its results
            and the open question may exceed it; then `SummarizationResult.over_budget` is True.
        max_tokens_before_summary: Summarise up to the message at which the new messages reach this size and the rest
            fits. An open question or call there is kept if it fits. The default is `max_tokens`.
        max_summary_tokens: Room kept for the summary message. The model is not told; bind its own limit to enforce it.
        token_counter: Returns the size of a list of messages; it is called with one message at a time.
        initial_summary_prompt: Asks for the first summary; variable `messages`.
        existing_summary_prompt: Asks for an extended one; variables `messages` and `existing_summary`.
        final_prompt: Puts the summary before the rest; variables `system_message`, `summary` and `messages`.
        overflow: "fold" shows messages that do not fit one call in several, each of which extends the summary. "trim"
            makes one call without the oldest, or with all and a RuntimeWarning if no human message begins a part.

    Raises:
        InvalidInputError: A ValueError: a message has no id, was summarised before or comes twice, or
            `max_summary_tokens` is not below `max_tokens`. No model was called.
        SummaryError: The model answered without text.
    """
    options = Options.among(locals())
    ask_model = call_of(model, "invoke")
    return drive(summarization_steps(messages, running_summary, options), ask_model)


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
    options = Options.among(locals())
    ask_model = call_of(model, "ainvoke")
    return await drive_async(summarization_steps(messages, running_summary, options), ask_model)


def call_of(model: Any, method: Literal["invoke", "ainvoke"]) -> Any:
    """Return the method that calls a model; raise an InvalidInputError if the model does not have it."""
    found = getattr(model, method, None)
    if not callable(found):
        raise InvalidInputError(f"model must be a LangChain chat model, not {type(model).__name__}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parameters of `summarize_messages` that shape a summarization."""

    max_tokens: int
    max_tokens_before_summary: int | None
    max_summary_tokens: int
    token_counter: SummaryTokenCounter
    initial_summary_prompt: ChatPromptTemplate
    existing_summary_prompt: ChatPromptTemplate
    final_prompt: ChatPromptTemplate
    overflow: Overflow

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Options:
        """Return the options among the arguments of a function."""
        return cls(**{option.name: arguments[option.name] for option in fields(cls)})

    def check(self) -> None:
        """Raise an InvalidInputError for an option of a wrong type, and if the options contradict each other."""
        check_number(self.max_tokens, name="max_tokens", minimum=0)
        check_number(self.max_summary_tokens, name="max_summary_tokens", minimum=0)
        if self.max_tokens_before_summary is not None:
            check_number(
                self.max_tokens_before_summary, name="max_tokens_before_summary", minimum=0
            )
        if not callable(self.token_counter):
            raise InvalidInputError(
                "token_counter must be a function from messages to a number, not "
                f"{type(self.token_counter).__name__}"
            )
        if self.max_summary_tokens >= self.max_tokens:
            raise InvalidInputError("`max_summary_tokens` must be less than `max_tokens`.")
        if self.overflow not in ("fold", "trim"):
            raise InvalidInputError(f'overflow is "fold" or "trim", not {self.overflow!r}')

    def size(self, messages: Sequence[BaseMessage]) -> int:
        """Return the size of messages in tokens."""
        return sum(self.token_counter([message]) for message in messages)


def summarization_steps(
    messages: Sequence[BaseMessage], running: Any, options: Options
) -> Steps[SummarizationResult]:
    """Ask for a summary of the messages up to the cut, in as many steps as they need."""
    options.check()
    _check_messages(messages)
    given = _Input(messages, as_running_summary(running), options)
    text = given.running.summary if given.running else None
    cuts = Cuts(given.new[: given.cut])
    done = 0
    while done < given.cut:
        budget = given.budget(text)
        if options.overflow == "trim":
            end = given.cut
            shown = given.trimmed(budget)
        else:
            end = next_step(cuts, given.tokens, start=done, budget=budget)
            shown = given.new[done:end]
        text = yield from ask(given.prompt(shown, text))
        done = end
    return given.result(text)


class _Input:
    """The input of a summarization: the messages that are not summarised yet, and how many of them to fold."""

    def __init__(
        self, messages: Sequence[BaseMessage], running: RunningSummary | None, options: Options
    ) -> None:
        self.messages = messages
        self.running = running
        self.options = options
        first = messages[0] if messages else None
        is_system = (
            isinstance(first, SystemMessage)
            and not _was_added(first)
            and not self._is_summary(first)
        )
        self.system = list(messages[:is_system])
        self.new = self._not_summarized(messages[is_system:])
        _check_ids(self.new, running)
        cuts = Cuts(self.new)
        # A result whose call was folded is shown as text.
        shown = [
            without_orphans([item])[0] if at in cuts.orphans else item
            for at, item in enumerate(self.new)
        ]
        self.tokens = [options.token_counter([message]) for message in shown]
        self.cut = self._choose_cut(cuts) if self.new else 0

    def budget(self, text: str | None) -> int:
        """Return the maximum size of the messages in a request, next to the summary that it extends."""
        if text is None:
            return self.options.max_tokens
        used = self.options.size([SystemMessage(text)])
        # Even if the summary is far too large, a call must not be limited to one message.
        return max(self.options.max_tokens - used, self.options.max_tokens // _MIN_SHARE)

    def trimmed(self, budget: int) -> list[BaseMessage]:
        """Return the messages to fold, without the oldest ones if they exceed the budget."""
        folded = self.new[: self.cut]
        if sum(self.tokens[: self.cut]) <= budget:
            return folded
        counter = self.options.token_counter
        kept = trim_messages(
            folded,
            max_tokens=budget,
            token_counter=counter,
            strategy="last",
            start_on="human",
            allow_partial=True,
        )
        if not kept:
            warnings.warn(
                f"no human message begins a part of {budget} tokens; the summarizer is shown all "
                "that it summarises",
                RuntimeWarning,
                stacklevel=_CALLER,
            )
        return kept or folded

    def prompt(self, messages: Sequence[BaseMessage], text: str | None) -> list[BaseMessage]:
        """Return the request for a summary of the messages that extends an earlier text."""
        shown = pair(without_orphans(messages)).messages  # a list that any provider accepts
        if text is None:
            return self.options.initial_summary_prompt.format_messages(messages=shown)
        return self.options.existing_summary_prompt.format_messages(
            messages=shown, existing_summary=text
        )

    def result(self, text: str | None) -> SummarizationResult:
        """Return the messages after the cut with the summary before them."""
        running = self.running
        rest = self.new[self.cut :]
        if self.cut and text is not None:
            folded = [str(message.id) for message in self.new[: self.cut]]
            before = running.summarized_message_ids if running else set[str]()
            running = RunningSummary(text, before | set(folded), folded[-1], self.new[-1].id)
        size = self.options.size(self.system) + sum(self.tokens[self.cut :])
        shown = list(self.messages)
        if running and len(self.messages) > len(self.system):
            size += self._summary_size(running)
            shown = _with_summary(
                running, rest, system=self.system, prompt=self.options.final_prompt
            )
        return SummarizationResult(shown, running, size > self.options.max_tokens)

    def _is_summary(self, message: BaseMessage) -> bool:
        """Return True if a message is the running summary as another library left it in a state, without our mark."""
        if not self.running or not isinstance(message, SystemMessage):
            return False
        return message.text in {
            made.text for made in _summary_messages(self.running, self.options.final_prompt)
        }

    def _not_summarized(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages after the last summarised one; if it is unknown, those not in the running summary."""
        running = self.running
        if running is None:
            return list(messages)
        if messages and self._is_summary(messages[0]):
            messages = messages[1:]
        last = running.last_summarized_message_id
        known: Collection[str | None] = ()
        if last is None:
            known = running.summarized_message_ids
        else:
            messages = _after(messages, last)
        return [
            message
            for message in messages
            if message.id not in known and not _was_added(message, running)
        ]

    def _summary_size(self, running: RunningSummary) -> int:
        return self.options.size(_summary_messages(running, self.options.final_prompt))

    def _choose_cut(self, cuts: Cuts) -> int:
        options = self.options
        running = self.running
        maximum = options.max_tokens - options.size(self.system)
        room = maximum - options.max_summary_tokens
        unfolded_room = maximum - (self._summary_size(running) if running else 0)
        if unfolded_room < 0 and running:
            unfolded_room = room  # no cut helps against a summary that is larger than the limit
        wanted = options.max_tokens_before_summary
        before_summary = options.max_tokens if wanted is None else wanted
        if running and self._ends_with(running.newest_message_id):
            # No message was added since the summary was made, so only a lower limit requires another one.
            before_summary = sum(self.tokens) + 1
            unfolded_room = max(room, unfolded_room)
        return choose_cut(
            cuts, self.tokens, before_summary=before_summary, room=room, unfolded_room=unfolded_room
        )

    def _ends_with(self, message_id: str | None) -> bool:
        """Return True if a message is the last one; the texts that `without_orphans` moved after it do not count."""
        ids = [message.id for message in self.new]
        is_late = [kind_of(message) == "late_result" for message in self.new]
        return message_id in ids and all(is_late[ids.index(message_id) + 1 :])


def _check_messages(messages: Sequence[BaseMessage]) -> None:
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str | bytes)
    if not is_list or not all(isinstance(message, BaseMessage) for message in messages):
        raise InvalidInputError(
            f"messages must be a list of LangChain messages, not {shown_value(messages)}"
        )


def _check_ids(messages: Sequence[BaseMessage], running: RunningSummary | None) -> None:
    before = running.summarized_message_ids if running else set[str]()
    for index, message in enumerate(messages):
        if message.id is None:
            raise InvalidInputError(
                f"Messages are required to have ID field; the {message.type} message "
                f"{index} has no id."
            )
        if message.id in before:
            raise InvalidInputError(f"Message with ID {message.id} has already been summarized.")
    twice = [
        name for name, times in Counter(message.id for message in messages).items() if times > 1
    ]
    if twice:
        raise InvalidInputError(
            f"Message with ID {twice[0]} comes twice; a message is summarised once."
        )


def _with_summary(
    running: RunningSummary,
    rest: Sequence[BaseMessage],
    *,
    system: Sequence[BaseMessage],
    prompt: ChatPromptTemplate,
) -> list[BaseMessage]:
    """Return the messages of the final prompt: the summary, then the messages that follow it.

    Every message that the prompt adds is marked as a summary. Its id derives from the last summarised message, or from
    all their ids, so that a later call recognises it.
    """
    given = without_orphans(rest)
    made = prompt.format_messages(
        system_message=list(system), summary=running.summary, messages=given
    )
    theirs = {id(message) for message in (*system, *given)}
    ids = (_summary_id(running, number) for number in itertools.count())
    return [message if id(message) in theirs else _marked(message, next(ids)) for message in made]


def _summary_messages(running: RunningSummary, prompt: ChatPromptTemplate) -> list[BaseMessage]:
    return _with_summary(running, [], system=[], prompt=prompt)


def _was_added(message: BaseMessage, running: RunningSummary | None = None) -> bool:
    """Return True if a final prompt added the message, with `running` only for this very summary."""
    is_ours = running is None or str(message.id).startswith(_summary_id(running, ""))
    return is_ours and kind_of(message) == "summary"


def _summary_id(running: RunningSummary, number: int | str) -> str:
    last = running.last_summarized_message_id
    if last is None:
        last = hashlib.sha256(
            repr(sorted(running.summarized_message_ids)).encode(errors="replace")
        ).hexdigest()[:16]
    return f"{last}:summary-{number}"


def _marked(message: BaseMessage, message_id: str) -> BaseMessage:
    kwargs = {**message.additional_kwargs, **mark("summary")}
    return message.model_copy(update={"id": message_id, "additional_kwargs": kwargs})


def _after(messages: Sequence[BaseMessage], id_: str) -> Sequence[BaseMessage]:
    """Return the messages after the one with an id; all of them if the id is not among them."""
    for index, message in enumerate(messages):
        if message.id == id_:
            return messages[index + 1 :]
    return messages

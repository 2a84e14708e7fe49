"""Leads through a summarization: what to ask the model next, and what comes out at the end.

Floor 1, pure: whoever calls the model, waiting or not, asks here. Nothing of the caller's is changed, so a model that
fails leaves everything as it was.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.messages.utils import trim_messages
from langchain_core.prompts import ChatPromptTemplate

from convstore.exceptions import InvalidInputError, SummaryError
from convstore.messages.tool_calls import without_orphans
from convstore.summarization.models import RunningSummary, SummarizationResult
from convstore.summarization.plan import Cuts, choose_cut, next_step
from convstore.summarization.shown import added_messages, for_summarizer, was_added, with_summary

__all__ = ["Options", "Overflow", "Summarization", "SummaryTokenCounter"]

Overflow = Literal["fold", "trim"]
"""What becomes of messages that do not fit one call of the summarizer."""

SummaryTokenCounter = Callable[[list[BaseMessage]], int]
"""Gives the tokens of a list of messages; is asked for one at a time."""

_LEAST_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that shapes a summarization; `summarize.summarize_messages` explains it.

    Raises:
        InvalidInputError: The summary leaves no room for messages, or `overflow` is none of the two.
    """

    max_tokens: int
    max_tokens_before_summary: int | None
    max_summary_tokens: int
    token_counter: SummaryTokenCounter
    initial_summary_prompt: ChatPromptTemplate
    existing_summary_prompt: ChatPromptTemplate
    final_prompt: ChatPromptTemplate
    overflow: Overflow

    def __post_init__(self) -> None:
        if self.max_summary_tokens >= self.max_tokens:
            raise InvalidInputError("`max_summary_tokens` must be less than `max_tokens`.")
        if self.overflow not in ("fold", "trim"):
            raise InvalidInputError(f'overflow is "fold" or "trim", not {self.overflow!r}')


class Summarization:
    """One summarization: ask it for prompts and tell it the answers until there is no prompt, then take the result.

    Raises:
        InvalidInputError: A message that is not summarised yet has no id, one that was summarised before, or one that
            another message has too. No model was called.
    """

    def __init__(self, messages: Sequence[BaseMessage], running: RunningSummary | None, options: Options) -> None:
        self._messages = messages
        self._running = running
        self._options = options
        self._text = running.summary if running else None
        self._system = self._system_of(messages)
        self._new = self._not_summarized(messages[1:] if self._system else messages)
        _check_ids(self._new, running)
        all_cuts = Cuts(self._new)
        # A result whose call was folded comes out as text.
        shown = (
            without_orphans([message])[0] if index in all_cuts.orphans else message
            for index, message in enumerate(self._new)
        )
        self._tokens = [options.token_counter([message]) for message in shown]
        self._system_tokens = options.token_counter([self._system]) if self._system else 0
        self._cut = self._choose_cut(all_cuts)
        self._cuts = Cuts(self._new[: self._cut])
        self._done = 0
        self._shown = 0

    def next_prompt(self) -> list[BaseMessage] | None:
        """Return the next prompt for the model; None if no more is needed."""
        if self._done == self._cut:
            return None
        if self._options.overflow == "trim":
            self._shown = self._cut
            return self._prompt(self._trimmed(self._new[: self._cut]))
        self._shown = next_step(self._cuts, self._tokens, start=self._done, budget=self._budget())
        return self._prompt(self._new[self._done : self._shown])

    def answer(self, reply: BaseMessage | str) -> None:
        """Take what the model answered to the last prompt.

        Raises:
            SummaryError: It holds no text.
        """
        # A TextAccessor, which `text` of a message is, is not kept: a checkpointer may not know it.
        text = reply if isinstance(reply, str) else str(reply.text)
        if not text.strip():
            raise SummaryError(
                f"the model answered the request for a summary without text ({type(reply).__name__}); "
                "nothing was summarised, try again or use another model"
            )
        self._text = text
        self._done = self._shown

    def result(self) -> SummarizationResult:
        """The messages and the running summary, new if the model was asked."""
        running = self._running
        if self._cut and self._text is not None:
            folded = [str(message.id) for message in self._new[: self._cut]]
            before = running.summarized_message_ids if running else set[str]()
            running = RunningSummary(self._text, before | set(folded), folded[-1], self._new[-1].id)
        nothing_but_system = len(self._messages) == (1 if self._system else 0)
        size = self._system_tokens + sum(self._tokens[self._cut :])
        if running is None or nothing_but_system:
            return SummarizationResult(list(self._messages), running, size > self._options.max_tokens)
        size += self._summary_tokens(running)
        rest = self._new[self._cut :]
        shown = with_summary(running, rest, system=self._system, prompt=self._options.final_prompt)
        return SummarizationResult(shown, running, size > self._options.max_tokens)

    def _system_of(self, messages: Sequence[BaseMessage]) -> SystemMessage | None:
        """The leading system message. A summary is none: it is replaced, or summarised."""
        first = messages[0] if messages else None
        if not isinstance(first, SystemMessage) or was_added(first) or self._is_known_text(first):
            return None
        return first

    def _is_known_text(self, message: BaseMessage) -> bool:
        """Return True if a message is the running summary as left in a state by another library, without our mark."""
        if not self._running or not isinstance(message, SystemMessage):
            return False
        return message.text in {made.text for made in added_messages(self._running, self._options.final_prompt)}

    def _not_summarized(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The messages behind the last summarised one, the summary that was put before them left out.

        If the last one is not known, those whose ids the running summary does not name.
        """
        running = self._running
        if running is None:
            return list(messages)
        if messages and self._is_known_text(messages[0]):
            messages = messages[1:]
        last = running.last_summarized_message_id
        if last is None:
            known = running.summarized_message_ids
            return [one for one in messages if one.id not in known and not was_added(one, running)]
        ids = [message.id for message in messages]
        start = ids.index(last) + 1 if last in ids else 0
        return [message for message in messages[start:] if not was_added(message, running)]

    def _summary_tokens(self, running: RunningSummary) -> int:
        """Tokens of the messages that show a summary."""
        made = added_messages(running, self._options.final_prompt)
        return sum(self._options.token_counter([message]) for message in made)

    def _choose_cut(self, cuts: Cuts) -> int:
        if not self._new:
            return 0
        options, running = self._options, self._running
        maximum = options.max_tokens - self._system_tokens
        room = maximum - options.max_summary_tokens
        unfolded_room = maximum - (self._summary_tokens(running) if running else 0)
        if unfolded_room < 0 and running:
            unfolded_room = room  # no cut helps against a summary that is larger than the limit
        wanted = options.max_tokens_before_summary
        before_summary = options.max_tokens if wanted is None else wanted
        if running and running.newest_message_id == self._new[-1].id:
            # Nothing came since the summary was made: only a lower limit is a reason to make another.
            before_summary, unfolded_room = sum(self._tokens) + 1, max(room, unfolded_room)
        return choose_cut(cuts, self._tokens, before_summary=before_summary, room=room, unfolded_room=unfolded_room)

    def _budget(self) -> int:
        """At most this many tokens to show the model next to the summary that it extends."""
        if self._text is None:
            return self._options.max_tokens
        taken = self._options.token_counter([SystemMessage(self._text)])
        # A summary that got out of hand must not cost a call for each message.
        return max(self._options.max_tokens - taken, self._options.max_tokens // _LEAST_SHARE)

    def _trimmed(self, folded: list[BaseMessage]) -> list[BaseMessage]:
        budget = self._budget()
        if sum(self._tokens[: self._cut]) <= budget:
            return folded
        counter = self._options.token_counter
        kept = trim_messages(
            folded, max_tokens=budget, token_counter=counter, strategy="last", start_on="human", allow_partial=True
        )
        if not kept:
            warnings.warn(
                f"no human message begins a part of {budget} tokens; the summarizer is shown all that it summarises",
                RuntimeWarning,
                stacklevel=4,
            )
        return kept or folded

    def _prompt(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        shown = for_summarizer(messages)
        if self._text is None:
            return self._options.initial_summary_prompt.format_messages(messages=shown)
        return self._options.existing_summary_prompt.format_messages(messages=shown, existing_summary=self._text)


def _check_ids(messages: Sequence[BaseMessage], running: RunningSummary | None) -> None:
    before = running.summarized_message_ids if running else set[str]()
    for index, message in enumerate(messages):
        if message.id is None:
            raise InvalidInputError(
                f"Messages are required to have ID field; the {message.type} message {index} has none."
            )
        if message.id in before:
            raise InvalidInputError(f"Message with ID {message.id} has already been summarized.")
    twice = [name for name, times in Counter(message.id for message in messages).items() if times > 1]
    if twice:
        raise InvalidInputError(f"Message with ID {twice[0]} comes twice; a message is summarised once.")

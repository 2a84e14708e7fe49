"""Define the result of a summarization, the running summary that each call extends, and the default prompts.

Plain dataclasses, so that a checkpointer stores them like those of langmem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate

from convstore.exceptions import InvalidInputError
from convstore.values.plain import part_of

_FIELDS = ("summary", "summarized_message_ids", "last_summarized_message_id")

DEFAULT_INITIAL_SUMMARY_PROMPT: Final = ChatPromptTemplate(
    [
        ("placeholder", "{messages}"),
        (
            "human",
            "Write a summary of our conversation up to here. It will replace these messages, "
            "so keep names, facts, numbers, identifiers, decisions and open questions. "
            "Answer with the summary alone.",
        ),
    ]
)
"""Asks for the first summary. Variable: ``messages``, a list."""

DEFAULT_EXISTING_SUMMARY_PROMPT: Final = ChatPromptTemplate(
    [
        ("placeholder", "{messages}"),
        (
            "human",
            "The conversation before these messages was summarised as "
            "follows:\n\n{existing_summary}\n\nUpdate the summary with the messages above. It will "
            "replace both, so keep what is still true of the old one, and names, facts, numbers, "
            "identifiers, decisions and open questions of the new messages. Answer with the whole "
            "new summary alone.",
        ),
    ]
)
"""Asks for an extended summary. Variables: ``messages``, a list, and ``existing_summary``."""

DEFAULT_FINAL_SUMMARY_PROMPT: Final = ChatPromptTemplate(
    [
        ("placeholder", "{system_message}"),
        ("system", "Summary of the conversation so far: {summary}"),
        ("placeholder", "{messages}"),
    ]
)
"""Puts a summary before the messages that follow it.

Variables: ``system_message``, a list of at most one message, ``summary``, and ``messages``, a list.
"""


@dataclass
class RunningSummary:
    """A summary and the messages that it replaces; pass it to the next call, which extends it.

    Attributes:
        summary: The text, as the model returned it.
        summarized_message_ids: Ids of all messages that it replaces. Grows with the conversation, because only this
            set shows that a message was summarised before.
        last_summarized_message_id: Id of the last of these messages. The next call reads the messages after it; if it
            is None, all messages whose ids are not in the set.
        newest_message_id: Id of the newest message when the summary was made. No further summary is made until a newer
            message is added. None if unknown; ignored by ``==``.
    """

    summary: str
    summarized_message_ids: set[str]
    last_summarized_message_id: str | None = None
    newest_message_id: str | None = field(default=None, compare=False, repr=False)


@dataclass
class SummarizationResult:
    """Messages for a model, and the summary that the next call needs.

    Attributes:
        messages: The system message, the summary and the other messages, in order; the input without a summary.
        running_summary: The summary, None if no message has been summarised yet.
        over_budget: True if the messages are larger than `max_tokens`; ignored by ``==``.
    """

    messages: list[BaseMessage]
    running_summary: RunningSummary | None = None
    over_budget: bool = field(default=False, compare=False)


def as_running_summary(value: Any) -> RunningSummary | None:
    """Return a running summary from a state: ours, one of langmem, or the dict that JSON made of either.

    >>> stored = {"summary": "Ada likes orcas.", "summarized_message_ids": ["m1"], "last_summarized_message_id": "m1"}
    >>> as_running_summary(stored)
    RunningSummary(summary='Ada likes orcas.', summarized_message_ids={'m1'}, last_summarized_message_id='m1')

    Raises:
        InvalidInputError: The value has another type.
    """
    if value is None or isinstance(value, RunningSummary):
        return value
    summary, ids, last = (part_of(value, name) for name in _FIELDS)
    if (
        isinstance(summary, str)
        and isinstance(ids, set | frozenset | list | tuple)
        and isinstance(last, str | None)
    ):
        return RunningSummary(summary, set(ids), last, part_of(value, "newest_message_id"))
    raise InvalidInputError(
        f"running_summary must be a RunningSummary or None, not {type(value).__name__}"
    )

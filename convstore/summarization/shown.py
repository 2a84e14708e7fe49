"""Format messages and summaries for the summarizing model and for the resulting list.

Floor 1, pure. A result without its call is refused by every provider, so where its call was summarised before the
result came, it is shown as text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate

from convstore.messages.provenance import kind_of, mark
from convstore.messages.tool_calls import pair, without_orphans
from convstore.summarization.models import RunningSummary

__all__ = ["added_messages", "for_summarizer", "was_added", "with_summary"]


def for_summarizer(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages, each once, as a list that any provider accepts.

    >>> from langchain_core.messages import ToolMessage
    >>> print(for_summarizer([ToolMessage("2 orcas", name="count", tool_call_id="x")])[0].text)
    [Result of an earlier call of count]
    2 orcas
    """
    return pair(without_orphans(messages)).messages


def with_summary(
    running: RunningSummary,
    rest: Sequence[BaseMessage],
    *,
    system: SystemMessage | None,
    prompt: ChatPromptTemplate,
) -> list[BaseMessage]:
    """Return the messages of the final prompt: the summary, then the messages that follow it.

    Every message that the prompt adds is marked ``{"convstore": {"kind": "summary"}}`` and has an id made from the
    last message that the summary stands for, or from all their ids, so that it is known when it comes back.
    """
    given = [*([system] if system else []), *without_orphans(rest)]
    made = prompt.format_messages(
        system_message=given[:1] if system else [],
        summary=running.summary,
        messages=given[1:] if system else given,
    )
    theirs = {id(message) for message in given}
    numbers = itertools.count()
    return [message if id(message) in theirs else _marked(message, running, next(numbers)) for message in made]


def added_messages(running: RunningSummary, prompt: ChatPromptTemplate) -> list[BaseMessage]:
    """The messages that the final prompt adds."""
    return with_summary(running, [], system=None, prompt=prompt)


def was_added(message: BaseMessage, running: RunningSummary | None = None) -> bool:
    """Return True if a final prompt added a message; with a running summary: for that very summary."""
    is_ours = running is None or str(message.id).startswith(_summary_id(running, ""))
    return is_ours and kind_of(message) == "summary"


def _summary_id(running: RunningSummary, place: int | str) -> str:
    last = running.last_summarized_message_id
    if last is None:
        last = hashlib.sha256(repr(sorted(running.summarized_message_ids)).encode(errors="replace")).hexdigest()[:16]
    return f"{last}:summary-{place}"


def _marked(message: BaseMessage, running: RunningSummary, place: int) -> BaseMessage:
    kwargs = {**message.additional_kwargs, **mark("summary")}
    return message.model_copy(update={"id": _summary_id(running, place), "additional_kwargs": kwargs})

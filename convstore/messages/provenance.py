"""Find which model wrote a message, or if the store generated it.

Notes, summaries and other generated messages exist only in views. A mark in ``additional_kwargs`` has the kind of such
a message. Clients that post whole messages can append marked ones. The log returns these unchanged, but a view removes
their marks, so that only the store can set them there. `view_parts_of` divides a view by kinds, to show its size by
part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage, ToolMessage

MARK = "convstore"
"""The key of the mark in ``additional_kwargs``."""

SUMMARY_PREFIX: Final = "**summarized content:**\n"
"""The beginning of an AI message that is a summary."""

_MODEL_KEYS = ("model_name", "model", "model_id")


def mark(kind: str, **more: Any) -> dict[str, Any]:
    """Return the ``additional_kwargs`` of a message that the store generates.

    >>> mark("note")
    {'convstore': {'kind': 'note'}}
    """
    return {MARK: {"kind": kind, **more}}


def kind_of(message: BaseMessage) -> str:
    """Return the kind in a message's mark, "" if it has no valid mark.

    >>> from langchain_core.messages import HumanMessage
    >>> kind_of(HumanMessage("[Note: ...]", additional_kwargs=mark("note"))), kind_of(HumanMessage("hi"))
    ('note', '')
    """
    kind = _mark_of(message).get("kind")
    return kind if isinstance(kind, str) else ""


def is_generated(message: BaseMessage) -> bool:
    """Return True if a message was generated for a view or by LangChain's summarization, not by a user or a model."""
    return kind_of(message) != "" or message.additional_kwargs.get("lc_source") == "summarization"


def without_generated_results(
    messages: Sequence[BaseMessage], *, calls: Iterable[str], results: Iterable[str]
) -> list[BaseMessage]:
    """Leave out synthetic results of a view's newest calls, if a request has the real results after the view.

    Args:
        messages: The view.
        calls: Ids of the calls after the view, which the first results with these ids answer.
        results: Call ids of the results after the view.

    >>> from langchain_core.messages import ToolMessage
    >>> said = mark("missing_result")
    >>> made = [ToolMessage("None.", tool_call_id="c", id=id_, additional_kwargs=said) for id_ in "ab"]
    >>> [message.id for message in without_generated_results(made, calls=[], results=["c", "d"])]
    ['a']
    """
    answering = Counter(results) - Counter(calls)
    kept: list[BaseMessage] = []
    for message in reversed(messages):
        if (
            isinstance(message, ToolMessage)
            and kind_of(message)
            and answering[message.tool_call_id]
        ):
            answering[message.tool_call_id] -= 1
        else:
            kept.append(message)
    return kept[::-1]


def model_of(message: BaseMessage) -> str:
    """Return the name of the model that wrote a message, "" if the message does not have it.

    >>> from langchain_core.messages import AIMessage
    >>> model_of(AIMessage("hi", response_metadata={"model_name": "gpt-5"}))
    'gpt-5'
    """
    # messages from dicts of OpenAI and Anthropic have it in `additional_kwargs`
    metadata = (
        message.response_metadata,
        message.additional_kwargs,
    )
    names = (found.get(key) for found in metadata if isinstance(found, dict) for key in _MODEL_KEYS)
    return next((name for name in names if isinstance(name, str) and name), "")


def without_mark(message: BaseMessage) -> BaseMessage:
    """Remove the mark of a generated message from a decoded message, in place.

    >>> from langchain_core.messages import HumanMessage
    >>> without_mark(HumanMessage("hi", additional_kwargs=mark("note") | {"x": 1})).additional_kwargs
    {'x': 1}
    """
    if message.additional_kwargs and "kind" in _mark_of(message):
        message.additional_kwargs = {
            key: value for key, value in message.additional_kwargs.items() if key != MARK
        }
    return message


def _mark_of(message: BaseMessage) -> dict[str, Any]:
    # a message that was built without validation may have any value here
    extra: Any = message.additional_kwargs
    found = extra.get(MARK) if extra and isinstance(extra, dict) else None
    return found if isinstance(found, dict) else {}


def view_parts_of(
    messages: Sequence[BaseMessage], smaller: Collection[str | None], *, current: str
) -> list[str]:
    """Return the part of each message of a view, which is the name of a field of `ViewParts`.

    Args:
        messages: The view.
        smaller: Ids of the messages that are not shown whole.
        current: Id of the question of the turn in progress; "" if the newest turn is over.

    >>> from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    >>> view = [SystemMessage("Cite."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage("And?", id="q2")]
    >>> view_parts_of(view, (), current="q2"), view_parts_of(view, (), current="")
    (['system', 'turn', 'turn', 'now'], ['system', 'turn', 'turn', 'turn'])
    """
    begins = [index for index, message in enumerate(messages) if message.id == current]
    now = begins[0] if begins else len(messages)
    parts: list[str] = []
    for index, message in enumerate(messages):
        if message.type == "system":
            parts.append("system")
        elif kind_of(message) in ("summary", "note"):
            parts.append("summary")
        elif message.id in smaller:
            parts.append("stub")
        elif index < now:
            parts.append("turn")
        else:
            parts.append("now")
    return parts

"""Tell who wrote a message: which model, or the store, which marks those that it generates.

Notes, summaries and the like exist in views and in no log. A mark in ``additional_kwargs`` says which kind a message
is. Clients that post whole messages can append marked ones. The log returns those as they came, but a view removes
their marks: there, only the store sets them. `parts_of` divides a view by them, to see what fills it.
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


def is_made_up(message: BaseMessage) -> bool:
    """Return True if a message was generated for a view or by LangChain's summarization, not by a participant."""
    return kind_of(message) != "" or message.additional_kwargs.get("lc_source") == "summarization"


def without_made_results(
    messages: Sequence[BaseMessage], *, calls: Iterable[str], results: Iterable[str]
) -> list[BaseMessage]:
    """Leave out results that a view made up for its newest calls, where a request has their results after the view.

    Args:
        messages: The view.
        calls: Ids of the calls that follow it, which have the first of the results with their ids.
        results: Call ids of the results that follow it.

    >>> from langchain_core.messages import ToolMessage
    >>> said = mark("missing_result")
    >>> made = [ToolMessage("None.", tool_call_id="c", id=id_, additional_kwargs=said) for id_ in "ab"]
    >>> [message.id for message in without_made_results(made, calls=[], results=["c", "d"])]
    ['a']
    """
    answering = Counter(results) - Counter(calls)
    kept = list[BaseMessage]()
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
    """Return the name of the model that wrote a message, "" if the message does not name one.

    >>> from langchain_core.messages import AIMessage
    >>> model_of(AIMessage("hi", response_metadata={"model_name": "gpt-5"}))
    'gpt-5'
    """
    # dicts of OpenAI and Anthropic have it beside
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
    # a message built without validation may hold any value here
    extra: Any = message.additional_kwargs
    found = extra.get(MARK) if extra and isinstance(extra, dict) else None
    return found if isinstance(found, dict) else {}


def parts_of(
    messages: Sequence[BaseMessage], smaller: Collection[str | None], *, current: str
) -> list[str]:
    """Return the part of each message of a view: the name of a field of `ViewParts`.

    Args:
        messages: The view.
        smaller: Ids of the messages that it does not show whole.
        current: Id of the message with which the turn in progress begins; "" if the newest turn is over.

    >>> from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    >>> view = [SystemMessage("Cite."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage("And?", id="q2")]
    >>> parts_of(view, (), current="q2"), parts_of(view, (), current="")
    (['system', 'turn', 'turn', 'now'], ['system', 'turn', 'turn', 'turn'])
    """
    begins = [index for index, message in enumerate(messages) if message.id == current]
    now = begins[0] if begins else len(messages)
    parts = list[str]()
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

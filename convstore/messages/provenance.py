"""What tells the messages that the store makes from those that somebody wrote.

Layer 1. A note, a summary and the like stand in views and in no log, and a mark in ``additional_kwargs`` says which of
these a message is. A message that is appended can bear one, too, from a client that posts whole messages; the log gives
it back as it came, but in a view marks are the store's alone.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage

__all__ = ["MARK", "kind_of", "mark", "without_mark"]

MARK = "convstore"
"""The key of the mark in ``additional_kwargs``."""


def mark(kind: str, **more: Any) -> dict[str, Any]:
    """The ``additional_kwargs`` of a message that the store makes.

    >>> mark("note")
    {'convstore': {'kind': 'note'}}
    """
    return {MARK: {"kind": kind, **more}}


def kind_of(message: BaseMessage) -> str:
    """What a message says that the store made it as; "" if it says nothing, whatever else stands in its place.

    >>> from langchain_core.messages import HumanMessage
    >>> kind_of(HumanMessage("[Note: ...]", additional_kwargs=mark("note"))), kind_of(HumanMessage("hi"))
    ('note', '')
    """
    kind = _mark_of(message).get("kind")
    return kind if isinstance(kind, str) else ""


def without_mark(message: BaseMessage) -> BaseMessage:
    """A decoded message, less a mark that says that the store made it; changed in place.

    >>> from langchain_core.messages import HumanMessage
    >>> without_mark(HumanMessage("hi", additional_kwargs=mark("note") | {"x": 1})).additional_kwargs
    {'x': 1}
    """
    if "kind" in _mark_of(message):
        message.additional_kwargs = {key: value for key, value in message.additional_kwargs.items() if key != MARK}
    return message


def _mark_of(message: BaseMessage) -> dict[str, Any]:
    extra: Any = message.additional_kwargs  # a message that was made without validation may hold anything
    found = extra.get(MARK) if isinstance(extra, dict) else None
    return found if isinstance(found, dict) else {}

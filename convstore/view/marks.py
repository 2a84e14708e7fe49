"""What tells the messages of a view that the store made from those that somebody wrote.

Layer 1. A mark in ``additional_kwargs`` says what was made, and every message of a view has an id of its own. Both can
come with a message that is appended, from a client that posts whole messages; the log gives such a message back as it
came, but in a view marks and ids of that form are the store's alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage

__all__ = ["MARK", "with_ids_of_their_own", "without_mark"]

MARK = "convstore"


def without_mark(message: BaseMessage) -> BaseMessage:
    """A decoded message, less a mark that says that the store made it; changed in place.

    >>> from langchain_core.messages import HumanMessage
    >>> without_mark(HumanMessage("hi", additional_kwargs={"convstore": {"kind": "note"}, "x": 1})).additional_kwargs
    {'x': 1}
    """
    extra = message.additional_kwargs
    if isinstance(extra, dict) and isinstance(mark := extra.get(MARK), dict) and "kind" in mark:
        message.additional_kwargs = {key: value for key, value in extra.items() if key != MARK}
    return message


def with_ids_of_their_own(messages: Sequence[BaseMessage], logged: Sequence[bool]) -> list[BaseMessage]:
    """The messages of a view, each with another id: one that was made gives way to those of the log.

    Args:
        messages: In order.
        logged: For each whether it is in the log.

    >>> from langchain_core.messages import HumanMessage
    >>> note, asked = HumanMessage("[Note: ...]", id="note-5"), HumanMessage("hi", id="note-5")
    >>> [message.id for message in with_ids_of_their_own([note, asked], [False, True])]
    ['note-5~', 'note-5']
    """
    taken = {message.id for message, is_logged in zip(messages, logged, strict=True) if is_logged}
    own: list[BaseMessage] = []
    for message, is_logged in zip(messages, logged, strict=True):
        id_ = message.id
        while not is_logged and id_ is not None and id_ in taken:
            id_ += "~"
        taken.add(id_)
        own.append(message if id_ == message.id else message.model_copy(update={"id": id_}))
    return own

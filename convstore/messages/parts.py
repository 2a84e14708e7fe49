"""Tell to which part of a view a message belongs, to see what fills it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from langchain_core.messages import BaseMessage

from convstore.messages.provenance import kind_of

PARTS: tuple[str, ...] = ("system", "summary", "stub", "turn", "now")
"""System messages; summary and note; stubs and shortened messages; other messages of finished turns; the open turn."""


def parts_of(
    messages: Sequence[BaseMessage], smaller: Collection[str | None], *, current: str
) -> list[str]:
    """Return the part of each message of a view.

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

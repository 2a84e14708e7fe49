"""Tell to which part of a view a message belongs, to see what fills it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from langchain_core.messages import BaseMessage

from convstore.messages.filing import is_answer
from convstore.messages.provenance import kind_of

PARTS: tuple[str, ...] = ("system", "summary", "stub", "turn", "now")
"""System messages; summary and note; stubs and shortened messages; other messages of finished turns; the open turn."""


def parts_of(messages: Sequence[BaseMessage], smaller: Collection[str | None]) -> list[str]:
    """Return the part of each message of a view; `smaller` are the ids of those that it does not show whole.

    >>> from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    >>> view = [SystemMessage("Cite."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage("And?")]
    >>> parts_of(view, ())
    ['system', 'turn', 'turn', 'now']
    >>> parts_of([HumanMessage("Hi"), AIMessage("One moment.", response_metadata={"stop_reason": "pause_turn"})], ())
    ['now', 'now']
    """
    current = _start_of_open_turn(messages)
    parts = list[str]()
    for index, message in enumerate(messages):
        if message.type == "system":
            parts.append("system")
        elif kind_of(message) in ("summary", "note"):
            parts.append("summary")
        elif message.id in smaller:
            parts.append("stub")
        elif index < current:
            parts.append("turn")
        else:
            parts.append("now")
    return parts


def _start_of_open_turn(messages: Sequence[BaseMessage]) -> int:
    """Return the index of the last question, or the end if it has its answer."""
    if not messages or is_answer(messages[-1]):
        return len(messages)
    questions = [
        index
        for index, message in enumerate(messages)
        if message.type == "human" and not kind_of(message)
    ]
    return questions[-1] if questions else 0

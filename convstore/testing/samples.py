"""Messages for tests: turns as agents make them, and a comparison that handles NaN and deep nesting."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel

from convstore.messages.encoding import fields_of

__all__ = ["SHARED_FIXTURES", "new_id", "passages", "rag_turn", "same_messages", "same_values"]

SHARED_FIXTURES = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)
"""Health checks that do not apply: every example makes a conversation of its own, on each backend's store."""


def new_id() -> str:
    """An id that no other test uses."""
    return uuid.uuid4().hex


def passages(
    count: int, *, words: int = 60, topic: str = "whales"
) -> list[tuple[str, dict[str, Any]]]:
    """Retrieved passages as tools give them: pairs of text and metadata."""
    return [
        (
            f"Passage {number} on {topic}. "
            + " ".join(f"{topic}{number}w{word}" for word in range(words)),
            {
                "title": f"{topic.title()} {number}",
                "url": f"https://example.org/{topic}/{number}",
                "score": 1 / number,
            },
        )
        for number in range(1, count + 1)
    ]


def rag_turn(
    question: str, *, sources: int = 3, words: int = 60, tool: str = "search"
) -> list[BaseMessage]:
    """A finished turn with one retrieval: question, call, result with sources, answer; all with ids."""
    found = passages(sources, words=words, topic=question.rsplit(maxsplit=1)[-1].strip("?"))
    call = f"call_{new_id()[:12]}"
    content = "\n\n".join(f"[{index}] {text}" for index, (text, _) in enumerate(found, 1))
    return [
        HumanMessage(question, id=new_id()),
        AIMessage(
            "", id=new_id(), tool_calls=[{"name": tool, "args": {"query": question}, "id": call}]
        ),
        ToolMessage(content, id=new_id(), name=tool, tool_call_id=call, artifact=found),
        AIMessage(f"This is what I found on: {question}", id=new_id()),
    ]


def same_messages(left: Sequence[BaseMessage], right: Sequence[BaseMessage]) -> bool:
    """Return True if two lists hold messages of the same classes with equal fields; NaN equals NaN."""
    kinds = [type(message) for message in left] == [type(message) for message in right]
    return kinds and same_values(
        [fields_of(message) for message in left], [fields_of(message) for message in right]
    )


def same_values(left: Any, right: Any) -> bool:
    """Return True if two values are equal in type and value at any depth; knows nothing of how they are stored."""
    pairs: list[tuple[Any, Any]] = [(left, right)]
    item: Any
    other: Any
    while pairs:
        item, other = pairs.pop()
        item, other = (
            vars(value) if isinstance(value, BaseModel) else value for value in (item, other)
        )
        if type(item) is not type(other) and not (isinstance(item, str) and isinstance(other, str)):
            return False
        if (
            isinstance(item, dict)
            and isinstance(other, dict)
            and list(map(repr, item)) == list(map(repr, other))
        ):
            pairs += zip(item.values(), other.values(), strict=True)
        elif isinstance(item, list | tuple) and len(item) == len(other):
            pairs += zip(item, other, strict=True)
        elif isinstance(item, set | frozenset):
            pairs.append((sorted(map(repr, item)), sorted(map(repr, other))))
        elif isinstance(item, float | complex | Decimal):  # NaN equals NaN, and -0.0 is not 0.0
            pairs.append((repr(item), repr(other)))
        elif item != other:
            return False
    return True

"""Sums of the calls of each tool over messages: calls, failures, sizes of results, and results that were read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages import ToolCall as Call

from convstore.sources.stub import RETRIEVAL_TOOL, stub_sources
from convstore.types import StoredMessage

_WORD = re.compile(r"[^\s,;\[\]\"']+")


@dataclass(slots=True)
class ToolSum:
    """The calls of one tool, with the stored size of its results; `read_back` is the number of results read again."""

    name: str
    calls: int = 0
    failed: int = 0
    tokens: int = 0
    read_back: int = 0


def add_tools(sums: dict[str, ToolSum], messages: Sequence[StoredMessage]) -> None:
    """Add the calls in messages of one conversation, and their results, to the sums by the names of tools."""
    again = read_back_in(messages)
    names = names_of_results(messages)
    for stored in messages:
        message = stored.message
        for call in calls_in(stored):
            sums.setdefault(call["name"], ToolSum(call["name"])).calls += 1
        if isinstance(message, ToolMessage):
            name = names[stored.ordinal]
            tool = sums.setdefault(name, ToolSum(name))
            tool.failed += stored.is_failed
            tool.tokens += stored.tokens
            tool.read_back += stored.ordinal in again


def by_tokens(sums: dict[str, ToolSum]) -> list[ToolSum]:
    """Return sums in order, those with the largest results first."""
    return sorted(sums.values(), key=lambda tool: -tool.tokens)


def calls_in(stored: StoredMessage) -> list[Call]:
    """Return the calls that a message makes."""
    return stored.message.tool_calls if isinstance(stored.message, AIMessage) else []


def names_of_results(messages: Sequence[StoredMessage]) -> dict[int, str]:
    """Return the tool of each result by its ordinal: the name in it, or else that of its call; "" without either."""
    called = dict[str, str]()
    names = dict[int, str]()
    for stored in messages:
        called |= {str(call["id"]): call["name"] for call in calls_in(stored)}
        if isinstance(stored.message, ToolMessage):
            call_id = stored.message.tool_call_id
            names[stored.ordinal] = stored.message.name or called.get(call_id, "")
    return names


def read_back_in(messages: Sequence[StoredMessage]) -> set[int]:
    """Return the ordinals of the results that a model read again, as far as messages of one conversation tell."""
    asked = frozenset(_names_asked(messages))
    results = (stored for stored in messages if isinstance(stored.message, ToolMessage))
    return {stored.ordinal for stored in results if not asked.isdisjoint(_names(stored))}


def _names_asked(messages: Iterable[StoredMessage]) -> Iterator[str]:
    """Yield the words in the arguments of calls that read results again."""
    for stored in messages:
        for call in calls_in(stored):
            if call["name"] == RETRIEVAL_TOOL:
                yield from _WORD.findall(json.dumps(call["args"], default=repr))


def _names(message: StoredMessage) -> set[str]:
    """Return the names by which a result can be read again: its id, its ordinal, the numbers of its sources."""
    return {
        str(message.message.id),
        f"m{message.ordinal}",
        *map(str, stub_sources(message.message.text)),
    }

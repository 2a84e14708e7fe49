"""Check that providers accept a list of messages, independently of the code that builds views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.messages.tool_calls import calls_of


def check_pairing(messages: Sequence[BaseMessage]) -> list[str]:
    """Return all violations of the rule that the results of calls follow them directly; [] for a valid list.

    >>> check_pairing([ToolMessage("found", tool_call_id="call_1")])
    ["message 0: the result for 'call_1' answers no call of the AI message directly before it"]
    """
    problems: list[str] = []
    for head, calls, results in _runs(messages):
        pending = Counter(calls)
        before = len(problems)
        for offset, call_id in enumerate(results, start=1):
            if pending[call_id] > 0:
                pending[call_id] -= 1
            else:
                stray = f"message {head + offset}: the result for {call_id!r}"
                problems.append(f"{stray} answers no call of the AI message directly before it")
        unanswered = [f"message {head}: the call {call_id!r}" for call_id in pending.elements()]
        problems.extend(f"{call} has no result directly after it" for call in unanswered)
        if len(problems) == before and results != calls:
            problems.append(
                f"message {head}: its results have the order {results}, its calls the order {calls}"
            )
    return problems


def _runs(messages: Sequence[BaseMessage]) -> Iterator[tuple[int, list[str], list[str]]]:
    """Split a list into runs: the index of a message that is not a result, its call ids, and the answered ids."""
    head = -1
    calls: list[str] = []
    results: list[str] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            results.append(message.tool_call_id)
        else:
            yield head, calls, results
            head = index
            calls = [call.id for call in calls_of(message)]
            results = []
    yield head, calls, results

"""Add what a model has not read of its turn to a list of messages that lacks it.

The state of a graph may lose messages that are in the log: a tool or a node removes them, or hands a part of them over
to another agent. The log keeps them, and the model is shown the question and what it has not read.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.messages.filing import came_with, ids_of
from convstore.messages.tool_calls import calls_of, result_ids


def with_unread(turn: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages with those of their turn that they lack and that the model needs for its next reply.

    These are the question, the last reply of the model with all that follows it, the call of each result, and the
    results of each call. Each is added after the message that precedes it in the turn. What the model has read stays
    removed.

    Args:
        turn: The turn as the log has it, the question first.
        messages: The messages for the model, without earlier turns.

    >>> from langchain_core.messages import HumanMessage
    >>> question, result = HumanMessage("3 + 4?", id="q"), ToolMessage("7", tool_call_id="c", id="r")
    >>> call = AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "c"}], id="a")
    >>> [message.id for message in with_unread([question, call, result], [result])]
    ['q', 'a', 'r']
    """
    here = ids_of(messages)
    if here.issuperset(message.id for message in turn):
        return list(messages)
    unread = ids_of(turn[:1]) | ids_of(turn[_last_reply(turn) :])
    if unread <= here and has_all_results(messages):
        return list(messages)
    needed = here | unread
    for step in steps_of(turn):
        if not needed.isdisjoint(step):
            needed.update(step)
    return _merged(messages, [message for message in turn if message.id in needed])


def _last_reply(turn: Sequence[BaseMessage]) -> int:
    """Return the index of the last reply of the model; 0 without one."""
    indexes = range(len(turn) - 1, 0, -1)
    return next((at for at in indexes if _is_reply(turn[at])), 0)


def _is_reply(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and not came_with(message)


def steps_of(turn: Sequence[BaseMessage]) -> list[list[str]]:
    """Return the ids of each reply of the model with those of the results of its calls."""
    steps = list[list[str]]()
    by_call = dict[str, list[str]]()
    for message in turn:
        if _is_reply(message):
            step = [str(message.id)]
            steps.append(step)
            by_call.update((call.id, step) for call in calls_of(message))
            by_call.update((id_, step) for id_ in result_ids(message))
        elif isinstance(message, ToolMessage):
            step = by_call.get(str(message.id)) or by_call.get(message.tool_call_id) or []
            step.append(str(message.id))
    return steps


def has_all_results(messages: Sequence[BaseMessage]) -> bool:
    """Return True if each call among the messages has a result there, and each result a call."""
    called = {call.id for message in messages for call in calls_of(message)}
    return called == {
        message.tool_call_id for message in messages if isinstance(message, ToolMessage)
    }


def _merged(messages: Sequence[BaseMessage], wanted: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages with the wanted ones that are not among them, each after the one that precedes it there."""
    here = ids_of(messages)
    found = list[BaseMessage]()
    following = dict[str, list[BaseMessage]]()  # what is added, by the id of the message before
    before = ""
    for message in wanted:
        if message.id in here:
            before = str(message.id)
        else:
            following.setdefault(before, []).append(message)
    found += following.get("", [])
    for message in messages:
        found.append(message)
        found += following.get(str(message.id), [])
    return found

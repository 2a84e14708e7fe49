"""Compare an agent's state with its turn: find the last question, mark additions of tools, add missing messages.

A message that a tool added to its result, such as an image in a human message, does not begin a turn. The middleware
marks it in the state, in ``response_metadata``. The log stores this in a column; the mark itself is neither stored nor
shown to a model.

The state of a graph may lose messages that are in the log: a tool or a node removes them, or passes only a part of them
to another agent. The log keeps them, and the model is always shown the question and all unread messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import is_generated
from convstore.messages.tool_calls import calls_of, fill_slots, result_ids
from convstore.values.scope import id_problem

_Message = TypeVar("_Message", bound=BaseMessage)
_KEY = "convstore"
_RESULT = "result"


def with_state_mark(message: _Message, **mark: Any) -> _Message:
    """Return a message of an agent's state with further marks."""
    metadata = {**message.response_metadata, _KEY: {**state_marks(message), **mark}}
    return message.model_copy(update={"response_metadata": metadata})


def state_marks(message: BaseMessage) -> dict[str, Any]:
    """Return the marks of a message in an agent's state by name; if another program set them, values may be any."""
    found = message.response_metadata.get(_KEY)
    return found if isinstance(found, dict) else {}


def marked_as_added(message: _Message, result_id: str) -> _Message:
    """Return a message with the mark that a tool added it to its result, given the `result_id` of the call.

    >>> added_to(marked_as_added(HumanMessage("A picture."), "result-1"))
    'result-1'
    """
    return with_state_mark(message, **{_RESULT: result_id})


def added_to(message: BaseMessage) -> str | None:
    """Return the `result_id` of the call whose tool added a message to its result; None for any other message."""
    result_id = state_marks(message).get(_RESULT)
    # another program may have set any value
    return None if id_problem(result_id) else str(result_id)


def without_marks(messages: Iterable[BaseMessage]) -> list[BaseMessage]:
    """Return messages without the marks of `marked_as_added`, to store them or show them to a model."""
    return [_unmarked(message) if added_to(message) else message for message in messages]


def _unmarked(message: BaseMessage) -> BaseMessage:
    rest = {name: value for name, value in state_marks(message).items() if name != _RESULT}
    metadata = {key: value for key, value in message.response_metadata.items() if key != _KEY}
    if rest:
        metadata[_KEY] = rest
    return message.model_copy(update={"response_metadata": metadata})


def is_question(message: BaseMessage) -> bool:
    """Return True if a message begins a turn: a human message that was not added by a tool."""
    return isinstance(message, HumanMessage) and not added_to(message)


def last_question(messages: Sequence[BaseMessage]) -> int | None:
    """Return the index of the last human message that a user sent; None without such a message."""
    indexes = range(len(messages) - 1, -1, -1)
    return next(
        (at for at in indexes if is_question(messages[at]) and not is_generated(messages[at])), None
    )


def last_turn_of(messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the last human message that a user sent; None without such a message.

    >>> last_turn_of([HumanMessage("Hello", id="q1"), AIMessage("Hi")])
    'q1'
    """
    index = last_question(messages)
    return None if index is None else messages[index].id


def pending_results(messages: Sequence[BaseMessage]) -> set[str]:
    """Return the ids that the results of the last AI message will get, except of results that are there already."""
    ai = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    return set(result_ids(ai) if ai else ()) - ids_of(messages)


def ids_of(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of the messages that have one."""
    return {message.id for message in messages if message.id}


def is_history(messages: Iterable[BaseMessage]) -> bool:
    """Return True for a batch with two or more human messages; a single turn is always new."""
    return sum(message.type == "human" for message in messages) > 1


def with_unread(turn: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Add the messages of the turn that are missing and that the model needs for its next reply.

    These are the question, the last reply of the model with all messages after it, the call of each result, and the
    results of each call. Each is added after the message that precedes it in the turn. Other messages that the model
    has read stay removed.

    Args:
        turn: The messages of the turn in the log, the question first.
        messages: The messages for the model, without earlier turns.

    >>> from langchain_core.messages import HumanMessage
    >>> question, result = HumanMessage("3 + 4?", id="q"), ToolMessage("7", tool_call_id="c", id="r")
    >>> call = AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "c"}], id="a")
    >>> [message.id for message in with_unread([question, call, result], [result])]
    ['q', 'a', 'r']
    """
    if _has_all(messages, turn):
        return list(messages)
    here = ids_of(messages)
    last_reply = max((at for at, message in enumerate(turn) if _is_reply(message)), default=0)
    unread = ids_of(turn[:1]) | ids_of(turn[last_reply:])
    if unread <= here and _has_all_results(messages):
        return list(messages)
    needed = here | unread
    for step in step_ids(turn):
        if not needed.isdisjoint(step):
            needed.update(step)
    return _merge_missing(messages, [message for message in turn if message.id in needed])


def _has_all(messages: Sequence[BaseMessage], turn: Sequence[BaseMessage]) -> bool:
    """Return True if messages include a whole turn.

    The messages of a state usually begin with the same objects, so that the ids need not be compared at each step of a
    long turn.
    """
    if len(turn) <= len(messages) and all(map(is_, turn, messages)):
        return True
    return ids_of(turn) <= ids_of(messages)


def _is_reply(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and not added_to(message)


def step_ids(turn: Sequence[BaseMessage]) -> list[list[str]]:
    """Return the id of each reply of the model with the ids of its calls' results."""
    slots, _ = fill_slots(turn)
    steps: list[list[str]] = []
    for at, message in enumerate(turn):
        if _is_reply(message):
            results = [slot.result for slot in slots.get(at, ())]
            steps.append([str(turn[each].id) for each in (at, *results) if each is not None])
    return steps


def _has_all_results(messages: Sequence[BaseMessage]) -> bool:
    """Return True if each call among the messages has a result there, and each result a call."""
    called = {call.id for message in messages for call in calls_of(message)}
    return called == {
        message.tool_call_id for message in messages if isinstance(message, ToolMessage)
    }


def _merge_missing(
    messages: Sequence[BaseMessage], wanted: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Add the missing `wanted` messages, each after the message that precedes it in `wanted`."""
    here = ids_of(messages)
    found: list[BaseMessage] = []
    # messages to add, by the id of the message before them
    following: dict[str, list[BaseMessage]] = {}
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

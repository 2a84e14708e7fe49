"""Find the last question of an agent's state, and mark the messages that a tool adds to its result.

Such a message, an image as a human message, for example, begins no turn. The middleware marks it in the state, in
``response_metadata``. The log has a column for that: the mark is neither stored nor shown to a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import is_made_up
from convstore.messages.tool_calls import calls_of, result_ids
from convstore.values.scope import id_problem

_Message = TypeVar("_Message", bound=BaseMessage)
_KEY = "convstore"


def marked_as_added(message: _Message, result_id: str) -> _Message:
    """Return a message with the mark that a tool added it to its result, given the `result_id` of the call.

    >>> came_with(marked_as_added(HumanMessage("A picture."), "result-1"))
    'result-1'
    """
    metadata = {**message.response_metadata, _KEY: {"result": result_id}}
    return message.model_copy(update={"response_metadata": metadata})


def came_with(message: BaseMessage) -> str | None:
    """Return the `result_id` of the call whose tool added a message to its result; None for any other message."""
    found = message.response_metadata.get(_KEY)
    result_id = found.get("result") if isinstance(found, dict) else None
    # of a message that another program made, it may be anything
    return None if id_problem(result_id) else str(result_id)


def without_marks(messages: Iterable[BaseMessage]) -> list[BaseMessage]:
    """Return messages as the log has them and a model is shown them, without the marks of `marked_as_added`."""
    return [_unmarked(message) if came_with(message) else message for message in messages]


def _unmarked(message: BaseMessage) -> BaseMessage:
    metadata = {key: value for key, value in message.response_metadata.items() if key != _KEY}
    return message.model_copy(update={"response_metadata": metadata})


def is_question(message: BaseMessage) -> bool:
    """Return True if a message begins a turn: a human message that no tool added."""
    return isinstance(message, HumanMessage) and not came_with(message)


def last_question(messages: Sequence[BaseMessage]) -> int | None:
    """Return the index of the last human message that a user sent; None without such a message."""
    indexes = range(len(messages) - 1, -1, -1)
    return next(
        (at for at in indexes if is_question(messages[at]) and not is_made_up(messages[at])), None
    )


def last_turn_of(messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the last human message that a user sent; None without such a message.

    >>> last_turn_of([HumanMessage("Hello", id="q1"), AIMessage("Hi")])
    'q1'
    """
    index = last_question(messages)
    return None if index is None else messages[index].id


def results_after(later: Sequence[BaseMessage], ai: AIMessage) -> list[ToolMessage]:
    """Return the results of an AI message among its turn's messages: those before the model's next message."""
    index = next((at for at, message in enumerate(later) if message.id == ai.id), -1)
    following = takewhile(
        lambda each: not isinstance(each, AIMessage) or came_with(each), later[index + 1 :]
    )
    called = {call.id for call in calls_of(ai)}
    return [
        each for each in following if isinstance(each, ToolMessage) and each.tool_call_id in called
    ]


def pending_results(messages: Sequence[BaseMessage]) -> set[str]:
    """Return the ids that the results of the last AI message will get, but for those that the messages include."""
    ai = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    return set(result_ids(ai) if ai else ()) - ids_of(messages)


def ids_of(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of the messages that have one."""
    return {message.id for message in messages if message.id}


def is_history(messages: Iterable[BaseMessage]) -> bool:
    """Return True for a batch with two or more human messages; one turn alone is always new."""
    return sum(message.type == "human" for message in messages) > 1

"""Find the last question of an agent's state, and mark the messages that a tool adds to its result.

Such a message, an image as a human message, for example, begins no turn. The middleware marks it with its turn and its
result, in ``response_metadata``, which is not sent to providers. In the log the turn of a message is a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import is_made_up
from convstore.messages.tool_calls import calls_of, has_calls, is_paused, result_ids
from convstore.values.scope import id_problem

_Message = TypeVar("_Message", bound=BaseMessage)
LINK = "convstore"
"""The key of the link in ``response_metadata``."""


def linked(message: _Message, turn_id: str | None, *, result: str | None = None) -> _Message:
    """Return the message with a link to its turn. Without a `turn_id` there is no link.

    `result` is for a message that a tool added: the `result_id` of the result.

    >>> turn_of(linked(HumanMessage("Hello"), "question-1"))
    'question-1'
    """
    link = {"turn": turn_id} if result is None else {"turn": turn_id, "result": result}
    if turn_id is None or message.response_metadata.get(LINK) == link:
        return message
    return message.model_copy(
        update={"response_metadata": {**message.response_metadata, LINK: link}}
    )


def turn_of(message: BaseMessage) -> str | None:
    """Return the id of the human message that a message of an agent is linked to; None without a link."""
    return _linked_to(message, "turn")


def came_with(message: BaseMessage) -> str | None:
    """Return the `result_id` of the result that a tool added a message to; None for any other message."""
    return _linked_to(message, "result")


def is_question(message: BaseMessage) -> bool:
    """Return True if a message begins a turn: a human message that no tool added."""
    return isinstance(message, HumanMessage) and turn_of(message) is None


def is_answer(message: BaseMessage) -> bool:
    """Return True if a message ends a turn: an AI message without calls, not paused, that no tool added."""
    is_whole = isinstance(message, AIMessage) and not has_calls(message) and not is_paused(message)
    return is_whole and not came_with(message)


def last_question(messages: Sequence[BaseMessage]) -> int | None:
    """Return the index of the last human message that a user sent; None without such a message."""
    indexes = range(len(messages) - 1, -1, -1)
    return next(
        (at for at in indexes if is_question(messages[at]) and not is_made_up(messages[at])), None
    )


def last_turn_of(messages: Sequence[BaseMessage]) -> str | None:
    """Return the id of the human message that messages answer, even if it is not among them any more.

    >>> last_turn_of([HumanMessage("Hello", id="q1"), AIMessage("Hi")]), last_turn_of([linked(AIMessage("Hi"), "q1")])
    ('q1', 'q1')
    """
    index = last_question(messages)
    if index is not None:
        return messages[index].id
    return next((turn for message in reversed(messages) if (turn := turn_of(message))), None)


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


def _linked_to(message: BaseMessage, key: str) -> str | None:
    link = message.response_metadata.get(LINK)
    value = link.get(key) if isinstance(link, dict) else None
    # of a message that another program made, it may be anything
    return None if id_problem(value) else str(value)

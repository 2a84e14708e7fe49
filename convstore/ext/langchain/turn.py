"""What belongs to one turn of an agent: ids of its results, and which messages of a log are its own.

Floor 7, pure. Two runs may work on one conversation at once, and then their messages stand between each other's in the
log. So each AI message that an agent appends says which human message it answers, and each result has an id that is
made from the AI message and the call that it answers. A message that a tool puts beside its result, an image as a
human message, say, says both: so it is no question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import calls_of, has_calls, result_id

__all__ = [
    "answers",
    "came_with",
    "is_answer",
    "is_made_up",
    "is_question",
    "last_question",
    "linked",
    "own_messages",
    "strays",
    "turn_of",
]

_Message = TypeVar("_Message", bound=BaseMessage)
_LINK = "convstore"


def linked(message: _Message, turn_id: str | None, *, result: str | None = None) -> _Message:
    """The message, saying to whose turn it belongs.

    It says so in ``response_metadata``, which no provider is sent.

    Args:
        message: What the model said, or what a tool put beside its result.
        turn_id: Id of the human message that the turn answers; None says nothing.
        result: For what stands beside a result, its `result_id`.

    >>> turn_of(linked(AIMessage("Hello"), "question-1"))
    'question-1'
    """
    link = {"turn": turn_id} if result is None else {"turn": turn_id, "result": result}
    if turn_id is None or message.response_metadata.get(_LINK) == link:
        return message
    return message.model_copy(update={"response_metadata": {**message.response_metadata, _LINK: link}})


def turn_of(message: BaseMessage) -> str | None:
    """Id of the human message to whose turn a message of an agent belongs; None if it does not say."""
    return _said(message, "turn")


def came_with(message: BaseMessage) -> str | None:
    """The `result_id` of the result beside which a tool put a message; None if no tool did."""
    return _said(message, "result")


def _said(message: BaseMessage, key: str) -> str | None:
    link = message.response_metadata.get(_LINK)
    value = link.get(key) if isinstance(link, dict) else None
    return value if isinstance(value, str) else None


def own_messages(later: Iterable[BaseMessage], turn_id: str, earlier: Iterable[BaseMessage] = ()) -> list[BaseMessage]:
    """Return those messages after a question in the log that belong to its turn, whatever stands between.

    A message belongs to the turn that it says, a result to that of its call; what does not say belongs to the question
    before it.

    Args:
        later: The messages after the question.
        turn_id: Id of the question.
        earlier: Messages before it, whose calls may have their results after it: their runs were not over.

    >>> log = [HumanMessage("And how?", id="q2"), linked(AIMessage("So."), "q2"), linked(AIMessage("Here."), "q1")]
    >>> [message.text for message in own_messages(log, "q1")], [message.text for message in own_messages(log[1:], "q2")]
    (['Here.'], ['So.'])
    """
    # Calls of earlier turns are found by the id of their results alone: a call id comes again in every turn.
    calling = (message for message in earlier if isinstance(message, AIMessage))
    owners: dict[str, str | None] = {key: None for one in calling for key in _keys_of_results(one) if key[:3] == "id "}
    current: str | None = turn_id
    own: list[BaseMessage] = []
    for message in later:
        if is_question(message):
            current = message.id
            continue
        owner = turn_of(message) or current
        if isinstance(message, ToolMessage):
            owner = owners.get(f"id {message.id}", owners.get(f"call {message.tool_call_id}", owner))
        elif isinstance(message, AIMessage):
            owners |= dict.fromkeys(_keys_of_results(message), owner)
        if owner == turn_id:
            own.append(message)
    return own


def strays(later: Sequence[BaseMessage]) -> list[ToolMessage]:
    """Return the results whose id was not made from a call among these messages."""
    keys = {key for one in later if isinstance(one, AIMessage) for key in _keys_of_results(one)}
    return [one for one in later if isinstance(one, ToolMessage) and f"id {one.id}" not in keys]


def _keys_of_results(message: AIMessage) -> list[str]:
    keys: list[str] = []
    seen: Counter[str] = Counter()
    for call in calls_of(message):
        keys += [f"id {result_id(str(message.id), call.id, seen[call.id])}", f"call {call.id}"]
        seen[call.id] += 1
    return keys


def answers(later: Sequence[BaseMessage], ai: AIMessage) -> list[ToolMessage]:
    """The results of an AI message among its turn's messages: those behind it, up to what the model said next."""
    place = next((at for at, message in enumerate(later) if message.id == ai.id), -1)
    called = {call.id for call in calls_of(ai)}
    found: list[ToolMessage] = []
    for message in later[place + 1 :]:
        if isinstance(message, AIMessage) and not came_with(message):
            break
        if isinstance(message, ToolMessage) and message.tool_call_id in called:
            found.append(message)
    return found


def is_answer(message: BaseMessage) -> bool:
    """Return True if a message ends a turn: an AI message without calls, which no tool put there."""
    return isinstance(message, AIMessage) and not has_calls(message) and not came_with(message)


def is_question(message: BaseMessage) -> bool:
    """Return True if a message begins a turn: a human message, which no tool put there."""
    return isinstance(message, HumanMessage) and turn_of(message) is None


def is_made_up(message: BaseMessage) -> bool:
    """Return True if a message was generated for a view or by LangChain's summarization, not by a participant."""
    return kind_of(message) != "" or message.additional_kwargs.get("lc_source") == "summarization"


def last_question(messages: Sequence[BaseMessage]) -> int | None:
    """Place of the last human message that somebody said."""
    places = range(len(messages) - 1, -1, -1)
    return next((at for at in places if is_question(messages[at]) and not is_made_up(messages[at])), None)

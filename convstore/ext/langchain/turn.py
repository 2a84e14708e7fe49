"""The messages of one turn of an agent: which messages of a log belong to it, and what the log already has of it.

Two runs may work on one conversation at once, so their messages are interleaved in the log. Therefore each AI message
that an agent appends names the human message that it answers, and each result has an id made from the AI message and
the call that it answers. A message that a tool adds to its result, such as an image as a human message, names both, so
it is not taken for a question.

The log is read only if a turn may have begun before: a question whose id was used before, or a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import Conversation
from convstore.integration import log_of, variant_of
from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import calls_of, has_calls, result_ids
from convstore.types import StoredMessage

_Message = TypeVar("_Message", bound=BaseMessage)
_LINK = "convstore"
_PAGE = 200
_MAX_READ = 1_000


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as stored in the log: its question, the question's ordinal, and its other messages in order, in full."""

    question: BaseMessage
    first: int
    later: list[BaseMessage]

    @property
    def is_finished(self) -> bool:
        """Return True if it has its answer."""
        return bool(self.later) and is_answer(self.later[-1])


async def read_turn(chat: Conversation, turn_id: str | None) -> LoggedTurn | None:
    """Read the turn that begins with a human message; None if the log does not have it, or it was rewound.

    Reads up to a thousand messages, because other runs may have written at the same time.
    """
    found = await chat.get_tool_messages([turn_id]) if turn_id else []
    if not turn_id or not found:
        return None
    first = found[0].ordinal
    if variant := variant_of(chat, turn_id):
        return LoggedTurn(variant[0], first, variant[1:])
    read: list[StoredMessage] = []
    while True:
        page = await chat.list_messages(after=read[-1].ordinal if read else first - 1, limit=_PAGE, full=True)
        read += page
        if not read or read[0].message.id != turn_id:
            return None
        later = [one.message for one in read[1:]]
        # A run still in progress at the question has its results after it.
        before = await chat.list_messages(before=first, limit=_PAGE) if strays(later) else []
        earlier = [one.message for one in before]
        turn = LoggedTurn(read[0].message, first, own_messages(later, turn_id, earlier))
        is_over = turn.is_finished and any(map(is_question, later))
        if is_over or len(page) < _PAGE or len(read) >= _MAX_READ:
            return turn


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Return the ids that the log has; one command for 200 ids, no payloads."""
    return set(await log_of(chat).find(list(ids))) if ids else set()


def linked(message: _Message, turn_id: str | None, *, result: str | None = None) -> _Message:
    """Return the message with a link to its turn in ``response_metadata``, which is not sent to providers.

    Without a `turn_id` there is no link. `result` is for a message that a tool added: the `result_id` of the result.

    >>> turn_of(linked(AIMessage("Hello"), "question-1"))
    'question-1'
    """
    link = {"turn": turn_id} if result is None else {"turn": turn_id, "result": result}
    if turn_id is None or message.response_metadata.get(_LINK) == link:
        return message
    return message.model_copy(update={"response_metadata": {**message.response_metadata, _LINK: link}})


def turn_of(message: BaseMessage) -> str | None:
    """Return the id of the human message that a message of an agent is linked to; None without a link."""
    return _linked_to(message, "turn")


def came_with(message: BaseMessage) -> str | None:
    """Return the `result_id` of the result that a tool added a message to; None for any other message."""
    return _linked_to(message, "result")


def _linked_to(message: BaseMessage, key: str) -> str | None:
    link = message.response_metadata.get(_LINK)
    value = link.get(key) if isinstance(link, dict) else None
    return value if isinstance(value, str) else None


def own_messages(later: Iterable[BaseMessage], turn_id: str, earlier: Iterable[BaseMessage] = ()) -> list[BaseMessage]:
    """Return the messages after a question in the log that belong to its turn, also between those of other turns.

    A message belongs to the turn that it is linked to, a result to that of its call, any other to the question before
    it. `earlier` are messages before the question, whose calls may have their results after it.

    >>> log = [HumanMessage("And how?", id="q2"), linked(AIMessage("So."), "q2"), linked(AIMessage("Here."), "q1")]
    >>> [message.text for message in own_messages(log, "q1")], [message.text for message in own_messages(log[1:], "q2")]
    (['Here.'], ['So.'])
    """
    # Calls of earlier turns are found by the ids of their results alone, because call ids may repeat in every turn.
    by_result: dict[str | None, str | None] = {id_: None for one in earlier for id_ in result_ids(one)}
    by_call: dict[str, str | None] = {}
    current: str | None = turn_id
    own: list[BaseMessage] = []
    for message in later:
        if is_question(message):
            current = message.id
            continue
        owner = turn_of(message) or current
        if isinstance(message, ToolMessage):
            owner = by_result.get(message.id, by_call.get(message.tool_call_id, owner))
        else:
            by_result |= dict.fromkeys(result_ids(message), owner)
            by_call |= {call.id: owner for call in calls_of(message)}
        if owner == turn_id:
            own.append(message)
    return own


def strays(later: Sequence[BaseMessage]) -> list[ToolMessage]:
    """Return the results whose id was not made from a call among these messages."""
    made = {id_ for one in later for id_ in result_ids(one)}
    return [one for one in later if isinstance(one, ToolMessage) and one.id not in made]


def pending_results(messages: Sequence[BaseMessage]) -> set[str]:
    """Return the ids that the results of the last AI message will get, but for those that the messages include."""
    ai = next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)
    return set(result_ids(ai) if ai else ()) - {str(one.id) for one in messages}


def answers(later: Sequence[BaseMessage], ai: AIMessage) -> list[ToolMessage]:
    """Return the results of an AI message among its turn's messages: those before the model's next message."""
    index = next((at for at, message in enumerate(later) if message.id == ai.id), -1)
    called = {call.id for call in calls_of(ai)}
    found: list[ToolMessage] = []
    for message in later[index + 1 :]:
        if isinstance(message, AIMessage) and not came_with(message):
            break
        if isinstance(message, ToolMessage) and message.tool_call_id in called:
            found.append(message)
    return found


def is_answer(message: BaseMessage) -> bool:
    """Return True if a message ends a turn: an AI message without calls that no tool added."""
    return isinstance(message, AIMessage) and not has_calls(message) and not came_with(message)


def is_question(message: BaseMessage) -> bool:
    """Return True if a message begins a turn: a human message that no tool added."""
    return isinstance(message, HumanMessage) and turn_of(message) is None


def is_made_up(message: BaseMessage) -> bool:
    """Return True if a message was generated for a view or by LangChain's summarization, not by a participant."""
    return kind_of(message) != "" or message.additional_kwargs.get("lc_source") == "summarization"


def last_question(messages: Sequence[BaseMessage]) -> int | None:
    """Return the index of the last human message that a user sent; None if there is none."""
    indexes = range(len(messages) - 1, -1, -1)
    return next((at for at in indexes if is_question(messages[at]) and not is_made_up(messages[at])), None)

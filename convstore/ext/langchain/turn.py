"""The messages of one turn of an agent: which messages of a log belong to it, and what the log already has of it.

Two runs may work on one conversation at once, so their messages are interleaved in the log; `messages.filing` tells
them apart.

The log is read only if a turn may have begun before: a question whose id was used before, or a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore import Conversation
from convstore.integration import log_of, variant_of
from convstore.messages.filing import Filing, came_with, is_question
from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import calls_of, has_calls, result_ids
from convstore.types import StoredMessage

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


def own_messages(later: Iterable[BaseMessage], turn_id: str, earlier: Iterable[BaseMessage] = ()) -> list[BaseMessage]:
    """Return the messages after a question in the log that belong to its turn, also between those of other turns.

    `earlier` are messages before the question, whose calls may have their results after it.

    >>> from langchain_core.messages import HumanMessage
    >>> from convstore.messages.filing import linked
    >>> log = [HumanMessage("And how?", id="q2"), linked(AIMessage("So."), "q2"), linked(AIMessage("Here."), "q1")]
    >>> [message.text for message in own_messages(log, "q1")], [message.text for message in own_messages(log[1:], "q2")]
    (['Here.'], ['So.'])
    """
    filing = Filing(turn_id, (id_ for one in earlier for id_ in result_ids(one)))
    return [message for message in later if filing.owner(message) == turn_id]


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


def is_made_up(message: BaseMessage) -> bool:
    """Return True if a message was generated for a view or by LangChain's summarization, not by a participant."""
    return kind_of(message) != "" or message.additional_kwargs.get("lc_source") == "summarization"


def last_question(messages: Sequence[BaseMessage]) -> int | None:
    """Return the index of the last human message that a user sent; None if there is none."""
    indexes = range(len(messages) - 1, -1, -1)
    return next((at for at in indexes if is_question(messages[at]) and not is_made_up(messages[at])), None)

"""The messages of one turn of an agent: which messages of a log belong to it, and what the log already has of it.

Two runs may work on one conversation at once, so their messages are interleaved in the log; `messages.filing` tells
them apart.

The log is read only if a turn may have begun before: a question whose id was used before, or a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore import Conversation
from convstore.integration import log_of, messages_of_turn
from convstore.messages.filing import came_with, is_question
from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import calls_of, has_calls, result_ids


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as stored in the log: its question, and its other messages in order, in full."""

    question: BaseMessage
    later: list[BaseMessage]

    @property
    def is_finished(self) -> bool:
        """Return True if it has its answer."""
        return bool(self.later) and is_answer(self.later[-1])


async def read_turn(chat: Conversation, turn_id: str | None) -> LoggedTurn | None:
    """Read the turn that begins with a human message; None if the log does not have it, or it was rewound."""
    found = await messages_of_turn(chat, turn_id) if turn_id else []
    return LoggedTurn(found[0], found[1:]) if found else None


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Return the ids that the log has; one command for 200 ids, no payloads."""
    return set(await log_of(chat).find(list(ids))) if ids else set()


def pending_results(messages: Sequence[BaseMessage]) -> set[str]:
    """Return the ids that the results of the last AI message will get, but for those that the messages include."""
    ai = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    return set(result_ids(ai) if ai else ()) - {str(message.id) for message in messages}


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
    """Return the index of the last human message that a user sent; None without such a message."""
    indexes = range(len(messages) - 1, -1, -1)
    return next((at for at in indexes if is_question(messages[at]) and not is_made_up(messages[at])), None)

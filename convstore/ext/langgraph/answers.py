"""Find the answer that the log has to the question of a run, also where the graph asks its model all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage

from convstore import Conversation
from convstore.ext.langgraph.hearing import Joined
from convstore.ext.langgraph.state import loaded_of, logged_of, turn_in
from convstore.ext.older_checkpoint import ended_with
from convstore.integration import TurnAccess
from convstore.messages.filing import ids_of, last_question, last_turn_of
from convstore.types import History


async def find_answer(
    chat: Conversation, history: History, messages: Sequence[BaseMessage]
) -> AIMessage | None:
    """Return the answer that the log had to the question of a state before its run; two commands if the view has both.

    What a node said before in this run, or in one that was interrupted or failed after it, is no answer yet.
    """
    question = last_turn_of(messages)
    if question not in ids_of(history.messages[:-1]):
        return None
    turns = TurnAccess(chat)
    record = await turns.record(str(question))
    answer = record.answer if record else None
    held = turns.held(question)
    if answer is None or (held and held.first_answer not in (None, answer.id)):
        return None
    goes_on = answer.id in ids_of(messages) and await ended_with(str(answer.id)) is False
    return None if goes_on else answer


def answer_before(
    state: Any, messages: Sequence[BaseMessage], joined: Joined | None
) -> AIMessage | None:
    """Return the answer that the question of a run had before the run; None if the run has it to give."""
    loaded = loaded_of(state)
    if loaded is not None:
        return loaded.answer if loaded.turn_id == turn_in(state, messages) else None
    answer = joined.held.record.answer if joined else None
    logged = logged_of(state)
    goes_on = any(isinstance(each, AIMessage) and each.id in logged for each in messages)
    return None if goes_on or answer is None or answer.id in ids_of(messages) else answer


async def answered(
    chat: Conversation,
    messages: Sequence[BaseMessage],
    new: Sequence[BaseMessage],
    answer: AIMessage,
) -> dict[str, Any]:
    """Return the update of a state whose question had its answer: that takes the place of what was made since."""
    question = last_question(messages)
    since = messages if question is None else messages[question + 1 :]
    if question is not None and messages[question] in new:
        await chat.append(messages[question])  # writes nothing; refuses other content
    left = ids_of(since) & ids_of(new)
    removals = [RemoveMessage(str(each.id)) for each in since if each.id in left]
    missing = [] if answer.id in ids_of(messages) else [answer]
    return {"messages": [*removals, *missing], "convstore_logged": [str(answer.id)]}

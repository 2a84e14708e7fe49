"""Find the messages of a run's input that the log already has, if a client sends the whole history again.

Such a client sends no ids, so LangGraph makes new ones for every request, which the log cannot know. Only an input with
earlier messages under unknown ids is compared; an input with the new question alone costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import BaseMessage, RemoveMessage

from convstore.append.resent import is_history
from convstore.append.resent_history import Decision
from convstore.conversation import Conversation
from convstore.exceptions import HistoryDivergedError
from convstore.ext.langchain.turn import is_made_up, last_question, read_turn


@dataclass(frozen=True, slots=True)
class ResentInput:
    """An input whose beginning may be in the log.

    Attributes:
        messages: The state's messages without the known ones.
        changes: The changes to the state's messages that remove them.
        known: The removed messages, as the client sent them, for the append that compares again; None if all messages
            are known.
        logged: Ids of those of `messages` that are in the log.
    """

    messages: list[BaseMessage]
    changes: list[BaseMessage] = field(default_factory=list)
    known: list[BaseMessage] | None = None
    logged: frozenset[str] = frozenset()


async def find_resent(chat: Conversation, messages: Sequence[BaseMessage], logged: set[str]) -> ResentInput | None:
    """Compare an input, the question last, with the log; None if there is nothing to compare.

    Questions without an answer between them are no history: their runs were interrupted before anything was logged. A
    history other than that of the log is a HistoryDivergedError.
    """
    question = last_question(messages)
    said = [one for one in messages[: (question or 0) + 1] if not is_made_up(one)]
    first = next((at for at, one in enumerate(said) if one.id not in logged), len(said))
    if question is None or first >= len(said) - 1:
        return None
    resender = (await chat.store.services()).resender
    error: HistoryDivergedError | None = None
    # The state may hold a logged turn and then the whole history again, or a history with ids in part only.
    for batch in filter(is_history, [said[first:], said] if first else [said]):
        try:
            decision = await resender.decide(tuple(chat.scope.items()), batch)
        except HistoryDivergedError as diverged:
            error = diverged
        else:
            return await _without_known(chat, messages, batch, decision, logged)
    has_answers = any(one.type == "ai" for one in said[first:])
    if error is not None and has_answers and is_history(said[first:]):
        raise error
    return None


async def _without_known(
    chat: Conversation, messages: Sequence[BaseMessage], batch: list[BaseMessage], decision: Decision, logged: set[str]
) -> ResentInput:
    """Return the input without the messages that the log has.

    If the client sends no ids, the other messages get ids that every worker derives alike, so that a request sent to
    two workers is one question.
    """
    question = batch[-1]
    is_last = messages[-1] is question
    count = min(decision.known, len(batch) - 1)
    known, rest = batch[:count], batch[count:]
    known_ids = {one.id for one in known}
    if not decision.is_known or not is_last or any(one.id in logged for one in known if one.type == "human"):
        left = [one for one in messages if one.id not in known_ids]
        return ResentInput(left, [removal(one) for one in known], known)
    changes = [removal(one) for one in batch]
    left = [one for one in messages if all(one is not other for other in batch)]
    if decision.known == len(batch):
        question_id = decision.matched[-1].id
        found = await read_turn(chat, question_id)
        named = [found.question if found else question.model_copy(update={"id": question_id})]
        return ResentInput([*left, *named], [*changes, *named], logged=frozenset({question_id}))
    named = [
        one.model_copy(update={"id": _derived_id(decision, index)}) for index, one in enumerate(rest, decision.known)
    ]
    return ResentInput([*left, *named], [*changes, *named], known)


def _derived_id(decision: Decision, index: int) -> str:
    """Return an id derived from the log, its last rewind and the new message."""
    before, digest = decision.matched[-1].id, decision.batch[index].digest.hex()
    made_of = ["convstore resent", before, decision.tail.rewind_entry, index - decision.known, digest]
    return str(uuid5(NAMESPACE_OID, json.dumps(made_of)))


def removal(message: BaseMessage) -> BaseMessage:
    """Return the update that removes a message from a state."""
    return RemoveMessage(str(message.id))

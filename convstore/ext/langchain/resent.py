"""Find the messages of a run's input that the log already has, or that a client may not send.

A client that sends the whole history again sends no ids, so LangGraph makes new ones for every request, which the log
cannot know. An input with the new question alone costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import BaseMessage, RemoveMessage

from convstore import Conversation
from convstore.exceptions import HistoryDivergedError, InvalidInputError
from convstore.ext.langchain.turn import read_turn
from convstore.ext.older_checkpoint import ids_without_input
from convstore.integration import Decision, Sent, Trust, host_of, is_history, read_sent
from convstore.messages.filing import ids_of, last_question
from convstore.messages.provenance import is_made_up


@dataclass(frozen=True, slots=True)
class ResentInput:
    """An input whose beginning may be in the log.

    Attributes:
        messages: The state's messages without those that are known or ignored.
        changes: The changes to the state's messages that remove them.
        known: The known messages, for the append that compares again; None if nothing is new.
        logged: Ids of those of `messages` that are in the log.
    """

    messages: list[BaseMessage]
    changes: list[BaseMessage] = field(default_factory=list)
    known: list[BaseMessage] | None = None
    logged: frozenset[str] = frozenset()


async def find_resent(
    chat: Conversation,
    messages: Sequence[BaseMessage],
    logged: set[str],
    trust: Trust,
    *,
    is_client: bool,
) -> ResentInput | None:
    """Compare the messages that a client may have sent with the log; None if there is nothing to compare.

    Questions without an answer between them are no history: their runs were interrupted before anything was logged. A
    history other than that of the log is a HistoryDivergedError. With `is_client` all messages are the run's input.
    """
    question = last_question(messages)
    end = (0 if question is None else question + 1) if trust.is_all else len(messages)
    # LangChain puts its summary before the questions that a checkpoint keeps; after them, a mark is the client's.
    generated = 0 if is_client else end if question is None else question
    said = [
        message
        for at, message in enumerate(messages[:end])
        if message.id not in trust.own and not (at < generated and is_made_up(message))
    ]
    first = next((at for at, message in enumerate(said) if message.id not in logged), len(said))
    unknown = said[first:]
    sent = read_sent(unknown, trust)
    if len(sent) < 2 and all(
        item.message is item.origin and item.message.type == "human" for item in sent
    ):
        return None
    resender = (await host_of(chat).services()).resender
    scope = tuple(chat.scope.items())
    is_checked = is_client or trust.is_chosen
    error: HistoryDivergedError | None = None
    # The state may hold a logged turn and then the whole history again, or a history with ids in part only.
    for batch in [unknown, said] if first and (is_client or trust.is_all) else [unknown]:
        if not is_history(batch) and (trust.is_all or batch[0].type != "human"):
            continue
        try:
            decision = await resender.decide(scope, read_sent(batch, trust), trust)
        except HistoryDivergedError as diverged:
            error = diverged
        else:
            return await _without_known(chat, messages, decision, logged, is_checked=is_checked)
    if (
        error is not None
        and is_history(unknown)
        and any(message.type == "ai" for message in unknown)
    ):
        raise error
    if trust.is_all:
        return None
    decision = await resender.decide(scope, sent, trust, compares=error is None)
    found = await _without_known(chat, messages, decision, logged, is_checked=is_checked)
    return found if error is None else replace(found, known=None)


async def _without_known(
    chat: Conversation,
    messages: Sequence[BaseMessage],
    decision: Decision,
    logged: set[str],
    *,
    is_checked: bool,
) -> ResentInput:
    """Return the input without the messages that the log has or that are ignored; none may be unless `is_checked`.

    If the client sends no ids, the other messages get ids that every worker derives alike, so that a request sent to
    two workers is one question.
    """
    sent = decision.sent
    matched = decision.match.matched
    if decision.ignored and not is_checked:
        known_or_new = matched.keys() | decision.taken.keys()
        await _refuse_unclear([item for at, item in enumerate(sent) if at not in known_or_new])
    taken = [(index, decision.taken[index]) for index in sorted(decision.taken)]
    question = max(
        (index for index, item in enumerate(sent) if item.message.type == "human"), default=-1
    )
    batch = {id(item.origin): item.origin for item in sent}
    left = [message for message in messages if id(message) not in batch]
    known = [sent[index].message for index in sorted(matched)]
    removed = [removal(message) for message in batch.values()]
    if question in matched:
        question_id = matched[question].id
        found = await read_turn(chat, question_id)
        asked = (
            found.question
            if found
            else sent[question].message.model_copy(update={"id": question_id})
        )
        new = [asked, *(message for _, message in taken)]
        return ResentInput([*left, *new], [*removed, *new], logged=frozenset({question_id}))
    has_ids = not decision.is_known or any(
        message.id in logged for message in known if message.type == "human"
    )
    if has_ids or id(messages[-1]) not in batch:
        pieces = {
            id_: [message for index, message in taken if id(sent[index].origin) == id_]
            for id_ in batch
        }
        kept = [piece for message in messages for piece in pieces.get(id(message), [message])]
        return ResentInput(kept, [*removed, *(message for _, message in taken)], known)
    new = [
        message.model_copy(update={"id": _derived_id(decision, index)}) for index, message in taken
    ]
    return ResentInput([*left, *new], [*removed, *new], known)


async def _refuse_unclear(ignored: Sequence[Sent]) -> None:
    """Raise an error if a message to ignore may be the application's: of another node, or of `update_state`."""
    unclear = await ids_without_input(ids_of(item.origin for item in ignored))
    names = [item.name for item in ignored if item.origin.id in unclear]
    if names:
        raise InvalidInputError(
            f"{len(names)} messages of the agent's state are not in the conversation, and may be a client's or your "
            f'application\'s: {", ".join(names[:10])}; pass trust="human" to ConversationMiddleware to ignore such '
            'messages, or trust="all" if no client can send them; the thread then goes on'
        )


def _derived_id(decision: Decision, index: int) -> str:
    """Return an id derived from the log, its last rewind and the new message."""
    last = max(decision.match.matched)
    before = decision.match.matched[last].id
    digest = decision.batch[index].digest.hex()
    made_of = ["convstore resent", before, decision.tail.rewind_entry, index - last, digest]
    return str(uuid5(NAMESPACE_OID, json.dumps(made_of)))


def removal(message: BaseMessage) -> BaseMessage:
    """Return the update that removes a message from a state."""
    return RemoveMessage(str(message.id))

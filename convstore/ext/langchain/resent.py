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
from convstore.integration import Decision, host_of, read_sent
from convstore.messages.filing import ids_of, is_history, last_question
from convstore.messages.provenance import is_made_up
from convstore.values.append_options import SentMessage, Trust


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
    said = _said(messages, trust, is_client=is_client)
    unknown = _from_first_unknown(said, logged)
    sent = read_sent(unknown, trust)
    if len(sent) < 2 and all(_is_plain_question(item) for item in sent):
        return None
    resender = (await host_of(chat).services()).resender
    scope = tuple(chat.scope.items())
    is_checked = is_client or trust.is_chosen
    batches = [unknown]
    if len(unknown) < len(said) and (is_client or trust.is_all):
        # The state may hold a logged turn and then the whole history again, or a history with ids in part only.
        batches.append(said)
    error: HistoryDivergedError | None = None
    for batch in _histories(batches, trust):
        try:
            decision = await resender.decide(scope, read_sent(batch, trust), trust)
        except HistoryDivergedError as diverged:
            error = diverged
        else:
            return await _without_known(chat, messages, decision, logged, is_checked=is_checked)
    if error is not None and _has_answers(unknown):
        raise error
    if trust.is_all:
        return None
    decision = await resender.decide(scope, sent, trust, compares=error is None)
    found = await _without_known(chat, messages, decision, logged, is_checked=is_checked)
    return found if error is None else replace(found, known=None)


def _said(messages: Sequence[BaseMessage], trust: Trust, *, is_client: bool) -> list[BaseMessage]:
    """Return the messages of a state that a client may have sent."""
    question = last_question(messages)
    end = len(messages)
    if trust.is_all:
        end = 0 if question is None else question + 1
    # LangChain puts its summary before the questions that a checkpoint keeps; after them, a mark is the client's.
    generated = end if question is None else question
    if is_client:
        generated = 0
    return [
        message
        for at, message in enumerate(messages[:end])
        if message.id not in trust.own and not (at < generated and is_made_up(message))
    ]


def _from_first_unknown(said: list[BaseMessage], logged: set[str]) -> list[BaseMessage]:
    """Return the messages from the first one on that the log does not have."""
    unknown = (at for at, message in enumerate(said) if message.id not in logged)
    return said[next(unknown, len(said)) :]


def _is_plain_question(item: SentMessage) -> bool:
    """Return True for a human message that is taken as it was sent."""
    return item.message is item.origin and item.message.type == "human"


def _histories(batches: Sequence[list[BaseMessage]], trust: Trust) -> list[list[BaseMessage]]:
    """Return the batches that are to be compared with the log."""
    if trust.is_all:
        return [batch for batch in batches if is_history(batch)]
    return [batch for batch in batches if is_history(batch) or batch[0].type == "human"]


def _has_answers(batch: Sequence[BaseMessage]) -> bool:
    """Return True for a history that has answers, so it is no row of questions whose runs were interrupted."""
    return is_history(batch) and any(message.type == "ai" for message in batch)


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
    if decision.ignored and not is_checked:
        await _refuse_ignored(decision)
    compared = _Compared.of(messages, decision)
    question = compared.last_question
    if question in decision.match.matched:
        return compared.asked_before(await _question(chat, decision, question))
    if compared.has_ids(logged) or id(messages[-1]) not in compared.batch:
        return compared.with_own_ids()
    return compared.with_derived_ids()


async def _question(chat: Conversation, decision: Decision, index: int) -> BaseMessage:
    """Return a question that the log has, as it has it."""
    question_id = decision.match.matched[index].id
    found = await read_turn(chat, question_id)
    if found:
        return found.question
    return decision.sent[index].message.model_copy(update={"id": question_id})


@dataclass(frozen=True, slots=True)
class _Compared:
    """An input that was compared with the log.

    Attributes:
        messages: The state's messages.
        decision: What the log has of it.
        batch: The messages that were compared, by identity.
        taken: Those of them that are new, by their indexes.
        known: Those that the log has.
    """

    messages: Sequence[BaseMessage]
    decision: Decision
    batch: dict[int, BaseMessage]
    taken: list[tuple[int, BaseMessage]]
    known: list[BaseMessage]

    @classmethod
    def of(cls, messages: Sequence[BaseMessage], decision: Decision) -> _Compared:
        """Return an input with what was decided."""
        sent = decision.sent
        batch = {id(item.origin): item.origin for item in sent}
        taken = [(index, decision.taken[index]) for index in sorted(decision.taken)]
        known = [sent[index].message for index in sorted(decision.match.matched)]
        return cls(messages, decision, batch, taken, known)

    @property
    def last_question(self) -> int:
        """The index of the last question among those that were compared; -1 without one."""
        humans = (at for at, item in enumerate(self.decision.sent) if item.message.type == "human")
        return max(humans, default=-1)

    def has_ids(self, logged: set[str]) -> bool:
        """Return True if the client sends ids that the log has, or nothing that it has."""
        if not self.decision.is_known:
            return True
        return any(message.id in logged for message in self.known if message.type == "human")

    @property
    def _new(self) -> list[BaseMessage]:
        return [message for _, message in self.taken]

    @property
    def _left(self) -> list[BaseMessage]:
        """The messages that were not compared."""
        return [message for message in self.messages if id(message) not in self.batch]

    @property
    def _removed(self) -> list[BaseMessage]:
        return [removal(message) for message in self.batch.values()]

    def asked_before(self, question: BaseMessage) -> ResentInput:
        """Return the input whose last question the log has."""
        new = [question, *self._new]
        logged = frozenset({str(question.id)})
        return ResentInput([*self._left, *new], [*self._removed, *new], logged=logged)

    def with_own_ids(self) -> ResentInput:
        """Return the input with new messages in their places, under the ids that they have."""
        pieces: dict[int, list[BaseMessage]] = {id_: [] for id_ in self.batch}
        for index, message in self.taken:
            pieces[id(self.decision.sent[index].origin)].append(message)
        kept = [piece for message in self.messages for piece in pieces.get(id(message), [message])]
        return ResentInput(kept, [*self._removed, *self._new], self.known)

    def with_derived_ids(self) -> ResentInput:
        """Return the input with new messages at its end, under ids that every worker derives alike."""
        new = [
            message.model_copy(update={"id": _derived_id(self.decision, index)})
            for index, message in self.taken
        ]
        return ResentInput([*self._left, *new], [*self._removed, *new], self.known)


async def _refuse_ignored(decision: Decision) -> None:
    """Raise an error if a message that is neither known nor taken may be the application's."""
    known_or_new = decision.match.matched.keys() | decision.taken.keys()
    ignored = [item for at, item in enumerate(decision.sent) if at not in known_or_new]
    await _refuse_unclear(ignored)


async def _refuse_unclear(ignored: Sequence[SentMessage]) -> None:
    """Raise an error if a message to ignore may be the application's: of another node, or of `update_state`."""
    unclear = await ids_without_input(ids_of(item.origin for item in ignored))
    names = [item.name for item in ignored if item.origin.id in unclear]
    if names:
        raise InvalidInputError(
            f"{len(names)} messages of the agent's state are not in the conversation, and may be "
            "a client's or your "
            f'application\'s: {", ".join(names[:10])}; pass trust="human" to '
            "ConversationMiddleware to ignore such "
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

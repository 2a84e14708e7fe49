"""Find the messages of a run's input that the log already has, or that a client may not send.

A client that sends the whole history again sends no ids, so LangGraph makes new ones for every request, which the log
cannot know. An input with the new question alone costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import BaseMessage, RemoveMessage

from convstore import Conversation
from convstore.exceptions import HistoryDivergedError, InvalidInputError
from convstore.ext.langchain.turn import read_turn
from convstore.ext.older_checkpoint import ids_without_input
from convstore.integration import host_of
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
    resender = (await host_of(chat).services()).resender
    sent = resender.read(unknown, trust)
    if len(sent) < 2 and all(_is_plain_question(item) for item in sent):
        return None
    is_checked = is_client or trust.is_chosen
    compared = partial(_compared, chat, messages, logged, trust, is_checked=is_checked)
    batches = [unknown]
    if len(unknown) < len(said) and (is_client or trust.is_all):
        # The state may hold a logged turn and then the whole history again, or a history with ids in part only.
        batches.append(said)
    error: HistoryDivergedError | None = None
    for batch in _histories(batches, trust):
        try:
            return await compared(batch)
        except HistoryDivergedError as diverged:
            error = diverged
    if error is not None and _has_answers(unknown):
        raise error
    if trust.is_all:
        return None
    if error is None:
        return await compared(unknown)
    return replace(await compared(unknown, is_new=True), known=None)


async def _compared(
    chat: Conversation,
    messages: Sequence[BaseMessage],
    logged: set[str],
    trust: Trust,
    batch: Sequence[BaseMessage],
    *,
    is_checked: bool,
    is_new: bool = False,
) -> ResentInput:
    """Compare a batch of the state's messages with the log; with `is_new` its questions are new."""
    resender = (await host_of(chat).services()).resender
    sent = resender.read(batch, trust)
    scope = tuple(chat.scope.items())
    found = await resender.decide(scope, sent, trust, compares=not is_new)
    taken = {index: found.taken[index] for index in sorted(found.taken)}
    last, before = max(found.known.items(), default=(-1, ""))
    log: list[str | int] = ["convstore resent", before, found.tail.rewind_entry]
    derived = {
        index: _derived_id(*log, index - last, found.batch[index].digest.hex()) for index in taken
    }
    whole = _Compared(messages, found.sent, found.known, taken, derived, found.is_known)
    return await whole.without_known(chat, logged, is_checked=is_checked or not found.ignored)


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


@dataclass(frozen=True, slots=True)
class _Compared:
    """An input that was compared with the log.

    Attributes:
        messages: The state's messages.
        sent: Those that were compared.
        known: Ids that the log has for them, by their indexes.
        taken: Those of them that are new, by their indexes, in order.
        derived: The ids that every worker derives for new ones.
        is_known: The log has more of them than leading system messages.
    """

    messages: Sequence[BaseMessage]
    sent: Sequence[SentMessage]
    known: Mapping[int, str]
    taken: Mapping[int, BaseMessage]
    derived: Mapping[int, str]
    is_known: bool

    async def without_known(
        self, chat: Conversation, logged: set[str], *, is_checked: bool
    ) -> ResentInput:
        """Return the input without the messages that the log has or that are ignored.

        None may be ignored unless `is_checked`. If the client sends no ids, the other messages get ids that every
        worker derives alike, so that a request sent to two workers is one question.
        """
        if not is_checked:
            await self._refuse_ignored()
        question = self._last_question
        if question in self.known:
            return self._asked_before(await self._question(chat, question))
        if self._has_ids(logged) or id(self.messages[-1]) not in self._batch:
            return self._with_own_ids()
        return self._with_derived_ids()

    @property
    def _batch(self) -> dict[int, BaseMessage]:
        """The messages that were compared, by identity."""
        return {id(item.origin): item.origin for item in self.sent}

    @property
    def _last_question(self) -> int:
        """The index of the last question among those that were compared; -1 without one."""
        humans = (at for at, item in enumerate(self.sent) if item.message.type == "human")
        return max(humans, default=-1)

    @property
    def _logged(self) -> list[BaseMessage]:
        return [self.sent[index].message for index in self.known]

    def _has_ids(self, logged: set[str]) -> bool:
        """Return True if the client sends ids that the log has, or nothing that it has."""
        if not self.is_known:
            return True
        return any(message.id in logged for message in self._logged if message.type == "human")

    @property
    def _left(self) -> list[BaseMessage]:
        """The messages that were not compared."""
        return [message for message in self.messages if id(message) not in self._batch]

    @property
    def _removed(self) -> list[BaseMessage]:
        return [removal(message) for message in self._batch.values()]

    async def _question(self, chat: Conversation, index: int) -> BaseMessage:
        """Return a question that the log has, as it has it."""
        found = await read_turn(chat, self.known[index])
        if found:
            return found.question
        return self.sent[index].message.model_copy(update={"id": self.known[index]})

    def _asked_before(self, question: BaseMessage) -> ResentInput:
        """Return the input whose last question the log has."""
        new = [question, *self.taken.values()]
        logged = frozenset({str(question.id)})
        return ResentInput([*self._left, *new], [*self._removed, *new], logged=logged)

    def _with_own_ids(self) -> ResentInput:
        """Return the input with new messages in their places, under the ids that they have."""
        pieces: dict[int, list[BaseMessage]] = {id_: [] for id_ in self._batch}
        for index, message in self.taken.items():
            pieces[id(self.sent[index].origin)].append(message)
        kept = [piece for message in self.messages for piece in pieces.get(id(message), [message])]
        return ResentInput(kept, [*self._removed, *self.taken.values()], self._logged)

    def _with_derived_ids(self) -> ResentInput:
        """Return the input with new messages at its end, under ids that every worker derives alike."""
        new = [
            message.model_copy(update={"id": self.derived[index]})
            for index, message in self.taken.items()
        ]
        return ResentInput([*self._left, *new], [*self._removed, *new], self._logged)

    async def _refuse_ignored(self) -> None:
        """Raise an error if a message to ignore may be the application's: of another node, or of `update_state`."""
        known_or_new = self.known.keys() | self.taken.keys()
        ignored = [item for at, item in enumerate(self.sent) if at not in known_or_new]
        unclear = await ids_without_input(ids_of(item.origin for item in ignored))
        names = [item.name for item in ignored if item.origin.id in unclear]
        if names:
            raise InvalidInputError(
                f"{len(names)} messages of the agent's state are not in the conversation, and may "
                "be a client's or your "
                f'application\'s: {", ".join(names[:10])}; pass trust="human" to '
                "ConversationMiddleware to ignore such "
                'messages, or trust="all" if no client can send them; the thread then goes on'
            )


def _derived_id(*made_of: str | int) -> str:
    """Return an id derived from the log, its last rewind and a new message: every worker derives the same."""
    return str(uuid5(NAMESPACE_OID, json.dumps(made_of)))


def removal(message: BaseMessage) -> BaseMessage:
    """Return the update that removes a message from a state."""
    return RemoveMessage(str(message.id))

"""Find the messages of a run's input that the log already has, or that a client may not send.

A client that sends the whole history again sends no ids, so LangGraph makes new ids for every request, which are not in
the log. An input with the new question alone costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import BaseMessage, RemoveMessage

from convstore import Conversation
from convstore.exceptions import HistoryDivergedError, InvalidInputError
from convstore.ext.checkpoints import find_origins
from convstore.ext.langchain.run import read_turn
from convstore.integration import host_of
from convstore.messages.filing import ids_of, is_history, last_question
from convstore.messages.provenance import is_generated
from convstore.values.append_options import SentMessage, Trust


@dataclass(frozen=True, slots=True)
class ResentInput:
    """An input whose beginning may be in the log.

    Attributes:
        messages: The state's messages without those that are known or ignored.
        changes: The changes to the state that lead to `messages`.
        known: The known messages, for the append that compares again; None if nothing is new.
        logged: Ids of the messages that are in the log.
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

    Several questions without answers between them are not a resent history if they came in several inputs or differ
    from the log: their runs were interrupted before anything was logged. With `is_client` all messages are the run's
    input.

    Raises:
        HistoryDivergedError: The client sent a history that differs from the log.
    """
    candidates = _from_client(messages, trust, is_client=is_client)
    unknown = _from_first_unknown(candidates, logged)
    resender = (await host_of(chat).services()).resender
    sent = resender.read(unknown, trust)
    if await _are_new_questions(sent, is_client=is_client):
        return None
    is_checked = is_client or trust.is_chosen

    async def compared(batch: Sequence[BaseMessage], *, is_new: bool = False) -> ResentInput:
        """Compare a batch of the state's messages with the log; with `is_new` its questions are taken as new."""
        read = resender.read(batch, trust)
        scope = tuple(chat.scope.items())
        found = await resender.decide(scope, read, trust, compares=not is_new)
        if not is_checked:
            await _refuse_ignored(found)
        return await _ComparedInput(messages, found).without_known(chat, logged)

    batches = [unknown]
    if len(unknown) < len(candidates) and (is_client or trust.is_all):
        # The state may hold a logged turn followed by the whole history, or a history with ids on some messages only.
        batches.append(candidates)
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


def _from_client(
    messages: Sequence[BaseMessage], trust: Trust, *, is_client: bool
) -> list[BaseMessage]:
    """Return the messages of a state that a client may have sent."""
    question = last_question(messages)
    end = len(messages)
    if trust.is_all:
        end = 0 if question is None else question + 1
    # LangChain puts its summary before the questions that a checkpoint keeps; a mark after them comes from the client.
    generated = end if question is None else question
    if is_client:
        generated = 0
    return [
        message
        for at, message in enumerate(messages[:end])
        if message.id not in trust.own and not (at < generated and is_generated(message))
    ]


def _from_first_unknown(candidates: list[BaseMessage], logged: set[str]) -> list[BaseMessage]:
    """Return the messages from the first unknown one on."""
    unknown = (at for at, message in enumerate(candidates) if message.id not in logged)
    return candidates[next(unknown, len(candidates)) :]


def _is_plain_question(item: SentMessage) -> bool:
    """Return True for a human message that is accepted unchanged."""
    return item.message is item.origin and item.message.type == "human"


async def _are_new_questions(sent: Sequence[SentMessage], *, is_client: bool) -> bool:
    """Return True for at most one question, or several that came in several inputs; all of them accepted unchanged."""
    if not all(map(_is_plain_question, sent)):
        return False
    if len(sent) < 2 or is_client:
        return len(sent) < 2
    ids = [str(item.message.id) for item in sent]
    origins = await find_origins(ids, is_outer=True)
    return origins is not None and len(set(map(origins.first.get, ids))) > 1


def _histories(batches: Sequence[list[BaseMessage]], trust: Trust) -> list[list[BaseMessage]]:
    """Return the batches that have to be compared with the log."""
    if trust.is_all:
        return [batch for batch in batches if is_history(batch)]
    return [batch for batch in batches if is_history(batch) or batch[0].type == "human"]


def _has_answers(batch: Sequence[BaseMessage]) -> bool:
    """Return True for a history with answers, so not only questions whose runs were interrupted."""
    return is_history(batch) and any(message.type == "ai" for message in batch)


@dataclass(frozen=True, slots=True)
class _ComparedInput:
    """An input that was compared with the log.

    Attributes:
        messages: The state's messages.
        found: The result of the comparison: the compared messages `sent`, and `known` and `taken` by indexes of them.
    """

    messages: Sequence[BaseMessage]
    found: Any

    async def without_known(self, chat: Conversation, logged: set[str]) -> ResentInput:
        """Return the input without the messages that the log has or that are ignored.

        If the client sends no ids, the other messages get derived ids, the same on every worker. So a request that is
        sent to two workers is one question.
        """
        humans = (at for at, item in enumerate(self.found.sent) if item.message.type == "human")
        question = max(humans, default=-1)
        if question in self.found.known:
            return self._asked_before(await self._question(chat, question))
        if self._has_ids(logged) or id(self.messages[-1]) not in self._batch:
            return self._with_own_ids()
        return self._with_derived_ids()

    @property
    def _batch(self) -> dict[int, BaseMessage]:
        """The messages that were compared, by identity."""
        return {id(item.origin): item.origin for item in self.found.sent}

    @property
    def _logged(self) -> list[BaseMessage]:
        return [self.found.sent[index].message for index in self.found.known]

    def _has_ids(self, logged: set[str]) -> bool:
        """Return True if a known question has its id in the log, or if no message is known."""
        if not self.found.is_known:
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
        """Return a known question with its content and id in the log."""
        id_ = self.found.known[index]
        turn = await read_turn(chat, id_)
        if turn:
            return turn.messages[0]
        sent: BaseMessage = self.found.sent[index].message
        return sent.model_copy(update={"id": id_})

    def _asked_before(self, question: BaseMessage) -> ResentInput:
        """Return the input for a last question that the log has."""
        new = [question, *self.found.taken.values()]
        logged = frozenset({str(question.id)})
        return ResentInput([*self._left, *new], [*self._removed, *new], logged=logged)

    def _with_own_ids(self) -> ResentInput:
        """Return the input with the new messages at their positions, under their own ids."""
        pieces: dict[int, list[BaseMessage]] = {id_: [] for id_ in self._batch}
        for index, message in self.found.taken.items():
            pieces[id(self.found.sent[index].origin)].append(message)
        kept = [piece for message in self.messages for piece in pieces.get(id(message), [message])]
        return ResentInput(kept, [*self._removed, *self.found.taken.values()], self._logged)

    def _with_derived_ids(self) -> ResentInput:
        """Return the input with the new messages at its end, under ids that are the same on every worker."""
        last, before = max(self.found.known.items(), default=(-1, ""))
        position = ["convstore resent", before, self.found.tail.rewind_entry]
        new: list[BaseMessage] = []
        for index, message in self.found.taken.items():
            key = [*position, index - last, self.found.batch[index].content_digest.hex()]
            id_ = str(uuid5(NAMESPACE_OID, json.dumps(key)))
            new.append(message.model_copy(update={"id": id_}))
        return ResentInput([*self._left, *new], [*self._removed, *new], self._logged)


async def _refuse_ignored(found: Any) -> None:
    """Raise an error if an ignored message may come from the application: from another node or from `update_state`."""
    ignored = [item for item in found.sent if item.name in found.ignored]
    if not ignored:
        return
    origins = await find_origins(ids_of(item.origin for item in ignored))
    sources = origins.sources if origins else {}
    names = [
        item.name
        for item in ignored
        if not origins or sources.get(str(item.origin.id)) not in ("input", None)
    ]
    if names:
        raise InvalidInputError(
            f"{len(names)} messages of the agent's state are not in the conversation, and may come "
            f'from a client or your application: {", ".join(names[:10])}; pass trust="human" to '
            "ConversationMiddleware to ignore such messages, or "
            'trust="all" if no client can send them; the thread then continues'
        )


def removal(message: BaseMessage) -> BaseMessage:
    """Return the update that removes a message from a state."""
    return RemoveMessage(str(message.id))

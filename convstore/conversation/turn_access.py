"""Access to the turns of one conversation for integrations, beneath `Conversation` and `TurnSession`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from convstore.append.condition import Condition, IdsTaken
from convstore.append.inputs import naming_conflicts, normalize_messages
from convstore.append.items import read_batch
from convstore.conversation.entered import (
    Entered,
    all_turns,
    entered_turn,
    find_turns_by,
    turns_of,
)
from convstore.conversation.handle import Conversation
from convstore.conversation.host import host_of
from convstore.conversation.services import Services
from convstore.conversation.turn import TurnSession
from convstore.exceptions import (
    InvalidInputError,
    TurnClosedError,
    TurnConflictError,
    TurnLostError,
    UnknownMessageError,
)
from convstore.log.facts.standing import Standing
from convstore.log.turn_record import TurnRecord
from convstore.messages.filing import added_to, last_question, without_marks
from convstore.runtime.background import settle
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.streaming import is_streaming
from convstore.values.append_options import AppendOptions, Columns
from convstore.values.log_records import LogItem
from convstore.values.models import Receipt, TurnState
from convstore.values.stamps import ViewStamp
from convstore.values.turns import Pause, TurnCall


class TurnAccess:
    """Finds the turns that the current context or its run holds, and appends to them.

    Attributes:
        chat: The conversation.
    """

    def __init__(self, chat: Conversation) -> None:
        self.chat = chat
        self._scope = tuple(chat.scope.items())

    find_by = staticmethod(find_turns_by)

    @staticmethod
    def of_session(session: TurnSession) -> Entered:
        """Return the conversation of a session, and its turn."""
        return session._chat, session._held

    @staticmethod
    def innermost() -> HeldTurn | None:
        """Return the turn that was entered last and not left, else None.

        It is also None in the code of a stream's source, because the session reads that stream itself.
        """
        entered = [held for _, held in all_turns() if held.is_entered]
        return entered[-1] if entered and not is_streaming() else None

    async def _services(self) -> Services:
        return await host_of(self.chat).services()

    def held(self, *turn_ids: str | None) -> HeldTurn | None:
        """Return the turn that this context has entered or its run holds, else None.

        If ids are given, only these turns count.
        """
        return entered_turn(self.chat, *turn_ids)

    def entered(self) -> HeldTurn | None:
        """Return the turn that this context has entered, else None; turns that a run holds do not count."""
        return entered_turn(self.chat, of_run=False)

    def begun(self, turn_id: str | None) -> HeldTurn | None:
        """Return a turn that this context has entered, even if its session was left since, else None."""
        return next(reversed(turns_of(self.chat, turn_id)), None)

    def check_not_left(self, turn_id: str | None) -> None:
        """Raise a TurnLostError if this task began inside a session of the turn that was left since."""
        if not all(held.is_entered for held in turns_of(self.chat, turn_id)):
            raise TurnLostError(str(turn_id))

    async def append(self, held: HeldTurn, messages: Sequence[BaseMessage], **how: Any) -> Receipt:
        """Append messages of an agent to a turn. `how` are options of `Conversation.append`.

        Messages that a tool added to its result are marked in the agent's state; the log stores the mark as a column.
        If the question was rewound during the run, the messages still belong to its turn: readers list them as messages
        of no turn, and they answer no other question. If the log never had the question, the end of the log decides
        which turn they belong to. When a reply is among them, its draft is deleted.
        """
        columns: dict[str, Columns] = {}
        for message in messages:
            if result_id := added_to(message):
                columns[str(message.id)] = Columns(held.record.turn_id, answers=result_id)
        whole = normalize_messages(without_marks(messages))
        options = AppendOptions(columns=columns, **how)
        services = await self._services()
        addition = Addition(whole, from_state=True, options=options)
        try:
            receipt = await held.append(addition)
        except UnknownMessageError:
            if held.branch:
                raise
            if held.record.is_asked:
                named = {str(message.id): Columns(held.record.turn_id) for message in whole}
                options = replace(options, columns=named | columns)
            receipt = (await services.writer.append(self._scope, whole, options=options)).receipt
        if any(isinstance(message, AIMessage) for message in whole):
            await settle(held.drafts.drop_appended())
        return receipt

    async def append_run(
        self, messages: Sequence[BaseMessage], *, stamp: ViewStamp | None = None
    ) -> Receipt:
        """Append the question and the messages of a run, for a framework that stores a run at its end.

        Raises:
            TurnClosedError: The log has an answer to the run's question. Nothing was written.
            ContentConflictError: The log has another message under an id. Nothing was written.
        """
        whole = normalize_messages(messages)
        options = AppendOptions(stamp=stamp, replies="results")
        writer = (await self._services()).writer
        is_new = Condition(known=frozenset())
        try:
            written = await writer.append(self._scope, whole, condition=is_new, options=options)
        except IdsTaken:
            await self._check_unanswered(whole)
            written = await writer.append(self._scope, whole, options=options)
        return written.receipt

    async def is_asked(self, question: BaseMessage) -> bool:
        """Return True if the log has the question of a run that broke off, so that the run must not ask it again.

        A framework that stores a run at its end calls this first. The errors are those that `append_run` would raise
        after the run, so no model is asked in vain. One command for a new question.

        Raises:
            TurnClosedError: The question has an answer, or its turn was stopped.
            TurnConflictError: A later question was asked, so the answer would end up in its turn.
            ContentConflictError: The log has another message under the id.
            MessageRewoundError: The question was rewound.
        """
        turn_id = str(question.id)
        services = await self._services()
        cached = await services.reader.find(self._scope)
        if cached is None:
            return False
        found = await services.reader.messages_by_id(cached, [turn_id], retry_if_stale=False)
        if not found:
            return False
        # the writer compares the contents; it writes nothing, as the log has the message
        superseded = TurnConflictError(turn_id, is_newest=False)
        condition = Condition(refusal=superseded)
        whole = normalize_messages([question])
        await services.writer.append(self._scope, whole, condition=condition)
        record = await self.record(turn_id)
        if record is not None and record.fold.over == "superseded":
            raise superseded
        if record is not None and record.fold.over:
            raise TurnClosedError(turn_id)
        return True

    async def append_transcript(self, parts: Sequence[BaseMessage | LogItem]) -> Receipt:
        """Append the next messages and items of a transcript; each reply answers the question before it.

        In a transcript, one answer may be several messages, and messages without calls may come before its last one.
        """
        _, whole, items = read_batch(parts, key=None)
        options = AppendOptions(replies="newest")
        writer = (await self._services()).writer
        with naming_conflicts(whole, key=None):
            written = await writer.append(self._scope, whole, items=items, options=options)
        return written.receipt

    async def _check_unanswered(self, messages: Sequence[BaseMessage]) -> None:
        """Raise a TurnClosedError if the last question of a batch is answered in the log, but not by these replies.

        If the log has another question under its id, this does nothing, because the append raises its own error.
        """
        question = last_question(messages)
        record = await self.record(str(messages[question].id)) if question is not None else None
        if question is None or record is None or record.fold.over in ("", "superseded"):
            return
        if record.messages[0].content != messages[question].content:
            return
        said = [message for message in messages[question:] if isinstance(message, AIMessage)]
        if any(message.id not in record.ordinals for message in said):
            raise TurnClosedError(record.turn_id)

    async def record(self, turn_id: str) -> TurnRecord | None:
        """Return a turn with its messages in full, from the session that the caller entered or else from the log.

        Returns None if its question is not in the log, or was rewound.
        """
        held = self.held(turn_id)
        if held is not None and held.record.is_asked:
            return held.record
        records = (await self._services()).turn_records
        with suppress(InvalidInputError):
            return (await records.read(self._scope, turn_id)).record
        return None

    async def paused_calls(self, turn_id: str) -> list[tuple[TurnCall, Pause]]:
        """Return the calls of an agent's interrupt with their decisions and pauses, in order. Two or three commands."""
        if held := self.held(turn_id):
            return held.record.paused
        records = (await self._services()).turn_records
        return (await records.read(self._scope, turn_id)).record.paused

    async def hidden_variant(self, state: TurnState) -> tuple[list[BaseMessage], str]:
        """Return the messages of a variant that views do not show yet, and the id of the question shown instead.

        Both are empty if the question was not asked yet. Four commands, or five.
        """
        with suppress(UnknownMessageError):
            variants = (await self._services()).variants
            return await variants.hidden(
                self._scope, state.turn_id, state.variant_id or state.turn_id
            )
        return [], ""

    async def at_places(self, turn_ids: Sequence[str]) -> dict[str, Standing]:
        """Return the variants at the places of some active turns, by turn id; turns without others are left out."""
        return await (await self._services()).variants.at_places(self._scope, turn_ids)

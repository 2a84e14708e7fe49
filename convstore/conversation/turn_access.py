"""The turns of one conversation as agents and pages work on them, beneath `Conversation` and `TurnSession`."""

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
    TurnLostError,
    UnknownMessageError,
)
from convstore.log.facts.standing import Standing
from convstore.log.turn_record import TurnRecord
from convstore.messages.filing import came_with, last_question, without_marks
from convstore.runtime.background import settle
from convstore.turns.held import Addition, HeldTurn
from convstore.turns.streaming import is_streaming
from convstore.values.append_options import AppendOptions, Columns
from convstore.values.log_records import LogItem
from convstore.values.models import Receipt, TurnState
from convstore.values.stamps import ViewStamp
from convstore.values.turns import Pause, TurnCall


class TurnAccess:
    """Finds the turns that a caller holds, and writes to them.

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
        """Return the turn that was entered last and not left; None without one, and for the source of its stream.

        A session's stream hears its source itself.
        """
        entered = [held for _, held in all_turns() if held.is_entered]
        return entered[-1] if entered and not is_streaming() else None

    async def _services(self) -> Services:
        return await host_of(self.chat).services()

    def held(self, *turn_ids: str | None) -> HeldTurn | None:
        """Return the turn that this context has entered, or its run holds.

        None without one, and if it is another one than these.
        """
        return entered_turn(self.chat, *turn_ids)

    def entered(self) -> HeldTurn | None:
        """Return the turn that this context has entered, not one that its run took; None without one."""
        return entered_turn(self.chat, of_run=False)

    def begun(self, turn_id: str | None) -> HeldTurn | None:
        """Return a turn that this context has entered, though its session was left since; None if it has not."""
        return next(reversed(turns_of(self.chat, turn_id)), None)

    def check_not_left(self, turn_id: str | None) -> None:
        """Raise a TurnLostError if this task began within a session of a turn that was left meanwhile."""
        if not all(held.is_entered for held in turns_of(self.chat, turn_id)):
            raise TurnLostError(str(turn_id))

    async def append(self, held: HeldTurn, messages: Sequence[BaseMessage], **how: Any) -> Receipt:
        """Append messages of an agent to a turn. `how` are options of `Conversation.append`.

        Those that a tool added to its result are marked in the state of the agent, and have a column for it in the
        log. After a rewind of the question in the midst of a run, all messages still belong to it: readers list them as
        messages of no turn, and none of them answers the question before, or a new one. If the log never had the
        question, its end says which turn they belong to. The draft of a reply among them is deleted.
        """
        columns = dict[str, Columns]()
        for message in messages:
            if result_id := came_with(message):
                columns[str(message.id)] = Columns(held.record.turn_id, answers=result_id)
        whole = normalize_messages(without_marks(messages))
        options = AppendOptions(columns=columns, **how)
        services = await self._services()
        addition = Addition(whole, of_state=True, options=options)
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
            await settle(_drop_draft(held))
        return receipt

    async def append_run(
        self, messages: Sequence[BaseMessage], *, stamp: ViewStamp | None = None
    ) -> Receipt:
        """Append what a run was asked and said, for a framework that stores a run at its end.

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

    async def append_transcript(self, parts: Sequence[BaseMessage | LogItem]) -> Receipt:
        """Append the next messages and items of a transcript, each of whose replies answers the question before it.

        A transcript has an answer in several messages, of which all but one may have no calls.
        """
        _, whole, items = read_batch(parts, key=None)
        options = AppendOptions(replies="newest")
        writer = (await self._services()).writer
        with naming_conflicts(whole, key=None):
            written = await writer.append(self._scope, whole, items=items, options=options)
        return written.receipt

    async def _check_unanswered(self, messages: Sequence[BaseMessage]) -> None:
        """Raise a TurnClosedError if the log has other replies to the last question of a batch than the batch.

        Another question under its id is left to the append, which refuses it.
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
        """Return a turn with its messages in full: as the caller who has entered it knows it, else as the log has it.

        None if the log does not have its question, or that was rewound.
        """
        held = self.held(turn_id)
        if held is not None and held.record.is_asked:
            return held.record
        records = (await self._services()).turn_records
        with suppress(InvalidInputError):
            return (await records.read(self._scope, turn_id)).record
        return None

    async def paused_calls(self, turn_id: str) -> list[tuple[TurnCall, Pause]]:
        """Return the calls that an agent's interrupt is about, as they were decided, in order.

        Two or three commands.
        """
        if held := self.held(turn_id):
            return held.record.paused
        records = (await self._services()).turn_records
        return (await records.read(self._scope, turn_id)).record.paused

    async def hidden_variant(self, state: TurnState) -> tuple[list[BaseMessage], str]:
        """Return the messages of a variant that views do not show yet, and the id of the question shown instead.

        Nothing if the question was not asked yet. Four commands, or five.
        """
        with suppress(UnknownMessageError):
            variants = (await self._services()).variants
            return await variants.hidden(
                self._scope, state.turn_id, state.variant_id or state.turn_id
            )
        return [], ""

    async def at_places(self, turn_ids: Sequence[str]) -> dict[str, Standing]:
        """Return the variants at the places of some active turns, by turn id; nothing for one that is alone there."""
        return await (await self._services()).variants.at_places(self._scope, turn_ids)


async def _drop_draft(held: HeldTurn) -> None:
    """Delete the draft of a reply that was appended."""
    if held.drop_draft:
        await held.drop_draft()
        held.drop_draft = None

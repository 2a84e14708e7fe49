"""Give the messages of a turn their ids, and check that the turn still fits the end of the log.

All ids derive from the id of the human message, so a repeated request produces the same turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.append.inputs import MessageBatch, normalize_messages
from convstore.exceptions import (
    InvalidInputError,
    InvalidMessageError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.entry import Totals
from convstore.log.rows import Row
from convstore.messages.filing import is_question
from convstore.values.scope import check_id


def turn_messages(
    turn_id: str,
    *,
    human: str | BaseMessage | Mapping[str, object] | None,
    messages: MessageBatch,
    key: str | None,
) -> list[BaseMessage]:
    """Return the messages of a turn, or of its answer, each with an id; see `Conversation.append_turn`.

    Missing ids are derived from the key and the index in the turn, where the human message has index 0.

    Raises:
        InvalidMessageError: One of `messages` is invalid, or begins another turn.
        InvalidInputError: The turn id, the human message or the key is invalid.

    Examples:
        >>> from langchain_core.messages import AIMessage
        >>> asked, answer = turn_messages("r1", human="Hello", messages=AIMessage("Hi"), key=None)
        >>> [again] = turn_messages("r1", human=None, messages=AIMessage("Hi"), key=None)
        >>> asked.id, answer.id == again.id
        ('r1', True)
    """
    check_id(turn_id, name="turn_id")
    begin = [] if human is None else [_human(turn_id, human)]
    if isinstance(messages, Iterator):
        messages = list(messages)
    if begin and isinstance(messages, list | tuple) and not messages:
        return begin
    rest = normalize_messages(messages, key=turn_id if key is None else key, start=1)
    for index, message in enumerate(rest):
        if message.type == "human":
            raise InvalidMessageError(
                "a human message begins a turn of its own; append it as `human`", index=index
            )
        if message.id == turn_id:
            raise InvalidMessageError(
                "has the id of the turn, which is the human message's", index=index, field="id"
            )
    return begin + rest


def _human(turn_id: str, given: str | BaseMessage | Mapping[str, object]) -> BaseMessage:
    """Return the human message with the id of its turn, which is also set on the caller's object."""
    message = HumanMessage(given) if isinstance(given, str) else given
    own = message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)
    if own not in (None, turn_id):
        raise InvalidInputError(
            f"the human message has an id of its own; pass that as turn_id instead of {turn_id!r}"
        )
    [*others, whole] = normalize_messages([message], new_id=lambda: turn_id)
    if others:
        raise InvalidInputError("human must be one message; append results of tools before it")
    if whole.type != "human":
        raise InvalidInputError(
            f"human must be a human message or its text, not a message of type {whole.type!r}"
        )
    if isinstance(whole.content, str) and not whole.content.strip():
        raise InvalidInputError(
            "human is a blank text; pass the question, or leave it out to continue a turn"
        )
    if not is_question(whole):
        raise InvalidInputError(
            "human is a message of another turn, as its response_metadata says; pass its text"
        )
    return whole


def check_turn(turn_id: str, ids: Sequence[str], *, found: Mapping[str, Row], tail: Totals) -> None:
    """Check that the new messages of a turn may follow the end of the log.

    The active log must end with the human message and the turn's earlier messages. Active messages before a message
    never change, so comparing indexes among the active messages is enough.

    Args:
        turn_id: Id of the human message.
        ids: Ids of the turn's messages, in order, with or without the human message.
        found: Those of them, and the human message, that are in the log; all active, read after `tail`.
        tail: Totals of the log.

    Raises:
        UnknownMessageError: The human message is neither in the log nor among `ids`.
        InvalidInputError: The message with the id of the turn is not a human message.
        TurnConflictError: The turn has other messages, or a later turn exists.
    """
    rest = [id_ for id_ in ids if id_ != turn_id]
    stored = [found[id_].place for id_ in rest if id_ in found]
    begin = found.get(turn_id)
    if begin is None:
        if turn_id not in ids:
            raise UnknownMessageError(turn_id, begins_turn=True)
        if stored:
            raise TurnConflictError(turn_id)
        return
    if begin.message.type != "human":
        raise InvalidInputError(
            f"message {turn_id!r} is not a human message, so no turn begins with it"
        )
    expected = range(begin.place + 1, begin.place + len(stored) + 1)
    if [found[id_].place for id_ in rest[: len(stored)] if id_ in found] != list(expected):
        raise TurnConflictError(turn_id)
    # If the tail is older than `found`, the insert fails because its number is taken.
    if len(stored) < len(rest) and tail.active >= expected.stop:
        raise TurnConflictError(turn_id, is_newest=tail.turns <= begin.turn)

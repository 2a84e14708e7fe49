"""Read the question of a turn, whose id is that of the turn."""

from __future__ import annotations

from collections.abc import Mapping

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidInputError
from convstore.values.plain import part_of
from convstore.values.scope import check_id


def question_message(turn_id: str, given: str | BaseMessage | Mapping[str, object]) -> BaseMessage:
    """Return the question with the id of its turn, which is also set on the caller's object.

    Raises:
        InvalidMessageError: It is not a valid message.
        InvalidInputError: It cannot be a question, or the id of the turn is invalid.

    Examples:
        >>> question_message("r1", "Hello").id
        'r1'
    """
    check_id(turn_id, name="turn_id")
    message = HumanMessage(given) if isinstance(given, str) else given
    own = part_of(message, "id")
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
    return whole

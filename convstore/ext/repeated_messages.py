"""Recognize messages that a `ChatMessageHistory` gets again: those of a view, and an input that an output repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from langchain_core.messages import BaseMessage

from convstore import Conversation
from convstore.integration import log_of
from convstore.messages.encoding import fields_of
from convstore.values.json_form import sendable_message

_PAGE = 1_000


async def changed_messages(
    chat: Conversation, messages: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the messages that are not in the log with the content that views show."""
    shown = await _shown(chat, [message.id for message in messages])
    return [
        message
        for message in messages
        if _fields_shown(message) != _fields_shown(shown.get(message.id or ""))
    ]


async def _shown(chat: Conversation, ids: Sequence[str | None]) -> dict[str, BaseMessage]:
    """Return the messages that the log has, by id, in the form that views show after their turn is finished."""
    left = [
        stored_id.ordinal
        for stored_id in (await log_of(chat).find([id_ for id_ in ids if id_])).values()
    ]
    shown: dict[str, BaseMessage] = {}
    while left and (page := await chat.list_messages(after=min(left) - 1, limit=_PAGE)):
        shown |= {str(message.message.id): message.message for message in page}
        left = [ordinal for ordinal in left if ordinal > page[-1].ordinal]
    return shown


def _fields_shown(message: BaseMessage | None) -> dict[str, Any]:
    if message is None:
        return {}
    return {
        key: value
        for key, value in fields_of(sendable_message(message)).items()
        if key != "artifact"
    }


def with_id(message: BaseMessage) -> BaseMessage:
    """Return the message; if it has no id, a copy with a random id."""
    return message if message.id else message.model_copy(update={"id": str(uuid4())})


def without_repeats(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages without those that a later one repeats: equal content, and the same id or no id."""
    return [
        message
        for index, message in enumerate(messages)
        if not any(_is_repeat(message, other) for other in messages[index + 1 :])
    ]


def _is_repeat(message: BaseMessage, other: BaseMessage) -> bool:
    if type(message) is not type(other) or other.id is None or message.id not in (None, other.id):
        return False
    return (message.content, message.name) == (other.content, other.name)

"""Convert messages of Pydantic AI to messages of the log, and back.

Each message of the log has a mark in ``additional_kwargs`` with the JSON of its parts, so that the way back is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic_ai.conversation_store import ConversationEntry
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from convstore.ext.pydantic_ai.edited import edited
from convstore.types import Dropped
from convstore.values.json_form import sendable
from convstore.wire.edits import RequestEdits
from convstore.wire.exact import mark_in, rejoined, with_references
from convstore.wire.pydantic_ai import PydanticAIWriter, read_pydantic_ai

_MARK = "pydantic_ai"
_KEYS = {"entry", "parent", "at", "of", "json"}
_LEVELS = 100
"""Nesting of values; the parser of pydantic refuses more than 200 levels."""


def to_log(entry: ConversationEntry, copy: str = "") -> list[BaseMessage]:
    """Return the messages of an entry, at least one; the first one has the entry's id.

    Args:
        entry: A message of Pydantic AI, with its id and its parent's id.
        copy: Suffix of the ids, for copies of messages that the log has.
    """
    (head,) = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    groups = [*read_pydantic_ai(head)] or [(HumanMessage(""), head["parts"])]
    del head["parts"]
    for at, (message, parts) in enumerate(groups):
        message.id = entry.id + (f".{at}" if at else "") + copy
        own = with_references({"parts": parts, "head": {} if at else head}, message)
        place = {"entry": entry.id, "parent": entry.parent_id, "at": at, "of": len(groups)}
        message.additional_kwargs = {_MARK: place | {"json": own}}
    return [message for message, _ in groups]


def mark_of(message: BaseMessage) -> dict[str, Any]:
    """Return the mark of a message of the log: entry, parent, position; empty for a message from elsewhere."""
    mark = mark_in(message, _MARK)
    return mark if mark.keys() >= _KEYS else {}


def entry_of(messages: Sequence[BaseMessage]) -> ConversationEntry:
    """Return the entry of these messages, which are all of its messages, in order."""
    mark = mark_of(messages[0])
    return ConversationEntry(
        id=mark["entry"], parent_id=mark["parent"], message=from_log(messages)[0][0]
    )


def from_log(
    messages: Iterable[BaseMessage], edits: RequestEdits | None = None
) -> tuple[list[ModelMessage], list[Dropped]]:
    """Return messages of the log or of a view as Pydantic AI's, edited for a request, and its unsupported parts.

    Unchanged messages come back exactly. Stubs, shortened texts and placeholders of a view keep their positions. A note
    or a summary becomes a user prompt.
    """
    found: list[ModelMessage] = []
    writer = PydanticAIWriter()

    def written(message: BaseMessage) -> dict[str, Any]:
        return {"parts": writer.parts(message), "head": {}}

    for several, made in rejoined(messages, _MARK, written, _joined):
        found += edited(made, edits, several[0]) if edits else [made]
    return found, writer.dropped


def _joined(messages: Sequence[BaseMessage], owns: Sequence[dict[str, Any]]) -> ModelMessage:
    """Return the message of Pydantic AI for messages of the log, from the JSON of each."""
    kind = "response" if isinstance(messages[0], AIMessage) else "request"
    parts = [part for own in owns for part in own["parts"]]
    made = [{"kind": kind} | owns[0]["head"] | {"parts": parts}]
    [message] = ModelMessagesTypeAdapter.validate_json(
        json.dumps(sendable(made, _LEVELS), ensure_ascii=False)
    )
    return message

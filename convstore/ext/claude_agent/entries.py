"""Convert entries of a transcript to messages and items of the log, and back.

A user or assistant entry becomes messages with its content, and an item with everything else. Any other entry becomes
an item only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.integration import normalize_messages
from convstore.types import LogItem
from convstore.wire.exact import with_references, without_references

KIND = "claude.entry"
"""Kind of the items that have the entries of transcripts."""

Entry: TypeAlias = dict[str, Any]


def to_log(entry: Entry) -> list[BaseMessage | LogItem]:
    """Return the messages of an entry, if it has any, followed by its item."""
    messages = _messages_of(entry)
    return [*messages, item_of(entry, *messages)]


def item_of(entry: Entry, *messages: BaseMessage) -> LogItem:
    """Return the item of an entry, without the content that is in `messages`."""
    data = with_references({"entry": entry}, *messages) | {
        "content_of": [str(message.id) for message in messages]
    }
    return LogItem(kind=KIND, data=data, id=id_of(entry))


def id_of(entry: Entry) -> str | None:
    """Return the `uuid` of an entry; None if it is missing, empty or not a string."""
    id_ = entry.get("uuid")
    return id_ if isinstance(id_, str) and id_ else None


def from_log(data: Mapping[str, Any], messages: Mapping[str, BaseMessage]) -> Entry:
    """Return the entry of an item, given the messages of the log by id."""
    entry: Entry = without_references(data, *(messages[id_] for id_ in data.get("content_of", ())))[
        "entry"
    ]
    return entry


def _messages_of(entry: Entry) -> list[BaseMessage]:
    """Return the messages of a user or assistant entry; [] for others, and for a message that the log cannot store."""
    message = entry.get("message")
    id_ = entry.get("uuid")
    if (
        entry.get("type") not in ("user", "assistant")
        or not isinstance(message, Mapping)
        or not isinstance(id_, str)
    ):
        return []
    given = {**message, "id": id_}
    if not message.get("stop_reason"):
        given.pop("usage", None)  # each entry of an answer repeats its usage; only the last is kept
    try:
        return normalize_messages([given])
    except InvalidInputError:
        return []

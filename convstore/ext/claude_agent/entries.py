"""Convert entries of a transcript to messages and items of the log, and back.

A user or assistant entry becomes messages, which have its content, and an item, which has everything else. Where the
content of the messages is not the same as that of the entry, the item has the whole entry, too. Any other entry is an
item alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.integration import normalize_messages
from convstore.types import LogItem

KIND = "claude.entry"
"""Kind of the items that have the entries of transcripts."""

Entry: TypeAlias = dict[str, Any]


def to_log(entry: Entry) -> list[BaseMessage | LogItem]:
    """Return the messages of an entry, none if it holds none, and its item."""
    messages = _messages_of(entry)
    rest, sources = _without_content(entry, messages) if messages else (entry, [])
    data = {"entry": rest, **({"content_of": sources} if sources else {})}
    return [*messages, LogItem(kind=KIND, data=data, id=id_of(entry))]


def id_of(entry: Entry) -> str | None:
    """Return the `uuid` of an entry; None if it has none, or one that is no text."""
    id_ = entry.get("uuid")
    return id_ if isinstance(id_, str) and id_ else None


def from_log(data: Mapping[str, Any], contents: Mapping[str, Any]) -> Entry:
    """Return the entry of an item, given the contents of messages by id."""
    entry: Entry = data["entry"]
    sources = data.get("content_of", [])
    if not sources:
        return entry
    message = entry["message"]
    if message["content"] is None:
        return {**entry, "message": {**message, "content": contents[sources[0]]}}
    given = iter(sources)
    blocks = [
        {**block, "content": contents[next(given)]} if _is_result(block) else block for block in message["content"]
    ]
    return {**entry, "message": {**message, "content": blocks}}


def _messages_of(entry: Entry) -> list[BaseMessage]:
    """Return the messages of a user or assistant entry; none if it has no message that the log can hold."""
    message, id_ = entry.get("message"), entry.get("uuid")
    if entry.get("type") not in ("user", "assistant") or not isinstance(message, Mapping) or not isinstance(id_, str):
        return []
    given = {**message, "id": id_}
    if not message.get("stop_reason"):
        given.pop("usage", None)  # each entry of one answer repeats its usage; the last one counts
    try:
        return normalize_messages([given])
    except InvalidInputError:
        return []


def _without_content(entry: Entry, messages: Sequence[BaseMessage]) -> tuple[Entry, list[str]]:
    """Return an entry without the content that its messages have, and the ids of these; none if that is not equal."""
    message = entry["message"]
    content = message.get("content")
    if len(messages) == 1 and messages[0].content == content:
        rest: Entry = {**entry, "message": {**message, "content": None}}
        sources = messages
    else:
        blocks = content if isinstance(content, list) else []
        sources = messages[: sum(map(_is_result, blocks))]
        left = [{**block, "content": None} if _is_result(block) else block for block in blocks]
        rest = {**entry, "message": {**message, "content": left}}
    ids = [str(source.id) for source in sources]
    contents = {str(source.id): source.content for source in sources}
    is_equal = bool(ids) and from_log({"entry": rest, "content_of": ids}, contents) == entry
    return (rest, ids) if is_equal else (entry, [])


def _is_result(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_result"

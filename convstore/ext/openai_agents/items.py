"""Convert items of the Agents SDK to what the log keeps, and back to the same items.

The items of one answer become one AI message, so that parallel calls stand together; an item that is no message, a
`LogItem`. A message keeps its items in ``additional_kwargs``, with references to the long texts in its content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, TypeAlias
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.exceptions import InvalidMessageError
from convstore.integration import is_answer_item, normalize_messages
from convstore.types import History, LogItem, OpenAIMessages
from convstore.values.scope import id_problem
from convstore.wire.exact import marked, restored

Item: TypeAlias = dict[str, Any]
KIND: Final = "openai."  # the beginning of kinds of items that are no messages
_KEPT: Final = "openai_agents"  # the key of the items in `additional_kwargs`
_FAKE_ID: Final = "__fake_id__"  # of all items of a model without ids
_COMPACTION: Final = (
    "compaction"  # the history before it, encrypted; `append` takes it as a part of an answer
)


def to_log(items: Sequence[Item], seed: str) -> list[BaseMessage | LogItem]:
    """Return items as the log keeps them, in order, with ids derived from the seed, their position and content."""
    made = list[BaseMessage | LogItem]()
    position = 0
    while position < len(items):
        group = [*takewhile(_is_answer, items[position:])] or [items[position]]
        message = _message(group)
        if message is None:  # one of them cannot be read
            group = group[:1]
            message = _message(group)
        logged = message or LogItem(kind=f"{KIND}{group[0].get('type') or 'item'}", data=group[0])
        logged.id = digest_of([seed, position, group])
        made.append(logged)
        position += len(group)
    return made


def digest_of(value: Any) -> str:
    """Return an id that is always the same for a value."""
    return str(uuid5(NAMESPACE_OID, json.dumps(value, default=str)))


def items_of(message: BaseMessage) -> list[Item] | None:
    """Return the items that a message was made of; None if another API appended it, or a client sent others with it."""
    try:
        items: list[Item] = restored(message.additional_kwargs[_KEPT], message)["items"]
        read = _message(items)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return items if read and _said(read) == _said(message) else None


def converted(messages: Sequence[BaseMessage]) -> OpenAIMessages:
    """Return messages that another API appended as items; the first ones may be results of earlier calls."""
    items: list[Item] = []
    while len(items) < len(messages) and isinstance(result := messages[len(items)], ToolMessage):
        items.append(
            {"type": "function_call_output", "call_id": result.tool_call_id, "output": result.text}
        )
    rest = History(messages=[*messages[len(items) :]]).to_openai(api="responses")
    return OpenAIMessages([*items, *rest], rest.dropped)


def _is_answer(item: Item) -> bool:
    return is_answer_item(item) and item["type"] != _COMPACTION


def _message(group: list[Item]) -> BaseMessage | None:
    """Return the message of one item, or of those of an answer; None if there is none."""
    if not group or not all(map(_is_answer, group[1:])) or group[0].get("type") == _COMPACTION:
        return None
    try:
        [message] = normalize_messages([_without_fake_ids(item) for item in group])
    except (InvalidMessageError, ValueError):
        return None
    message.additional_kwargs[_KEPT] = marked({"items": group}, message)
    return message


def _without_fake_ids(item: Item) -> Item:
    """Return an item as it is read: without a made-up id, and with the id of an assistant's message on its texts."""
    own = item.get("id")
    content = item.get("content")
    rest = {key: value for key, value in item.items() if key != "id"}
    if own == _FAKE_ID or id_problem(own) or not is_answer_item(item):
        return rest
    if item["type"] != "message":
        return item
    return {
        **rest,
        "content": [{**block, "id": own} for block in content]
        if isinstance(content, list)
        else content,
    }


def _said(message: BaseMessage) -> tuple[Any, ...]:
    calls = [
        getattr(message, name, None)
        for name in ("tool_calls", "invalid_tool_calls", "tool_call_id")
    ]
    return type(message), message.content, calls, message.additional_kwargs.get("__openai_role__")

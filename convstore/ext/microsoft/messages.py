"""Convert messages of Microsoft's Agent Framework to messages of the log, and back.

Each function result becomes a message of its own, every other message one message. Their JSON is kept with them, so
that the way back is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby, pairwise
from typing import Any
from uuid import uuid4

from agent_framework import Content, Message
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.exact import marked, restored

_MARK = "agent_framework"
_ID = "convstore_id"
_ROLES = {"ai": "assistant", "human": "user", "system": "system", "tool": "tool"}


def to_log(message: Message) -> list[BaseMessage]:
    """Return the messages that a message becomes in the log; a message without an id of its own gets one, kept on it.

    Ids that a model's service gives are no ids: some repeat them.
    """
    is_own = message.message_id and message.role == "user"
    id_ = message.message_id if is_own else message.additional_properties.setdefault(_ID, uuid4().hex)
    head = message.to_dict()
    contents: list[dict[str, Any]] = head.pop("contents")
    starts = (
        [at for at, part in enumerate(contents) if part["type"] == "function_result"] if message.role == "tool" else []
    )
    edges = [0, *starts[1:], len(contents)]
    messages: list[BaseMessage] = []
    for at, (first, end) in enumerate(pairwise(edges)):
        shown = _shown(message, message.contents[first:end], contents[first:end])
        shown.id = f"{id_}.{at}" if at else id_
        own = marked({"head": head, "contents": contents[first:end]}, shown)
        shown.additional_kwargs = {_MARK: {"message": id_, "json": own}}
        messages.append(shown)
    return messages


def from_log(messages: Iterable[BaseMessage]) -> list[Message]:
    """Return messages of the log or of a view as those of the framework, exactly if they are as they were appended."""
    found: list[Message] = []
    for _, group in groupby(messages, lambda part: part.additional_kwargs.get(_MARK, {}).get("message") or id(part)):
        owns = [_own(message) for message in group]
        contents = [content for own in owns for content in own["contents"]]
        found.append(Message.from_dict(owns[0]["head"] | {"contents": contents}))
    return found


def _own(message: BaseMessage) -> dict[str, Any]:
    try:
        return restored(message.additional_kwargs[_MARK]["json"], message)
    except LookupError:  # from elsewhere, or changed by a view
        head = {"type": "message", "role": _ROLES.get(message.type, "user")}
        return {"head": head, "contents": [content.to_dict() for content in _contents(message)]}


def _contents(message: BaseMessage) -> list[Content]:
    """Return what a message is for a model: its text or its result, and its calls."""
    if isinstance(message, ToolMessage):
        return [Content.from_function_result(message.tool_call_id, result=message.text)]
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    made = [Content.from_function_call(str(call["id"]), call["name"], arguments=call["args"]) for call in calls]
    return [*([Content.from_text(str(message.text))] if message.text else []), *made]


def _shown(message: Message, contents: list[Content], dumped: list[dict[str, Any]]) -> BaseMessage:
    result = next((content for content in contents if content.type == "function_result"), None)
    if message.role == "tool" and result:
        status: Any = "error" if result.exception else "success"
        return ToolMessage(str(result.result or ""), tool_call_id=str(result.call_id), status=status)
    blocks = [block for content in dumped if (block := _block(content))]
    content: Any = blocks[0]["text"] if [block["type"] for block in blocks] == ["text"] else blocks or ""
    if message.role == "assistant":
        calls = [_call(content) for content in contents if content.type == "function_call"]
        invalid = [call for call in calls if "error" in call]
        return AIMessage(
            content, tool_calls=[call for call in calls if "error" not in call], invalid_tool_calls=invalid
        )
    return SystemMessage(content) if message.role == "system" else HumanMessage(content)


def _call(content: Content) -> Any:
    args: Any = content.arguments or {}
    with suppress(ValueError):
        args = json.loads(args) if isinstance(args, str) else dict(args)
    call = {"name": content.name, "id": content.call_id}
    if isinstance(args, dict):
        return call | {"args": args}
    return call | {"args": str(content.arguments), "error": "The arguments are not a JSON object."}


def _block(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return a content as a block of LangChain's; None for one that no other model reads."""
    main = str(content.get("media_type")).partition("/")[0]
    kind = main if main in ("image", "audio", "video") else "file"
    match content:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "text_reasoning", "text": str(text)}:
            return {"type": "reasoning", "reasoning": text}
        case {"type": "data", "uri": str(uri)} if ";base64," in uri:
            return {"type": kind, "base64": uri.partition(";base64,")[2], "mime_type": content.get("media_type")}
        case {"type": "uri", "uri": str(uri)}:
            return {"type": kind, "url": uri, "mime_type": content.get("media_type")}
    return None

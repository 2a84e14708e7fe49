"""Convert messages of Pydantic AI to messages of the log, and back.

One `ModelRequest` becomes a message for each prompt and each tool result, one `ModelResponse` becomes one AI message.
Each has a mark in ``additional_kwargs`` with the JSON of its parts, so that the way back is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic_ai.conversation_store import ConversationEntry
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    FilePart,
    FileUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    RetryFeedbackPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)

from convstore.ext.exact import marked, restored
from convstore.ext.pydantic_ai.parts import PartWriter
from convstore.types import Dropped

_MARK = "pydantic_ai"


def to_log(entry: ConversationEntry, copy: str = "") -> list[BaseMessage]:
    """Return the messages of an entry, at least one; the first one has the entry's id.

    Args:
        entry: A message of Pydantic AI, its id and its parent's.
        copy: Ending of the ids, for a repetition of messages that the log has.
    """
    (head,) = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    parts, groups = head.pop("parts"), [*_groups(entry.message)]
    for at, (message, indices) in enumerate(groups):
        message.id = entry.id + (f".{at}" if at else "") + copy
        own = marked({"parts": [parts[index] for index in indices], "head": {} if at else head}, message)
        place = {"entry": entry.id, "parent": entry.parent_id, "at": at, "of": len(groups)}
        message.additional_kwargs = {_MARK: place | {"json": own}}
    return [message for message, _ in groups]


def mark_of(message: BaseMessage) -> dict[str, Any]:
    """Return the mark of a message of the log: entry, parent, position; empty for a message from elsewhere."""
    return message.additional_kwargs.get(_MARK) or {}


def entry_of(messages: Sequence[BaseMessage]) -> ConversationEntry:
    """Return the entry that these messages of the log are, all of it, in order."""
    mark = mark_of(messages[0])
    return ConversationEntry(id=mark["entry"], parent_id=mark["parent"], message=from_log(messages)[0][0])


def from_log(messages: Iterable[BaseMessage]) -> tuple[list[ModelMessage], list[Dropped]]:
    """Return messages of the log or of a view as Pydantic AI's, and what it has no place for.

    Those that are as they were appended come back exactly. A stub, a shortened text or a placeholder stands where the
    view has it. A note or a summary is a user prompt.
    """
    found, writer = list[dict[str, Any]](), PartWriter()
    for _, group in groupby(messages, lambda message: mark_of(message).get("entry") or id(message)):
        several = [*group]
        owns = [_own(message, writer) for message in several]
        kind = "response" if isinstance(several[0], AIMessage) else "request"
        found.append({"kind": kind} | owns[0]["head"] | {"parts": [part for own in owns for part in own["parts"]]})
    return ModelMessagesTypeAdapter.validate_json(json.dumps(found)), writer.dropped


def _groups(message: ModelMessage) -> Iterator[tuple[BaseMessage, list[int]]]:
    """Yield messages and the indices of the parts that each of them is; parts that no model reads join a neighbour."""
    shown: BaseMessage | None = _ai_message(message) if isinstance(message, ModelResponse) else None
    indices: list[int] = []
    for index, part in enumerate(message.parts):
        if not isinstance(message, ModelResponse) and (prompt := _request_message(part)) is not None:
            if shown is not None:
                yield shown, indices
                indices = []
            shown = prompt
        indices.append(index)
    yield shown if shown is not None else HumanMessage(""), indices


def _request_message(part: Any) -> BaseMessage | None:
    match part:
        case SystemPromptPart():
            return SystemMessage(part.content)
        case UserPromptPart():
            return HumanMessage(part.content if isinstance(part.content, str) else _blocks(part.content))
        case ToolReturnPart():
            text = part.model_response_str(wrap_if_error=False)
            content: Any = [{"type": "text", "text": text}, *_blocks(part.files)] if part.files else text
            status: Any = "success" if part.outcome == "success" else "error"
            return ToolMessage(content, tool_call_id=part.tool_call_id, name=part.tool_name, status=status)
        case RetryFeedbackPart():
            return HumanMessage(part.model_response())
        case CompactionPart(content=str(text)):
            return HumanMessage(text)
    return None


def _ai_message(response: ModelResponse) -> AIMessage:
    blocks = [block for part in response.parts for block in _response_blocks(part)]
    calls = [_call(part) for part in response.parts if isinstance(part, ToolCallPart)]
    counts = {"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens}
    counted: Any = counts | {"total_tokens": sum(counts.values())} if any(counts.values()) else None
    return AIMessage(
        blocks[0]["text"] if [block["type"] for block in blocks] == ["text"] else blocks or "",
        tool_calls=[call for call in calls if "error" not in call],
        invalid_tool_calls=[call for call in calls if "error" in call],
        usage_metadata=counted,
        response_metadata={"model_name": response.model_name} if response.model_name else {},
    )


def _call(part: ToolCallPart[Any]) -> Any:
    call = {"name": part.tool_name, "args": part.args or {}, "id": part.tool_call_id}
    if isinstance(call["args"], str):
        with suppress(ValueError):
            call["args"] = json.loads(call["args"])
    if isinstance(call["args"], dict):
        return call
    return call | {"args": part.args_as_json_str(), "error": "The arguments are not a JSON object."}


def _response_blocks(part: Any) -> list[Any]:
    match part:
        case TextPart() | CompactionPart(content=str()):
            return [{"type": "text", "text": part.content}]
        case ThinkingPart():
            return [{"type": "reasoning", "reasoning": part.content}]
        case FilePart():
            return _blocks([part.content])
    return []


def _blocks(content: Iterable[Any]) -> list[Any]:
    """Return contents of a prompt or a result as LangChain's content blocks; marks of caches are left out."""
    blocks: list[Any] = []
    for item in content:
        match item:
            case str() | TextContent():
                blocks.append({"type": "text", "text": item if isinstance(item, str) else item.content})
            case FileUrl() | BinaryContent():
                main, media_type = item.media_type.partition("/")[0], {"mime_type": item.media_type}
                held = {"url": item.url} if isinstance(item, FileUrl) else {"base64": item.base64}
                blocks.append({"type": main if main in ("image", "audio", "video") else "file", **held, **media_type})
            case UploadedFile():
                blocks.append({"type": "file", "file_id": item.file_id})
    return blocks


def _own(message: BaseMessage, writer: PartWriter) -> dict[str, Any]:
    """Return the JSON of a message's parts, and of what is around them if it is the first of its entry."""
    try:
        return restored(mark_of(message)["json"], message)
    except LookupError:  # from elsewhere, or changed by a view
        return {"parts": writer.parts(message), "head": {}}

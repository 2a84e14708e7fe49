"""Write messages that came through other doors, or that a view has changed, as the JSON of Pydantic AI's parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

from convstore.ext.reasoning import reasoning_beside, reasoning_part
from convstore.integration import Media, Text, parts_of
from convstore.types import Dropped

Part: TypeAlias = dict[str, Any]
_SIGNATURES = ("signature", "reasoningEncryptedContent", "thoughtSignature", "redactedData")


class PartWriter:
    """Writes messages as parts, and keeps a report.

    Attributes:
        dropped: What Pydantic AI has no place for.
    """

    def __init__(self) -> None:
        self.dropped = list[Dropped]()

    def parts(self, message: BaseMessage) -> list[Part]:
        """Return the parts of a message: a prompt, a result, or reasoning, texts, files and calls in order."""
        found = [*self._contents(message)]
        text = "\n".join(content for content in found if isinstance(content, str))
        files = [content for content in found if not isinstance(content, str)]
        match message:
            case AIMessage():
                return [*map(_said, found), *self._calls(message)]
            case ToolMessage():
                result = {"tool_name": message.name or "", "tool_call_id": message.tool_call_id}
                outcome = "failed" if message.status == "error" else "success"
                content = [*filter(None, [text]), *files] if files else text
                return [{"part_kind": "tool-return", **result, "content": content, "outcome": outcome}]
            case SystemMessage():
                return [{"part_kind": "system-prompt", "content": text}]
        return [{"part_kind": "user-prompt", "content": found if files else text}]

    def _contents(self, message: BaseMessage) -> Iterator[str | Part]:
        """Yield texts, files and, of a model, parts with its reasoning."""
        is_said, calls = isinstance(message, AIMessage), set[str | None]()
        if isinstance(message, AIMessage):
            calls = {call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)}
            yield from map(_thinking, reasoning_beside(message))
        for part in parts_of(message):
            if isinstance(part, Text):
                yield from filter(None, [part.text])
            elif isinstance(part, Media):
                yield self._file(message, part)
            elif part.kind == "reasoning" and is_said:
                yield _thinking(reasoning_part(part.block))
            elif part.kind != "call" or part.id not in calls:
                name = "reasoning" if part.kind == "reasoning" else part.type or "block"
                self._drop(message, name, "Pydantic AI has no part for it")

    def _file(self, message: BaseMessage, media: Media) -> str | Part:
        """Return a file, or the text that names it."""
        named = {"identifier": media.name} if media.name else {}
        if not isinstance(message, SystemMessage):
            if media.data and media.mime_type:
                return {"kind": "binary", "data": media.data, "media_type": media.mime_type, **named}
            if media.url and not isinstance(message, AIMessage):
                kind = "document" if media.kind == "file" else media.kind
                return {"kind": f"{kind}-url", "url": media.url, "media_type": media.mime_type or None, **named}
        self._drop(message, media.kind, "Pydantic AI has no part for it without its data and media type")
        return media.description

    def _calls(self, message: AIMessage) -> Iterator[Part]:
        for call in (*message.tool_calls, *message.invalid_tool_calls):
            if call["id"] and call["name"]:
                named = {"tool_name": call["name"], "tool_call_id": call["id"]}
                yield {"part_kind": "tool-call", **named, "args": call["args"]}
            else:
                self._drop(message, "call", "it has no id or no name")

    def _drop(self, message: BaseMessage, part: str, reason: str) -> None:
        self.dropped.append(Dropped(str(message.id or ""), part, reason))


def _said(content: str | Part) -> Part:
    if isinstance(content, str):
        return {"part_kind": "text", "content": content}
    return content if "part_kind" in content else {"part_kind": "file", "content": content}


def _thinking(reasoning: Part) -> Part:
    """Return reasoning with the signature that its provider, and no other, takes back."""
    part = {"part_kind": "thinking", "content": reasoning["text"]}
    for provider, proof in reasoning.get("providerMetadata", {}).items():
        signature = next((proof[key] for key in _SIGNATURES if key in proof), None)
        id_ = "redacted_thinking" if "redactedData" in proof else proof.get("itemId")
        part |= {"provider_name": provider, "signature": signature, "id": id_}
    return part

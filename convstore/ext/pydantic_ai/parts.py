"""Write messages that came through other doors, or that a view has changed, as the JSON of Pydantic AI's parts."""

from __future__ import annotations

from itertools import starmap
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

from convstore.ext.contents import ContentReader
from convstore.integration import Media

Part: TypeAlias = dict[str, Any]
_SIGNATURES = ("signature", "reasoningEncryptedContent", "thoughtSignature", "redactedData")


class PartWriter(ContentReader):
    """Writes messages as parts, and keeps a report."""

    def parts(self, message: BaseMessage) -> list[Part]:
        """Return the parts of a message: a prompt, a result, or reasoning, texts, files and calls in order."""
        found = [self._part(message, content) for content in self.contents(message)]
        text = "\n".join(content for content in found if isinstance(content, str))
        files = [content for content in found if not isinstance(content, str)]
        match message:
            case AIMessage():
                return [*map(_said, found), *starmap(_call, self.calls(message))]
            case ToolMessage():
                result = {"tool_name": message.name or "", "tool_call_id": message.tool_call_id}
                outcome = "failed" if message.status == "error" else "success"
                content = [*filter(None, [text]), *files] if files else text
                return [{"part_kind": "tool-return", **result, "content": content, "outcome": outcome}]
            case SystemMessage():
                return [{"part_kind": "system-prompt", "content": text}]
        return [{"part_kind": "user-prompt", "content": found if files else text}]

    def _part(self, message: BaseMessage, content: str | Media | Part) -> str | Part:
        if isinstance(content, str):
            return content
        return self._file(message, content) if isinstance(content, Media) else _thinking(content)

    def _file(self, message: BaseMessage, media: Media) -> str | Part:
        """Return a file, or the text that names it."""
        named = {"identifier": media.name} if media.name else {}
        if not isinstance(message, SystemMessage):
            if media.data and media.mime_type:
                return {"kind": "binary", "data": media.data, "media_type": media.mime_type, **named}
            if media.url and not isinstance(message, AIMessage):
                kind = "document" if media.kind == "file" else media.kind
                return {"kind": f"{kind}-url", "url": media.url, "media_type": media.mime_type or None, **named}
        return self.without_file(message, media)


def _call(id_: str, name: str, args: Any) -> Part:
    return {"part_kind": "tool-call", "tool_name": name, "tool_call_id": id_, "args": args}


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

"""Read the JSON messages of Pydantic AI as messages of the log, and write messages of a view as its parts.

A request becomes one message for each prompt and each tool result; a response becomes one AI message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import Any, Final, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.call_arguments import as_call_fields, read_call
from convstore.messages.media import media_block
from convstore.messages.text import content_of, text_of
from convstore.messages.usage import usage_of
from convstore.wire.contents import ContentReader
from convstore.wire.parts import Media

JSON: TypeAlias = dict[str, Any]
_URLS: Final = {
    "image-url": "image/*",
    "audio-url": "audio/*",
    "video-url": "video/*",
    "document-url": "",
}
_FILES: Final = frozenset({*_URLS, "binary", "uploaded-file"})
_SIGNATURES: Final = ("signature", "reasoningEncryptedContent", "thoughtSignature", "redactedData")


def read_pydantic_ai(
    message: Mapping[str, Any], *, whole: bool = False
) -> Iterator[tuple[BaseMessage, list[JSON]]]:
    """Convert a request or a response; yield each message with the parts that it came from.

    Parts that models do not read are grouped with a neighbour. A request without a prompt or a result yields no
    message.

    Args:
        message: The JSON that Pydantic AI writes.
        whole: True to keep parts that only Pydantic AI reads, as blocks; False if its JSON is stored elsewhere.

    Raises:
        KeyError, TypeError, ValueError or AttributeError: It is not a message of Pydantic AI.
    """
    if message["kind"] == "response":
        yield _answer(message, whole=whole), message["parts"]
        return
    shown: BaseMessage | None = None
    parts: list[JSON] = []
    for part in message["parts"]:
        if (prompt := _prompt(part, whole=whole)) is not None:
            if shown is not None:
                yield shown, parts
                parts = []
            shown = prompt
        parts.append(part)
    if shown is not None:
        yield shown, parts


def _prompt(part: Mapping[str, Any], *, whole: bool) -> BaseMessage | None:
    match part:
        case {"part_kind": "system-prompt", "content": content}:
            return SystemMessage(content)
        case {"part_kind": "user-prompt", "content": content}:
            if not isinstance(content, str):
                content = content_of([*_blocks(content, whole=whole)])
            return HumanMessage(content)
        case {"part_kind": "tool-return" | "retry-prompt", "tool_name": str()}:
            return _result(part)
        case {"part_kind": "retry-prompt" | "retry-feedback", "content": content}:
            return HumanMessage(
                f"Validation feedback:\n{text_of(content)}\n\nFix the errors and try again."
            )
        case {"part_kind": "compaction", "content": str(text)}:
            return HumanMessage(text)
    return None


def _result(part: Mapping[str, Any]) -> ToolMessage:
    """Return the result of a call, with its data as text and then its files."""
    content = part["content"]
    items = content if isinstance(content, list) else [content]
    files = [item for item in items if _is_file(item)]
    rest = [item for item in items if not _is_file(item)]
    data = content
    if files:
        data = rest[0] if len(rest) == 1 else rest
    text = {"type": "text", "text": text_of(data) if rest and data is not None else ""}
    has_failed = part["part_kind"] == "retry-prompt" or part.get("outcome", "success") != "success"
    return ToolMessage(
        content_of([text, *_blocks(files)]),
        tool_call_id=part["tool_call_id"],
        name=part["tool_name"],
        status="error" if has_failed else "success",
    )


def _is_file(item: Any) -> bool:
    held = isinstance(item, Mapping) and item.get("kind") in _FILES
    return held and not item.keys().isdisjoint({"data", "file_id", "url"})


def _answer(message: Mapping[str, Any], *, whole: bool) -> AIMessage:
    parts = message["parts"]
    named = {"model_name": message.get("model_name"), "finish_reason": message.get("finish_reason")}
    usage = usage_of(message.get("usage"))
    calls = [part for part in parts if part["part_kind"] == "tool-call"]
    return AIMessage(
        content_of([block for part in parts for block in _said(part, whole=whole)]),
        usage_metadata=usage if usage and usage["total_tokens"] else None,
        response_metadata={name: value for name, value in named.items() if value},
        **as_call_fields(
            read_call(call["tool_name"], call.get("args"), call["tool_call_id"]) for call in calls
        ),
    )


def _said(part: JSON, *, whole: bool) -> Iterator[JSON]:
    """Yield the blocks of a part of an answer; calls have no blocks."""
    match part:
        case {"part_kind": "text" | "compaction", "content": str(text)}:
            yield {"type": "text", "text": text}
        case {"part_kind": "thinking", "signature": str(), "provider_name": str(provider)} if (
            whole and provider != "anthropic"
        ):
            yield {"type": "non_standard", "value": part}
        case {"part_kind": "thinking", "content": text}:
            signature = (
                part.get("signature") if part.get("provider_name") in (None, "anthropic") else None
            )
            yield {"type": "reasoning", "reasoning": text} | (
                {"extras": {"signature": signature}} if signature else {}
            )
        case {"part_kind": "file", "content": content}:
            yield from _blocks([content], whole=whole)
        case {"part_kind": kind} if whole and kind != "tool-call":
            yield {"type": "non_standard", "value": part}


def _blocks(content: Iterable[Any], *, whole: bool = False) -> Iterator[JSON]:
    """Yield the blocks of a prompt or a result; cache marks are left out."""
    for item in content:
        match item:
            case str(text) | {"kind": "text-content", "content": str(text)}:
                yield {"type": "text", "text": text}
            case {"kind": "binary", "data": str(data), "media_type": mime_type}:
                yield media_block(mime_type, base64=data)
            case {"kind": "uploaded-file", "file_id": file_id}:
                yield media_block("", file_id=file_id)
            case {"kind": kind, "url": url} if kind in _URLS:
                yield media_block(item.get("media_type") or _URLS[kind], url=url)
            case {"kind": kind} if whole and kind != "cache-point":
                yield {"type": "non_standard", "value": item}


class PydanticAIWriter(ContentReader):
    """Writes messages that another adapter appended, or that a view changed, as parts, and reports what is lost."""

    is_request = True

    def parts(self, message: BaseMessage) -> list[JSON]:
        """Return the parts of a message: a prompt, a result, or reasoning, texts, files and calls in order."""
        found = [self._part(message, content) for content in self.contents(message)]
        text = "\n".join(content for content in found if isinstance(content, str))
        files = [content for content in found if not isinstance(content, str)]
        match message:
            case AIMessage():
                return [*map(_said_part, found), *starmap(_call_part, self.calls(message))]
            case ToolMessage():
                result = {"tool_name": message.name or "", "tool_call_id": message.tool_call_id}
                outcome = "failed" if message.status == "error" else "success"
                content = [*filter(None, [text]), *files] if files else text
                return [
                    {"part_kind": "tool-return", **result, "content": content, "outcome": outcome}
                ]
            case SystemMessage():
                return [{"part_kind": "system-prompt", "content": text}]
        return [{"part_kind": "user-prompt", "content": found if files else text}]

    def _part(self, message: BaseMessage, content: str | Media | JSON) -> str | JSON:
        if isinstance(content, str):
            return content
        return (
            self._file(message, content) if isinstance(content, Media) else _thinking_part(content)
        )

    def _file(self, message: BaseMessage, media: Media) -> str | JSON:
        """Return a file, or its description as text."""
        named = {"identifier": media.name} if media.name else {}
        if not isinstance(message, SystemMessage):
            if media.data and media.mime_type:
                return {
                    "kind": "binary",
                    "data": media.data,
                    "media_type": media.mime_type,
                    **named,
                }
            if media.url and not isinstance(message, AIMessage):
                kind = "document" if media.kind == "file" else media.kind
                return {
                    "kind": f"{kind}-url",
                    "url": media.url,
                    "media_type": media.mime_type or None,
                    **named,
                }
        return self.without_file(message, media)


def _call_part(id_: str, name: str, args: Any) -> JSON:
    return {"part_kind": "tool-call", "tool_name": name, "tool_call_id": id_, "args": args}


def _said_part(content: str | JSON) -> JSON:
    if isinstance(content, str):
        return {"part_kind": "text", "content": content}
    return content if "part_kind" in content else {"part_kind": "file", "content": content}


def _thinking_part(reasoning: JSON) -> JSON:
    """Return reasoning with the signature that only its own provider accepts."""
    part = {"part_kind": "thinking", "content": reasoning["text"]}
    for provider, proof in reasoning.get("providerMetadata", {}).items():
        signature = next((proof[key] for key in _SIGNATURES if key in proof), None)
        id_ = "redacted_thinking" if "redactedData" in proof else proof.get("itemId")
        part |= {"provider_name": provider, "signature": signature, "id": id_}
    return part

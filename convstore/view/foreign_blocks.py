"""Adapt content blocks of user messages and tool results to LangChain's package of a provider.

A block in the form of another provider is silently dropped, or makes the API reject the request. It becomes a text, or
for a file a block in LangChain's own form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from langchain_core.messages import BaseMessage

from convstore.messages.media import block_type, media_block
from convstore.messages.text import text_of
from convstore.values.json_form import valid_text
from convstore.values.providers import ProviderRules
from convstore.wire.anthropic import anthropic_media
from convstore.wire.openai_chat import media_part as chat_media
from convstore.wire.parts import Block, Media, Text, read_part
from convstore.wire.requests import ReportDropped

_Message = TypeVar("_Message", bound=BaseMessage)

_READ_OWN_FORMS: Final = frozenset({"bedrock_converse", "google_genai"})
"""Packages with many block forms of their own, some without a type. Their blocks are not changed."""
_ITEMS: Final = frozenset(
    {
        "additional_tools",
        "apply_patch_call_output",
        "computer_screenshot",
        "configuration_update",
        "input_audio",
        "mcp_approval_response",
        "tool_search_output",
    }
)
"""Block types in user messages and tool results that only OpenAI has."""
_FORMS: Final = frozenset({"audio", "file", "image", "image_url", "input_audio", "video"})
_OF_PACKAGE: Final = {
    "anthropic": frozenset(
        {
            "container_upload",
            "document",
            "file",
            "image",
            "image_url",
            "search_result",
            "text-plain",
            "tool_reference",
        }
    ),
    "openai": _FORMS | _ITEMS,
}


def with_accepted_blocks(message: _Message, rules: ProviderRules, drop: ReportDropped) -> _Message:
    """Return a user message, tool result or system message; the same object if the package accepts all its blocks.

    >>> from langchain_core.messages import HumanMessage
    >>> source = {"type": "text", "media_type": "text/plain", "data": "Refunds take 14 days."}
    >>> message = HumanMessage([{"type": "document", "source": source}])
    >>> with_accepted_blocks(message, ProviderRules.named("openai"), print).content
    [{'type': 'text', 'text': 'Refunds take 14 days.'}]
    >>> with_accepted_blocks(message, ProviderRules.named("anthropic"), print) is message
    True
    """
    content: Any = message.content
    if type(content) is not list or rules.kin in _READ_OWN_FORMS:
        return message
    if all(_is_accepted(block, rules.kin) for block in content):
        return message
    blocks: list[Any] = []
    for block in content:
        blocks += (
            [block] if _is_accepted(block, rules.kin) else _replacement_blocks(block, rules, drop)
        )
    return message.model_copy(update={"content": blocks or ""})


def _is_accepted(block: Any, kin: str) -> bool:
    if kin == "anthropic" and isinstance(block, dict) and isinstance(block.get("file"), dict):
        return False  # a file in OpenAI's form
    kind = block_type(block)
    return kind == "text" or kind in _OF_PACKAGE.get(kin, _FORMS)


def _replacement_blocks(
    block: Any, rules: ProviderRules, drop: ReportDropped
) -> Iterator[dict[str, Any]]:
    """Yield the replacement of a block that the package does not accept; nothing for an empty one."""
    part = read_part(block)
    if isinstance(part, Text):
        for name in part.settings:
            drop(name, "the API does not accept it here")
        if part.text.strip():
            yield {"type": "text", "text": part.text}
    elif isinstance(part, Media):
        yield _file(part, rules, drop)
    elif isinstance(part, Block):
        yield {"type": "text", "text": valid_text(text_of(part.block))}


def _file(media: Media, rules: ProviderRules, drop: ReportDropped) -> dict[str, Any]:
    """Return a file in LangChain's form, or its description as text where the API does not accept it."""
    write = anthropic_media if rules.kin == "anthropic" else chat_media
    if write(media, rules):
        places = (("base64", media.data), ("url", media.url), ("file_id", media.file_id))
        held = next({key: value} for key, value in places if value)
        return {**media_block(media.mime_type, kind=media.kind, name=media.name, **held)}
    drop(media.kind, "only its description is sent")
    return {"type": "text", "text": media.description}

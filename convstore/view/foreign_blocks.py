"""Blocks of people and tools in the forms that LangChain's package of a provider takes.

A form of another provider is rejected with the whole request, or dropped in silence. A text stands for it, and a file
goes in LangChain's own form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage

from convstore.messages.media import block_type, media_block
from convstore.messages.text import text_of
from convstore.values.json_form import valid_text
from convstore.values.providers import ProviderRules
from convstore.wire.anthropic import anthropic_media
from convstore.wire.openai_chat import media_part as chat_media
from convstore.wire.parts import Block, Media, Text, part_of

_Message = TypeVar("_Message", bound=BaseMessage)
_Drop: TypeAlias = Callable[[str, str], None]
"""Notes a part that is not sent, and the reason."""

_READ_OWN_FORMS: Final = frozenset({"bedrock_converse", "google_genai"})
"""Packages with many forms of their own, some without a type: blocks stay as they are."""
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
"""What OpenAI alone knows of people and tools."""
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


def with_taken_blocks(message: _Message, rules: ProviderRules, drop: _Drop) -> _Message:
    """Return a message of a person, a tool or the system; the same object if the package takes all of its blocks.

    >>> from langchain_core.messages import HumanMessage
    >>> source = {"type": "text", "media_type": "text/plain", "data": "Refunds take 14 days."}
    >>> message = HumanMessage([{"type": "document", "source": source}])
    >>> with_taken_blocks(message, ProviderRules.named("openai"), print).content
    [{'type': 'text', 'text': 'Refunds take 14 days.'}]
    >>> with_taken_blocks(message, ProviderRules.named("anthropic"), print) is message
    True
    """
    content: Any = message.content
    if type(content) is not list or rules.kin in _READ_OWN_FORMS:
        return message
    if all(_is_taken(block, rules.kin) for block in content):
        return message
    blocks: list[Any] = []
    for block in content:
        blocks += [block] if _is_taken(block, rules.kin) else _written(block, rules, drop)
    return message.model_copy(update={"content": blocks or ""})


def _is_taken(block: Any, kin: str) -> bool:
    if kin == "anthropic" and isinstance(block, dict) and isinstance(block.get("file"), dict):
        return False  # a file in OpenAI's form
    kind = block_type(block)
    return kind == "text" or kind in _OF_PACKAGE.get(kin, _FORMS)


def _written(block: Any, rules: ProviderRules, drop: _Drop) -> Iterator[dict[str, Any]]:
    """Yield what stands for a block that the package does not take; nothing for one without content."""
    part = part_of(block)
    if isinstance(part, Text):
        for name in part.settings:
            drop(name, "the API does not take it here")
        if part.text.strip():
            yield {"type": "text", "text": part.text}
    elif isinstance(part, Media):
        yield _file(part, rules, drop)
    elif isinstance(part, Block):
        yield {"type": "text", "text": valid_text(text_of(part.block))}


def _file(media: Media, rules: ProviderRules, drop: _Drop) -> dict[str, Any]:
    """Return a file in LangChain's form, or the text that names it where the API does not take it."""
    write = anthropic_media if rules.kin == "anthropic" else chat_media
    if write(media, rules):
        places = (("base64", media.data), ("url", media.url), ("file_id", media.file_id))
        held = next({key: value} for key, value in places if value)
        return {**media_block(media.mime_type, kind=media.kind, name=media.name, **held)}
    drop(media.kind, "only its description is sent")
    return {"type": "text", "text": media.description}

"""Find and remove reasoning and provider signatures in messages.

A signature is verified by the provider that issued it and rejected by every other provider. So a chain that continues
with another provider must not contain signatures. The names below are written by the packages of langchain 1.x and by
common gateways:

- Anthropic: thinking, redacted_thinking, signature
- Bedrock Converse: reasoning_content
- OpenAI Responses and LangChain's standard content: reasoning
- Mistral: thinking
- Gemini: thought, and thought signatures as extras of a block or as a map by call id
- DeepSeek, Groq, Ollama, xAI, OpenRouter and LiteLLM: keys of additional_kwargs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.media import block_type
from convstore.messages.provenance import model_of
from convstore.messages.tool_calls import changed_block, with_changes
from convstore.values.providers import row_of_model

_BOUND: Final = frozenset({"redacted_thinking", "thinking"})
_BLOCKS: Final = frozenset(
    {
        "function_call_signature",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "redacted_thinking",
        "thinking",
        "thought",
    }
)
_KEYS: Final = frozenset(
    {
        "__gemini_function_call_thought_signatures__",
        "__gemini_thinking__",
        "function_call_thought_signatures",
        "reasoning",
        "reasoning_content",
        "reasoningContent",
        "reasoning_details",
        "reasoning_items",
        "reasoning_opaque",
        "reasoning_signature",
        "reasoning_summary",
        "reasoning_text",
        "redacted_thinking",
        "signature",
        "signatures",
        "thinking",
        "thinking_blocks",
        "thinking_content",
        "thinking_signature",
        "thought",
        "thought_signature",
        "thought_signatures",
        "thoughtSignature",
        "thoughtSignatures",
        "thoughts",
    }
)
# Containers of provider-specific fields that gateways and the standard content write. Call arguments are not in this
# set, so they are never searched.
_HOLDERS: Final = frozenset(
    {
        "extra_content",
        "extras",
        "google",
        "providerMetadata",
        "provider_metadata",
        "provider_specific_fields",
        "vertex",
    }
)
REASONING_BESIDE: Final = ("reasoning_content", "reasoning", "reasoning_details")
"""Keys of `additional_kwargs` in which servers with the Chat Completions API return reasoning beside an answer."""
_LISTS: Final = ("tool_calls", "invalid_tool_calls", "tool_call_chunks")


def is_reasoning(block: Any) -> bool:
    """Return True if a content block is reasoning, or only a signature.

    >>> is_reasoning({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}), is_reasoning({"type": "text"})
    (True, False)
    """
    if not isinstance(block, Mapping):
        return False
    if block.get("type") == "non_standard":
        return is_reasoning(block.get("value"))
    # Gemini flags a text part as a thought. Bedrock's native block has no type, only this key.
    return (
        block_type(block) in _BLOCKS
        or block.get("thought") is True
        or set(block) == {"reasoningContent"}
    )


def begins_with_reasoning(message: BaseMessage) -> bool:
    """Return True if the first content block of an AI message is reasoning.

    If the open turn began with reasoning, Anthropic refuses a request that begins this turn with another step.

    >>> from langchain_core.messages import AIMessage
    >>> begins_with_reasoning(AIMessage([{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, "Yes."]))
    True
    """
    content: Any = message.content
    return (
        message.type == "ai"
        and isinstance(content, list)
        and bool(content)
        and is_reasoning(content[0])
    )


def without_reasoning(message: BaseMessage) -> BaseMessage:
    """Return the message without reasoning and signatures; the same object if it has no such parts.

    It cleans content blocks, `additional_kwargs` and calls. Call arguments are unchanged, and so are `usage_metadata`
    and `response_metadata`, which are not sent to a model.

    >>> from langchain_core.messages import AIMessage
    >>> thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    >>> message = AIMessage([thought, "Four."], additional_kwargs={"reasoning_content": "Hm."})
    >>> without_reasoning(message).content, without_reasoning(message).additional_kwargs
    (['Four.'], {})
    """
    update: dict[str, Any] = {}
    if isinstance(message.content, list):
        update["content"] = [
            _cleaned(block) for block in message.content if not is_reasoning(block)
        ]
    update["additional_kwargs"] = _without_keys(message.additional_kwargs)
    for name in _LISTS:
        if calls := getattr(message, name, None):
            update[name] = list(map(_cleaned, calls))
    return with_changes(message, update)


def _cleaned(block: Any) -> Any:
    """Return a block or a call without reasoning keys."""
    return changed_block(block, _without_keys)


def _without_keys(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _KEYS:
            continue
        if key in _HOLDERS and isinstance(value, dict):
            inner = _without_keys(value)
            if inner or not value:  # a container emptied by the removal is dropped too
                kept[key] = inner
        elif key == "tool_calls" and isinstance(value, list):
            kept[key] = list(map(_cleaned, value))
        else:
            kept[key] = value
    return kept


def has_bound_thinking(message: BaseMessage) -> bool:
    """Return True for an answer with thinking that its model binds to the messages before it.

    >>> thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    >>> has_bound_thinking(AIMessage([thought, "So."], response_metadata={"model_name": "claude-opus-5-5"}))
    True
    """
    content: Any = message.content
    if type(content) is not list or not isinstance(message, AIMessage):
        return False
    return any(map(_is_signed, content)) and row_of_model(model_of(message)).bound_thinking


def _is_signed(block: Any) -> bool:
    """Return True for thinking of Anthropic, in its own form or in LangChain's standard form."""
    if block_type(block) == "reasoning":
        extras = block.get("extras")
        return isinstance(extras, dict) and "signature" in extras
    return block_type(block) in _BOUND

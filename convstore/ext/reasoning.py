"""Write the reasoning of a message as parts of the AI SDK, with the signature that its provider needs to take it back.

Each provider and gateway has its own form; the names of the signatures are those of the AI SDK's providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.integration import valid_text

_TEXTS = ("thinking", "reasoning", "reasoning_content", "reasoningContent", "reasoningText", "text", "content")
_BESIDE = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Keys of ``additional_kwargs`` in which gateways put reasoning; the first one with a text counts."""


def reasoning_part(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reasoning in a content block.

    >>> reasoning_part({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"})["providerMetadata"]
    {'anthropic': {'signature': 'c2ln'}}
    """
    part = {"type": "reasoning", "text": valid_text(_text_in(block)), "state": "done"}
    inner = [block[key] for key in ("extras", *_TEXTS) if isinstance(block.get(key), dict)]
    fields = {
        key: value for level in (*inner, block) for key, value in level.items() if isinstance(value, str) and value
    }
    encrypted, item = fields.get("encrypted_content"), fields.get("id")
    proofs = (
        ("openai", {"reasoningEncryptedContent": encrypted, "itemId": item if encrypted else None}),
        ("anthropic", {"redactedData": fields.get("data") if block.get("type") == "redacted_thinking" else None}),
        ("google", {"thoughtSignature": fields.get("thoughtSignature") or fields.get("thought_signature")}),
        ("anthropic", {"signature": fields.get("signature")}),
    )
    for provider, given in proofs:
        if proof := {key: valid_text(value) for key, value in given.items() if value}:
            return {**part, "providerMetadata": {provider: proof}}
    return part


def reasoning_beside(message: BaseMessage) -> Iterator[dict[str, Any]]:
    """Yield the reasoning that a gateway has put beside the content of a message."""
    for key in _BESIDE:
        value = message.additional_kwargs.get(key)
        blocks = [{"text": value}] if isinstance(value, str) and value else value
        if (
            found := [reasoning_part(block) for block in blocks if isinstance(block, dict)]
            if isinstance(blocks, list)
            else []
        ):
            yield from found
            return


def _text_in(value: Any) -> str:
    """Return the text of a block, of a block inside it, or of a list of them."""
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(_text_in, value)))
    if isinstance(value, Mapping):
        return next((text for key in ("summary", *_TEXTS) if (text := _text_in(value.get(key)))), "")
    return value if isinstance(value, str) else ""

"""Read the reasoning of a message, as each provider and gateway writes it, with the signature that proves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.integration import valid_text

_TEXTS = ("thinking", "reasoning", "reasoning_content", "reasoningContent", "reasoningText", "text", "content")
_BESIDE = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Keys of ``additional_kwargs`` in which gateways put reasoning; the first one with a text counts."""


class Thought(NamedTuple):
    """A piece of reasoning.

    Attributes:
        text: What the provider shows of it, "" if it is encrypted.
        provider: Who signed or encrypted it, "" if nobody did.
        proof: The names that the AI SDK gives to what its provider needs to take it back, with the values.
    """

    text: str
    provider: str = ""
    proof: Mapping[str, str] = {}

    @property
    def encrypted(self) -> str:
        """The signature, or the encrypted text; "" without one."""
        return next((value for key, value in self.proof.items() if key != "itemId"), "")


def thought_in(block: Mapping[str, Any]) -> Thought:
    """Return the reasoning in a content block.

    >>> thought_in({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"})
    Thought(text='Hm.', provider='anthropic', proof={'signature': 'c2ln'})
    """
    text, extras = valid_text(_text_in(block)), block.get("extras")
    fields = {**(extras if isinstance(extras, dict) else {}), **block}
    if inner := next((fields[key] for key in _TEXTS if isinstance(fields.get(key), dict)), None):
        fields = {**fields, **inner}
    proofs = (
        ("openai", {"itemId": fields.get("id"), "reasoningEncryptedContent": fields.get("encrypted_content")}),
        ("anthropic", {"redactedData": fields.get("data") if fields.get("type") == "redacted_thinking" else None}),
        ("google", {"thoughtSignature": fields.get("thoughtSignature") or fields.get("thought_signature")}),
        ("bedrock" if inner else "anthropic", {"signature": fields.get("signature")}),
    )
    for provider, given in proofs:
        proof = {key: valid_text(value) for key, value in given.items() if isinstance(value, str) and value}
        if proof and (provider != "openai" or len(proof) > 1):
            return Thought(text, provider, proof)
    return Thought(text)


def thoughts_beside(message: BaseMessage) -> Iterator[Thought]:
    """Yield the reasoning that a gateway has put beside the content of a message."""
    for key in _BESIDE:
        value = message.additional_kwargs.get(key)
        found = [thought_in(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []
        found += [Thought(valid_text(value))] if isinstance(value, str) and value else []
        if found:
            yield from found
            return


def _text_in(value: Any) -> str:
    """Return the text of a block, of a block inside it, or of a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(_text_in, value)))
    if not isinstance(value, Mapping):
        return ""
    keys = ("summary", *_TEXTS)
    return next((text for key in keys if (text := _text_in(value.get(key)))), "")

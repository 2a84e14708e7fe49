"""Recognise answers whose thinking Claude's newer models bind to what stands before it."""

from __future__ import annotations

from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.media import block_type
from convstore.messages.provenance import model_of
from convstore.values.providers import row_of_model

_SIGNED: Final = frozenset({"redacted_thinking", "thinking"})


def has_bound_thinking(message: BaseMessage) -> bool:
    """Return True for an answer with thinking that its model binds to what stands before it.

    >>> thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    >>> has_bound_thinking(AIMessage([thought, "So."], response_metadata={"model_name": "claude-opus-5-5"}))
    True
    """
    content: Any = message.content
    if type(content) is not list or not isinstance(message, AIMessage):
        return False
    return any(map(_is_signed, content)) and row_of_model(model_of(message)).bound_thinking


def _is_signed(block: Any) -> bool:
    """Return True for thinking of Anthropic, in LangChain's standard form too."""
    if block_type(block) == "reasoning":
        extras = block.get("extras")
        return isinstance(extras, dict) and "signature" in extras
    return block_type(block) in _SIGNED

"""Find from the stop reason of a model's reply if it was cut off or failed; the reasons of all providers are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.messages.media import block_type

_KEYS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")
"""Keys of the stop reason in ``response_metadata``: OpenAI and Google, Anthropic, Bedrock, Ollama, Responses API."""

FILTERED: Final = frozenset(
    {
        "blocklist",
        "content_filter",
        "content_filtered",
        "escalation",
        "guardrail_intervened",
        "image_prohibited_content",
        "image_recitation",
        "image_safety",
        "language",
        "model_armor",
        "prohibited_content",
        "pup_limited_disabled",
        "recitation",
        "refusal",
        "safety",
        "spii",
    }
)
"""Stop reasons of replies that the model, or a filter of OpenAI, Anthropic, Google or Amazon, refused to complete."""

_CUT: Final = FILTERED | {
    "continuation",
    "incomplete",
    "length",
    "malformed_function_call",
    "malformed_model_output",
    "malformed_response",
    "malformed_tool_use",
    "max_output_tokens",
    "max_tokens",
    "missing_thought_signature",
    "model_context_window_exceeded",
    "model_length",
    "too_many_tool_calls",
    "unexpected_tool_call",
}
"""Stop reasons of replies that were cut off by a limit, a filter, or a call that Google or Amazon could not parse."""

FAILED_REASONS: Final = frozenset(
    {"abort", "cancelled", "error", "failed", "insufficient_system_resource", "network_error"}
)
"""Stop reasons of replies that the provider or a gateway could not finish."""

UNFINISHED_STATUSES: Final = frozenset({"cancelled", "failed", "in_progress", "queued"})
"""Statuses of OpenAI's `Response` objects without an answer."""


def cut_reason(metadata: Mapping[str, Any]) -> str:
    """Return the stop reason of a reply that was cut off, in lower case; "" for any other.

    >>> cut_reason({"finish_reason": "MAX_TOKENS"}), cut_reason({"stop_reason": "tool_use"})
    ('max_tokens', '')
    """
    details = metadata.get("incomplete_details")
    if isinstance(details, Mapping) and isinstance(details.get("reason"), str):
        return str(details["reason"])
    for key in filter(metadata.__contains__, _KEYS):
        reason = stop_reason(metadata[key]).lower()
        if reason in _CUT:
            return reason
    return ""


def has_refusal(message: BaseMessage) -> bool:
    """Return True for a reply with a refusal field or block of OpenAI, whose stop reason is a normal one.

    >>> from langchain_core.messages import AIMessage
    >>> has_refusal(AIMessage([{"type": "refusal", "refusal": "No."}])), has_refusal(AIMessage("Yes."))
    (True, False)
    """
    kwargs: object = message.additional_kwargs
    if isinstance(kwargs, dict) and kwargs.get("refusal"):
        return True
    content = message.content
    return isinstance(content, list) and any(block_type(block) == "refusal" for block in content)


def failed_reason(metadata: Mapping[str, Any]) -> str:
    """Return the reason why a reply has no answer, "" if it may have one.

    >>> failed_reason({"status": "queued"}), failed_reason({"finish_reason": "stop"})
    ('queued', '')
    """
    status = stop_reason(metadata.get("status"))
    finish = stop_reason(metadata.get("finish_reason"))
    if status in UNFINISHED_STATUSES:
        return status
    return finish if finish in FAILED_REASONS else ""


def lacks_reason(metadata: Mapping[str, Any]) -> bool:
    """Return True if a stop reason is missing in the metadata of a LangChain model that always has one.

    >>> lacks_reason({"model_provider": "openai"}), lacks_reason({})
    (True, False)
    """
    if metadata.get("model_provider") not in ("anthropic", "openai"):
        return False
    return not any(metadata.get(key) for key in _KEYS)


def stop_reason(value: Any) -> str:
    """Return a stop reason as text; some servers send an object that has it as `type`.

    >>> stop_reason("stop"), stop_reason({"type": "length"}), stop_reason(None)
    ('stop', 'length', '')
    """
    if isinstance(value, Mapping):
        value = value.get("type")
    return value if isinstance(value, str) else ""

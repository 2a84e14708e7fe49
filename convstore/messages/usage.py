"""Read the token counts that a provider reports, in the forms of all providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata

from convstore.values.usage import Usage

_MOST_BITS = 40
"""Larger numbers cannot be token counts, and their sums would overflow MongoDB's integers."""

_NAMES: Final = {
    "input_tokens": ("prompt_tokens", "prompt_token_count", "input_tokens"),
    "output_tokens": ("completion_tokens", "candidates_token_count", "output_tokens"),
}
"""Names of the counts in OpenAI's Chat Completions, in Gemini, and in all other APIs."""

_DETAILS: Final = {
    "input_tokens": {
        "audio_tokens": "audio",
        "cached_tokens": "cache_read",
        "cache_write_tokens": "cache_creation",
        "cached_content_token_count": "cache_read",
        "cache_read_tokens": "cache_read",
        "cache_read_input_tokens": "cache_read",
        "cache_creation_input_tokens": "cache_creation",
        "tool_use_prompt_token_count": "tool_use",
    },
    "output_tokens": {
        "audio_tokens": "audio",
        "reasoning_tokens": "reasoning",
        "output_reasoning_tokens": "reasoning",
        "thoughts_token_count": "reasoning",
    },
}
"""LangChain's names of the details by the names of OpenAI, which has them in a separate dict, and of other APIs."""

_APART: Final = frozenset(
    {
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "tool_use_prompt_token_count",
        "thoughts_token_count",
    }
)
"""Details that Anthropic and Gemini count in addition to input and output tokens; LiteLLM includes them there."""

_WRITTEN: Final = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
"""Details of langchain-anthropic for tokens written to a cache, in place of ``cache_creation``."""


def usage_in(message: BaseMessage) -> Usage | None:
    """Return the counts in a message, None without any; values that cannot be token counts count as 0.

    >>> from langchain_core.messages import AIMessage
    >>> usage_in(AIMessage("", response_metadata={"token_usage": {"prompt_tokens": 5, "completion_tokens": 2}}))[:3]
    (5, 2, 7)
    """
    if not isinstance(message, AIMessage):
        return None
    # a message that was built without validation may have any value here
    given: Any = message.usage_metadata or _older_usage(message.response_metadata)
    if not given:
        return None
    sizes = _sizes(given)
    whole, reply, total = (sizes.get(name, 0) for name in Usage._fields[:3])
    if not whole and not reply and not total:
        return None
    details = _sizes(given.get("input_token_details"))
    read = min(details.get("cache_read", 0), whole)
    written = details.get("cache_creation", 0) or sum(details.get(name, 0) for name in _WRITTEN)
    return Usage(whole, reply, total, read, min(written, whole - read))


def _older_usage(metadata: Any) -> UsageMetadata | None:
    """Return the counts of OpenAI and Anthropic in messages of LangChain versions without ``usage_metadata``."""
    given = metadata if isinstance(metadata, Mapping) else {}
    found = given.get("token_usage") or given.get("usage")
    return usage_of(found) if found else None


def usage_of(value: Any) -> UsageMetadata | None:
    """Return the counts of a provider or framework in LangChain's form, or None if they are invalid.

    Anthropic counts cached tokens separately, and Gemini those of thoughts; here they are included in the input or
    output tokens, as in other APIs.

    >>> usage_of({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90})["input_tokens"]
    100
    """
    counts = _counts(value)
    if "prompt_token_count" in counts:
        counts = {"candidates_token_count": 0} | counts  # Gemini leaves out counts of 0
    usage: dict[str, Any] = {}
    for name, names in _NAMES.items():
        known = [counts[found] for found in names if found in counts]
        if not known:
            return None
        is_whole = names[0] in counts
        usage[name] = known[0] if is_whole else known[0] + _apart(counts, name)
        details: dict[str, int] = {}
        for given in (value, value.get(f"{names[0]}_details"), value.get(f"{name}_details")):
            details |= _renamed(_counts(given), _DETAILS[name])
        if details:
            usage[name.replace("tokens", "token_details")] = details
    total = usage["input_tokens"] + usage["output_tokens"]
    stated = counts.get("total_tokens", counts.get("total_token_count", total))
    return cast("UsageMetadata", {"total_tokens": stated, **usage})


def _apart(counts: Mapping[Any, int], name: str) -> int:
    """Return the sum of the details that are not included in input or output tokens."""
    return sum(counts.get(detail, 0) for detail in _DETAILS[name] if detail in _APART)


def _renamed(counts: Mapping[Any, int], names: Mapping[str, str]) -> dict[str, int]:
    return {names[name]: count for name, count in counts.items() if name in names}


def _counts(value: object) -> dict[Any, int]:
    items = value.items() if isinstance(value, Mapping) else ()
    # a bool is an int too
    return {name: count for name, count in items if type(count) is int and count >= 0}


def _sizes(value: object) -> dict[Any, int]:
    return {
        name: count for name, count in _counts(value).items() if count.bit_length() <= _MOST_BITS
    }

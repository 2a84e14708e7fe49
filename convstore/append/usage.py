"""Read the token counts that a provider's API reports, in LangChain's words."""

from __future__ import annotations

from typing import Any, Final, cast

from langchain_core.messages.ai import UsageMetadata

_NAMES: Final = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
_CACHED: Final = {
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_creation",
}
_DETAILS: Final = {
    "audio_tokens": "audio",
    "cached_tokens": "cache_read",
    "cache_write_tokens": "cache_creation",
    "reasoning_tokens": "reasoning",
}


def usage_of(value: object) -> UsageMetadata | None:
    """Return the token counts in LangChain's form, or None if they are invalid.

    Anthropic counts tokens that the cache read or wrote apart; here they are input tokens, as everywhere else.

    >>> usage_of({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90})["input_tokens"]
    100
    """
    counts = _counts(value)
    usage = dict[str, Any]()
    for name, other in _NAMES.items():
        if (count := counts.get(other, counts.get(name))) is None or not isinstance(value, dict):
            return None
        given = _counts(value.get(f"{other}_details")) | _counts(value.get(f"{name}_details"))
        details = {_DETAILS[key]: number for key, number in given.items() if key in _DETAILS}
        if name == "input_tokens":
            cached = {detail: counts[key] for key, detail in _CACHED.items() if key in counts}
            count = count + sum(cached.values())
            details = details | cached
        usage |= {name: count} | (
            {name.replace("tokens", "token_details"): details} if details else {}
        )
    total = usage["input_tokens"] + usage["output_tokens"]
    return cast("UsageMetadata", {"total_tokens": counts.get("total_tokens", total), **usage})


def _counts(value: object) -> dict[Any, int]:
    items = value.items() if isinstance(value, dict) else ()
    # a bool is an int too
    return {name: count for name, count in items if type(count) is int and count >= 0}

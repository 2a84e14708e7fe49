"""Read the token counts that a provider's API reports, in LangChain's words."""

from __future__ import annotations

from typing import Any, Final

from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

_READ: Final = ("prompt_tokens", "input_tokens")
_WRITTEN: Final = ("completion_tokens", "output_tokens")
_CACHED: Final = {"cache_read_input_tokens": "cache_read", "cache_creation_input_tokens": "cache_creation"}
_DETAILS: Final = {
    "audio_tokens": "audio",
    "cache_write_tokens": "cache_creation",
    "cached_tokens": "cache_read",
    "reasoning_tokens": "reasoning",
}


def usage_of(value: object) -> UsageMetadata | None:
    """Return the token counts in LangChain's form, or None if they are invalid.

    Anthropic counts tokens that the cache read or wrote apart; here they are input tokens, as everywhere else.

    >>> usage_of({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90})["input_tokens"]
    100
    """
    valid = _counts(value)
    read = next((valid[name] for name in _READ if name in valid), None)
    written = next((valid[name] for name in _WRITTEN if name in valid), None)
    if read is None or written is None or not isinstance(value, dict):
        return None
    cached = {name: valid[key] for key, name in _CACHED.items() if key in valid}
    read += sum(cached.values())
    usage = UsageMetadata(
        input_tokens=read, output_tokens=written, total_tokens=valid.get("total_tokens", read + written)
    )
    if details := {**_details(value, _READ), **cached}:
        usage["input_token_details"] = InputTokenDetails(**details)  # type: ignore[typeddict-item]
    if details := _details(value, _WRITTEN):
        usage["output_token_details"] = OutputTokenDetails(**details)  # type: ignore[typeddict-item]
    return usage


def _details(value: dict[Any, Any], names: tuple[str, ...]) -> dict[str, int]:
    counts = [_counts(value.get(f"{name}_details")) for name in names]
    return {_DETAILS[key]: count for one in counts for key, count in one.items() if key in _DETAILS}


def _counts(value: object) -> dict[Any, int]:
    items = value.items() if isinstance(value, dict) else ()
    return {name: count for name, count in items if type(count) is int and count >= 0}  # a bool is an int too

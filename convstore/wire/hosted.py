"""Describe calls and results of tools that a provider ran itself, for an API that does not accept them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from convstore.messages.sizes import json_text
from convstore.values.json_form import valid_text

_GIVEN: Final = ("input", "arguments", "args", "action", "code", "queries", "query")
_RETURNED: Final = ("output", "outputs", "results", "content", "result", "error")
_SHOWN: Final = (
    "title",
    "url",
    "filename",
    "text",
    "logs",
    "stdout",
    "stderr",
    "content",
    "output",
)
_MOST: Final = 4_000
"""Maximum length of a text: enough to show the call and its result, and small compared to an answer."""


def hosted_text(block: Mapping[str, Any]) -> str:
    r"""Return a text about a call of a hosted tool, its result, or both; "" for a block that has neither.

    >>> hosted_text({"type": "mcp_call", "name": "create_ticket", "arguments": "{}", "output": "ticket 77"})
    '[The provider ran create_ticket: {}]\nticket 77'
    """
    kind = str(block.get("type") or "")
    if not kind.endswith(("_call", "_use", "_result", "_output")):
        return ""
    name = block.get("name") or kind.removesuffix("_call").removesuffix("_tool_result")
    given = _first(block, _GIVEN)
    if given and not isinstance(given, str):
        given = json_text(given)
    found = "\n".join(_texts(_first(block, _RETURNED)))
    if kind.endswith(("_result", "_output")):
        head = f"[Result of {name}]"
    else:
        head = f"[The provider ran {name}: {given}]" if given else f"[The provider ran {name}]"
    text = "\n".join(filter(None, [head, found]))
    if len(text) > _MOST:
        text = text[:_MOST] + " …"
    return valid_text(text)


def _first(block: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((block[key] for key in keys if block.get(key)), None)


def _texts(value: Any, levels: int = 6) -> Iterator[str]:
    """Yield the readable texts in a result; encrypted contents are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and levels:
        for each in value:
            yield from _texts(each, levels - 1)
    elif isinstance(value, Mapping) and levels:
        for key in _SHOWN:
            if key in value:
                yield from _texts(value[key], levels - 1)

"""Keep the JSON of a framework's message beside the message of the log that it became, without repeating content.

A reference stands in that JSON for what the message itself holds: texts, arguments of calls, files. Where a view has
changed a text, such as a stub, the restored JSON has the changed text.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

_REFERENCE = "convstore:held"
_HELD = frozenset({"args", "arguments", "content", "data", "result", "text", "uri", "url"})
"""Fields of frameworks' messages whose values the message of the log may hold."""
_URL_SAFE = str.maketrans("+/", "-_")


def marked(own: dict[str, Any], message: BaseMessage) -> dict[str, Any]:
    """Return the JSON without what the message holds; `restored` gives it back."""
    held = _held_by(message)
    keys = {json.dumps(value): key for key, value in held.items()}

    def without(node: Any, name: str) -> Any:
        if name in _HELD and (key := keys.get(json.dumps(node))):
            return {_REFERENCE: key}
        if isinstance(node, dict):
            return {inner: without(value, inner) for inner, value in node.items()}
        return [without(value, name) for value in node] if isinstance(node, list) else node

    short: dict[str, Any] = without(own, "")
    exact = json.dumps(own)
    return short if json.dumps(_filled(short, held)) == exact else {"exact": exact}


def restored(mark: dict[str, Any], message: BaseMessage) -> dict[str, Any]:
    """Return the JSON that `marked` was given, if the message is unchanged; else with its present texts.

    Raises:
        LookupError: The message lacks something that the JSON names, such as a file that a view has replaced.
    """
    return dict(json.loads(mark["exact"]) if "exact" in mark else _filled(mark, _held_by(message)))


def _filled(node: Any, held: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if _REFERENCE in node:
            return held[node[_REFERENCE]]
        return {key: _filled(value, held) for key, value in node.items()}
    return [_filled(value, held) for value in node] if isinstance(node, list) else node


def _held_by(message: BaseMessage) -> dict[str, Any]:
    """Return the values of a message that references name: texts, files, arguments of calls."""
    held: dict[str, Any] = {}
    if isinstance(message, ToolMessage) and isinstance(message.content, str):
        with suppress(ValueError):
            held["json"] = json.loads(message.content)
    for at, block in enumerate([message.content] if isinstance(message.content, str) else message.content):
        values = block if isinstance(block, dict) else {"text": block}
        held |= {f"{at}.{key}": values[key] for key in ("text", "reasoning", "url") if key in values}
        if "base64" in values:
            held[f"{at}.base64"] = values["base64"].translate(_URL_SAFE)
            held[f"{at}.uri"] = f"data:{values.get('mime_type')};base64,{values['base64']}"
    for at, call in enumerate(message.tool_calls if isinstance(message, AIMessage) else ()):
        held |= {f"call.{at}": call["args"], f"call.{at}.text": json.dumps(call["args"])}
        held[f"call.{at}.compact"] = json.dumps(call["args"], separators=(",", ":"))
    return held

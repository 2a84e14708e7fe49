"""Read messages from the dicts that LangChain writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage, messages_from_dict


def is_langchain(raw: Mapping[str, Any]) -> bool:
    """Return True for a dict that LangChain wrote: it names the type of a message, but no role."""
    return "type" in raw and ("role" not in raw or raw["type"] == "chat")


def from_langchain(raw: Mapping[str, Any]) -> BaseMessage:
    """Return the message of a dict that ``message_to_dict`` or ``model_dump`` wrote; classes are not loaded by name.

    Raises:
        ValueError, KeyError, TypeError or AttributeError: It is another dict.
    """
    data = raw.get("data")
    if not isinstance(data, dict):
        data = {name: value for name, value in raw.items() if name != "type"}
    [message] = messages_from_dict([{"type": raw["type"], "data": copied(dict(data))}])
    return message


def copied(value: Any) -> Any:
    """Return a copy of the value with every nested dict and list copied; other objects are shared."""
    root = [value]
    copies: dict[int, Any] = {}  # a container that occurs twice, or inside itself, is copied once
    pending: list[Any] = [root]
    while pending:
        parent = pending.pop()
        for slot, child in list(parent.items() if type(parent) is dict else enumerate(parent)):
            if type(child) not in (dict, list):
                continue
            if id(child) not in copies:
                copies[id(child)] = child.copy()
                pending.append(copies[id(child)])
            parent[slot] = copies[id(child)]
    return root[0]

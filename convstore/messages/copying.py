"""Copy messages so that callers may change the copies, faster than pydantic's deep copy.

Floor 0; `view` hands out copies of messages that it keeps.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

__all__ = ["copy_message"]

_Message = TypeVar("_Message", bound=BaseMessage)

_set = object.__setattr__
_EMPTIED = frozenset({dict, list})
_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


def copy_message(message: _Message) -> _Message:
    """Return a copy of a message that shares no list or dict with it.

    >>> from langchain_core.messages import AIMessage
    >>> message = AIMessage([{"type": "text", "text": "hi"}], id="m")
    >>> copied = copy_message(message)
    >>> copied.content[0]["text"] = "changed"
    >>> message.text
    'hi'
    """
    class_ = type(message)
    copied, values = class_.__new__(class_), message.__dict__.copy()
    for name, value in values.items():
        kind = type(value)
        if kind not in _ATOMS:
            values[name] = _copy(value) if value or kind not in _EMPTIED else kind()
    # Pickle restores pydantic models the same way: without validation.
    _set(copied, "__dict__", values)
    _set(copied, "__pydantic_extra__", _copy(message.__pydantic_extra__))
    _set(copied, "__pydantic_fields_set__", message.__pydantic_fields_set__.copy())
    _set(copied, "__pydantic_private__", None)
    return copied


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: part if type(part) in _ATOMS else _copy(part) for key, part in value.items()} if value else {}
    if kind is list:
        return [part if type(part) in _ATOMS else _copy(part) for part in value] if value else []
    return value if kind in _ATOMS else deepcopy(value)

"""Make messages and other models without validation: from checked fields, and as copies that callers may change."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

_Model = TypeVar("_Model", bound=BaseModel)

_set = object.__setattr__
_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
_CONTAINERS = frozenset({dict, list})


def new_model(
    class_: type[_Model], values: dict[str, Any], *, extra: dict[str, Any] | None = None, fields_set: set[str]
) -> _Model:
    """Return a pydantic model with all these fields, which it takes over; pickle restores models the same way."""
    model = class_.__new__(class_)
    _set(model, "__dict__", values)
    _set(model, "__pydantic_extra__", extra)
    _set(model, "__pydantic_fields_set__", fields_set)
    _set(model, "__pydantic_private__", None)
    return model


class Template:
    """The content of a message as it is now, to make equal messages that share no list or dict, faster than deepcopy.

    >>> from langchain_core.messages import AIMessage
    >>> message = AIMessage([{"type": "text", "text": "hi"}], id="m")
    >>> template = Template(message)
    >>> message.content[0]["text"] = "changed"
    >>> template.make().text
    'hi'
    """

    __slots__ = ("_class", "_empty", "_extra", "_fields_set", "_names", "_nested", "_values")

    def __init__(self, message: BaseMessage) -> None:
        fields = message.__dict__
        # A cache has thousands of templates. The garbage collector skips a tuple of atoms; most of the rest is shared.
        self._class, self._names = type(message), shared(tuple(fields))
        self._values = tuple(value if type(value) in _ATOMS else None for value in fields.values())
        others = [(name, type(value), value) for name, value in fields.items() if type(value) not in _ATOMS]
        self._empty = shared(tuple((name, kind) for name, kind, value in others if kind in _CONTAINERS and not value))
        self._nested = tuple((name, _copy(value)) for name, kind, value in others if kind not in _CONTAINERS or value)
        self._extra = _copy(message.__pydantic_extra__) or None
        self._fields_set = shared(frozenset(message.__pydantic_fields_set__))

    def make(self) -> BaseMessage:
        """Return a new message."""
        values = dict[str, Any](zip(self._names, self._values, strict=False))
        extra = _copy(self._extra) if self._extra else {}
        for name, kind in self._empty:
            values[name] = kind()
        for name, value in self._nested:
            values[name] = _copy(value)
        return new_model(self._class, values, extra=extra, fields_set=set(self._fields_set))


@lru_cache(maxsize=1_000)
def shared(value: Any) -> Any:
    """Return the first of some equal values."""
    return value


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: part if type(part) in _ATOMS else _copy(part) for key, part in value.items()} if value else {}
    if kind is list:
        return [part if type(part) in _ATOMS else _copy(part) for part in value] if value else []
    return value if kind in _ATOMS else deepcopy(value)

"""Check the types of the fields that readers of the log rely on; each error names the message and the field.

LangChain validates the arguments of a constructor, but neither assignments nor ``model_construct``, so the name of a
message may be a number. Every message passes `check_fields` before it is stored, however it is appended. Readers rely
on the types of the fields that LangChain declares, and on the type of a content block. They rely on nothing else in
`additional_kwargs`, `response_metadata` and content blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter
from types import NoneType
from typing import Any, TypeAlias

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.exceptions import InvalidMessageError
from convstore.messages.json_text import TEXT_TYPES

_Types: TypeAlias = frozenset[type]

_TEXT: _Types = TEXT_TYPES
_TEXT_OR_NONE: _Types = TEXT_TYPES | {NoneType}
_DICT: _Types = frozenset({dict})
_LIST: _Types = frozenset({list})
_WORDS = {"str": str, "list": list, "dict": dict, "None": NoneType}
_STATUSES = ("success", "error")
_TEXT_BLOCKS = ("text", "input_text", "output_text")


class _Fields:
    """Names of fields and the exact types that each may have: the store cannot restore instances of subclasses."""

    def __init__(self, **types: _Types) -> None:
        self._types = types
        self._values_in = itemgetter(*types)
        # One look-up checks all types at once: every append does this for every message.
        self._allowed = frozenset(product(*types.values()))

    def fit(self, values: Mapping[str, Any]) -> bool:
        """Return True if a dict has all the fields, with these types."""
        try:
            return tuple(map(type, self._values_in(values))) in self._allowed
        except KeyError:
            return False

    def error(
        self, values: Mapping[str, Any], *, where: str = "", index: int
    ) -> InvalidMessageError:
        """Return the error about the first wrong field of a dict."""
        name = next(
            name
            for name, allowed in self._types.items()
            if type(values.get(name, ...)) not in allowed
        )
        if name not in values:
            return InvalidMessageError("is missing", index=index, field=where + name)
        return _wrong_type(values[name], self._types[name], field=where + name, index=index)


_OF_ALL: dict[str, _Types] = {
    "content": _TEXT | _LIST,
    "additional_kwargs": _DICT,
    "response_metadata": _DICT,
    "name": _TEXT_OR_NONE,
    "type": _TEXT,
}
_OF_AI: dict[str, _Types] = {
    "tool_calls": _LIST,
    "invalid_tool_calls": _LIST,
    "usage_metadata": _DICT | {NoneType},
}
_FIELDS: dict[type[BaseMessage], _Fields] = {
    AIMessage: _Fields(**_OF_ALL, **_OF_AI),
    ChatMessage: _Fields(**_OF_ALL, role=_TEXT),
    FunctionMessage: _Fields(**_OF_ALL),
    HumanMessage: _Fields(**_OF_ALL),
    SystemMessage: _Fields(**_OF_ALL),
    ToolMessage: _Fields(**_OF_ALL, tool_call_id=_TEXT, status=_TEXT),
}
PLAIN_CLASSES = frozenset(_FIELDS)
"""The classes of messages that can be stored."""
_TYPE_NAMES: dict[type[BaseMessage], str] = {
    class_: class_.model_fields["type"].default for class_ in _FIELDS
}
_CALL = _Fields(name=_TEXT, args=_DICT, id=_TEXT_OR_NONE)
_INVALID_CALL = _Fields(name=_TEXT_OR_NONE, args=_TEXT_OR_NONE, id=_TEXT_OR_NONE)


def check_fields(message: BaseMessage, *, index: int) -> None:
    """Raise `InvalidMessageError` if a field of a message has another type than LangChain declares.

    Only LangChain's six plain classes can be stored.

    >>> message = ToolMessage("found", tool_call_id="call-1")
    >>> message.name = 7
    >>> check_fields(message, index=0)
    Traceback (most recent call last):
    convstore.exceptions.InvalidMessageError: message 0, field 'name': must be str or None, not a value of type int
    """
    values = message.__dict__
    class_ = type(message)
    if class_ not in _FIELDS:
        raise InvalidMessageError(_foreign_class(message), index=index)
    fields = _FIELDS[class_]
    if not fields.fit(values):
        raise fields.error(values, index=index)
    if values["type"] != _TYPE_NAMES[class_]:
        raise InvalidMessageError(f"must be {_TYPE_NAMES[class_]!r}", index=index, field="type")
    if type(values["content"]) is list:
        check_blocks(values["content"], index=index)
    if class_ is AIMessage:
        if calls := values["tool_calls"]:
            _check_calls(calls, _CALL, "tool_calls", index=index)
            _check_argument_names(calls, index=index)
        if calls := values["invalid_tool_calls"]:
            _check_calls(calls, _INVALID_CALL, "invalid_tool_calls", index=index)
    elif class_ is ToolMessage and values["status"] not in _STATUSES:
        raise InvalidMessageError("must be 'success' or 'error'", index=index, field="status")


def _foreign_class(message: BaseMessage) -> str:
    """Return why a message of this class cannot be stored, and what to do instead."""
    if isinstance(message, RemoveMessage):
        return (
            "the log is immutable; to take messages out of the view call rewind, do not append a "
            "RemoveMessage"
        )
    plain = next(
        (base.__name__ for base in type(message).__mro__ if base in _FIELDS), "HumanMessage"
    )
    return (
        f"{type(message).__name__} would not come back as itself; convert it to a plain class "
        f"such as {plain}"
    )


def check_blocks(content: Sequence[Any], *, index: int) -> None:
    """Raise `InvalidMessageError` unless a list of content has only strings and blocks whose type is a string or None.

    The text of a text block cannot be None: no provider accepts that.
    """
    for position, block in enumerate(content):
        if type(block) is dict:
            if type(block.get("type")) not in _TEXT_OR_NONE:
                field = f"content[{position}].type"
                raise _wrong_type(block["type"], _TEXT_OR_NONE, field=field, index=index)
            if block.get("text", "") is None and block.get("type") in _TEXT_BLOCKS:
                field = f"content[{position}].text"
                raise _wrong_type(None, _TEXT, field=field, index=index)
        elif type(block) not in _TEXT:
            raise _wrong_type(block, _TEXT | _DICT, field=f"content[{position}]", index=index)


def _check_calls(calls: Sequence[Any], fields: _Fields, where: str, *, index: int) -> None:
    for position, call in enumerate(calls):
        if type(call) is not dict:
            raise _wrong_type(call, _DICT, field=f"{where}[{position}]", index=index)
        if not fields.fit(call):
            raise fields.error(call, where=f"{where}[{position}].", index=index)


def _check_argument_names(calls: Sequence[Any], *, index: int) -> None:
    for position, call in enumerate(calls):
        if not _TEXT.issuperset(map(type, call["args"])):
            raise InvalidMessageError(
                "must have keys of type str", index=index, field=f"tool_calls[{position}].args"
            )


def _wrong_type(value: object, allowed: _Types, *, field: str, index: int) -> InvalidMessageError:
    wanted = " or ".join(name for name, type_ in _WORDS.items() if type_ in allowed)
    return InvalidMessageError(
        f"must be {wanted}, not {type_name(value)}", index=index, field=field
    )


# ---------------------------------------------------------------------------------------------------------------------
# Checks of single values


def type_name(value: object) -> str:
    """Return the type of a value, in words."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def abbreviated(value: object) -> str:
    """Return the beginning of a text, or the type of any other value."""
    # the repr of a deep list may recurse too far
    return repr(value[:40]) if isinstance(value, str) else type_name(value)


def check_type(value: object, *allowed: type, field: str, index: int) -> None:
    """Raise `InvalidMessageError` unless a value has one of some types."""
    if not isinstance(value, allowed):
        wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in allowed)
        raise InvalidMessageError(
            f"must be {wanted}, not {type_name(value)}", index=index, field=field
        )


def check_text(value: object, *, field: str, index: int) -> None:
    """Raise `InvalidMessageError` unless a value is a non-empty text."""
    if not isinstance(value, str) or not value:
        raise InvalidMessageError(
            f"must be a non-empty str, not {abbreviated(value)}", index=index, field=field
        )


def check_call_id(values: Mapping[str, Any], key: str, *, field: str, index: int) -> None:
    """Raise `InvalidMessageError` unless a call has an id; it may be null or empty, as some servers send it."""
    if key not in values:
        check_text(None, field=field, index=index)
    check_type(values[key], str, NoneType, field=field, index=index)

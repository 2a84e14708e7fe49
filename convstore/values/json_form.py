"""Convert values to a form that JSON over HTTP can carry: UTF-8 without lone surrogates, and of limited depth.

Half an emoji, which a tool leaves where it cuts a text, becomes U+FFFD. A value nested deeper than parsers and
serializers accept becomes its JSON text. Values that need no change stay the same objects. `Value` is the base of the
models that the public API returns, which are serialised in this form. `new_model` makes models from checked fields.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, Final, NamedTuple, TypeVar

import orjson
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.tool import invalid_tool_call
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from convstore.values.plain import with_leaves

MAX_LEVELS: Final = 200
"""Maximum nesting: far above that of arguments by models, and far below the limit of Python's recursive `json`."""

DEEP_ARGUMENTS: Final = (
    "the arguments are not a JSON object, or they nest too deeply; correct the call"
)
"""Error text of an invalid call. It is constant, because it is stored and a retry must make an equal message."""

_LEVELS: Final = MAX_LEVELS + 20
"""Maximum nesting of a message whose arguments have `MAX_LEVELS`; pydantic serialises at most 255 levels."""

_KEY_LEVELS: Final = 10
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, BaseModel)
_Model = TypeVar("_Model", bound=BaseModel)


def valid_text(text: str) -> str:
    r"""Return the text with lone surrogates replaced.

    >>> valid_text("caf\u00e9"), valid_text("cut \ud83d") == "cut \ufffd"
    ('café', True)
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def first_problem(error: ValidationError) -> str:
    """Return the first field that pydantic refused with the reason, but without its value.

    >>> class Source(BaseModel):
    ...     number: int
    >>> try:
    ...     Source(number="x")
    ... except ValidationError as error:
    ...     first_problem(error)
    'number: Input should be a valid integer, unable to parse string as an integer'
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join([".".join(map(str, first["loc"])), first["msg"]]).removeprefix(": ")


def is_json(value: Any) -> bool:
    """Return True if a value can be sent as JSON exactly as it is."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None.

    >>> without_nulls({"id": "m1", "stop_sequence": None})
    {'id': 'm1'}
    """
    return {name: value for name, value in fields.items() if value is not None}


def has_few_levels(value: Any, most: int = MAX_LEVELS) -> bool:
    """Return True if dicts, lists and tuples nest at most `most` levels deep; this does not recurse."""
    level = [value]
    for _ in range(most):
        children = (
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
        )
        level = [child for child in children if isinstance(child, dict | list | tuple)]
        if not level:
            return True
    return False


class _Written(NamedTuple):
    """A finished piece of JSON text on the stack; `closes` is the `id()` of the container that ends with it."""

    text: str
    closes: int = 0


def deep_json(value: Any) -> str:
    """Return a value of any depth as the JSON text of `json.dumps`; unknown values become their ``str``.

    >>> deep_json({"a": [1, None], "b": ()}) == json.dumps({"a": [1, None], "b": ()})
    True

    Raises:
        ValueError: The value contains itself.
    """
    pieces: list[str] = []
    stack: list[Any] = [value]
    open_: set[int] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, _Written):
            pieces.append(node.text)
            open_.discard(node.closes)
        elif isinstance(node, dict | list | tuple):
            if id(node) in open_:
                raise ValueError("it contains itself")
            open_.add(id(node))
            stack.extend(reversed(_parts(node)))
        else:
            pieces.append(json.dumps(node, default=str))
    return "".join(pieces)


def _parts(node: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> list[Any]:
    """Return the children of a container and the JSON text around each."""
    parts: list[Any] = []
    if isinstance(node, dict):
        for key, child in node.items():
            comma = ", " if parts else ""
            parts += [_Written(f"{comma}{_key_text(key)}: "), child]
        return [_Written("{"), *parts, _Written("}", id(node))]
    for child in node:
        comma = ", " if parts else ""
        parts += [_Written(comma), child]
    return [_Written("["), *parts, _Written("]", id(node))]


def _key_text(key: Any) -> str:
    """Return a key as `json.dumps` writes it."""
    written = json.dumps(
        {key if key is None or isinstance(key, str | int | float) else str(key): 0}
    )
    return written.removeprefix("{").removesuffix(": 0}")


def sendable_message(message: BaseMessage) -> BaseMessage:
    r"""Return a message in a form that JSON can carry; its artifact is left alone, because it is not sent.

    Calls with arguments that nest too deeply become invalid calls.

    >>> sendable_message(BaseMessage("cut \ud83d", type="human")).content
    'cut \ufffd'
    """
    fields = vars(message)
    if "artifact" in fields:
        fields = {name: value for name, value in fields.items() if name != "artifact"}
    try:
        orjson.dumps([fields, message.model_extra])
    except TypeError:  # a lone surrogate, too many levels, or a type that JSON does not have
        made: BaseMessage = _sendable(message, _LEVELS, _same)
        return made
    return message


def json_fields(message: BaseMessage) -> dict[str, Any] | None:
    """Return the fields of a message as JSON values; None for too many levels, or a type that JSON does not have.

    >>> str(json_fields(BaseMessage([{"at": (1, 2)}], type="human")))[:38]
    "{'content': [{'at': [1, 2]}], 'additio"
    """
    try:
        fields: dict[str, Any] = to_jsonable_python(
            message.model_dump(warnings=False), bytes_mode="base64"
        )
    except (PydanticSerializationError, ValueError):
        return None
    return fields


def sendable(value: Any, levels: int = _LEVELS) -> Any:
    """Return a value in a form that JSON can carry: texts are valid, and parts below `levels` become JSON text.

    >>> sendable({"a": {"b": {}}}, levels=2)
    {'a': {'b': '{}'}}
    """
    return _sendable(value, levels, _same)


_Leaf = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _json_leaf(value: Any) -> Any:
    """Return a value that pydantic can serialise: NaN as None, bytes that are not UTF-8 as Base64, others as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        to_jsonable_python(value)
    except (PydanticSerializationError, ValueError):
        is_bytes = isinstance(value, bytes | bytearray)
        if is_bytes:
            return base64.b64encode(value).decode()
        return to_jsonable_python(value, serialize_unknown=True)
    return value


def _sendable(value: Any, levels: int, leaf: _Leaf) -> Any:
    """Return a value in its new form. It uses one Python frame for each level, as callers may have used many."""
    if isinstance(value, str):
        return valid_text(value)
    if not isinstance(value, _CONTAINERS):
        return leaf(value)
    if not levels:
        return valid_text(deep_json(value))
    if isinstance(value, AIMessage):
        value = with_invalid_calls(value)
    made: list[Any] = []
    for child in _children(value):
        made.append(_sendable(child, levels - 1, leaf))  # noqa: PERF401 - without a frame
    if isinstance(value, BaseModel):
        return _with_fields(value, made)
    return _with_values(value, made, leaf) if isinstance(value, dict) else _with_items(value, made)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, BaseModel):
        return [*vars(value).values(), *(value.model_extra or {}).values()]
    return value.values() if isinstance(value, dict) else value


def _with_fields(model: BaseModel, made: Sequence[Any]) -> BaseModel:
    fields = [*vars(model).items(), *(model.model_extra or {}).items()]
    changed = {name: new for (name, old), new in zip(fields, made, strict=True) if new is not old}
    return model.model_copy(update=changed) if changed else model


def _with_items(value: Any, made: list[Any]) -> Any:
    if all(map(is_, made, value)):
        return value
    return tuple(made) if isinstance(value, tuple) else made


def with_invalid_calls(message: AIMessage) -> AIMessage:
    """Make calls whose arguments nest too deeply invalid calls, as the reader of a provider's dict does."""
    calls = message.tool_calls
    deep = [
        call
        for call in calls
        if isinstance(call["args"], dict) and not has_few_levels(call["args"])
    ]
    if not deep:
        return message
    invalid = [
        invalid_tool_call(
            name=call["name"], args=deep_json(call["args"]), id=call["id"], error=DEEP_ARGUMENTS
        )
        for call in deep
    ]
    update = {
        "tool_calls": [call for call in calls if not any(call is other for other in deep)],
        "invalid_tool_calls": [*invalid, *message.invalid_tool_calls],
    }
    return message.model_copy(update=update)


def _with_values(value: Mapping[Any, Any], made: Sequence[Any], leaf: _Leaf) -> Any:
    keys = [_key(key, leaf) for key in value]
    is_same = all(map(is_, keys, value)) and all(map(is_, made, value.values()))
    return value if is_same else dict(zip(keys, made, strict=True))


def _key(key: Any, leaf: _Leaf) -> Any:
    if key is None or isinstance(key, bool | int | float):
        return key
    found = _sendable(key, _KEY_LEVELS, leaf)
    return found if isinstance(found, str) else str(found)


_ANY = TypeAdapter[Any](
    Any, config=ConfigDict(ser_json_bytes="base64", ser_json_inf_nan="constants")
)


def json_values(document: Any) -> Any:
    """Return a document as JSON values: dates as text, bytes as base64, values of other types as their repr.

    NaN and infinite numbers become texts.

    >>> json_values({"a": [1.5, float("nan"), float("-inf")], "b": b"x"})
    {'a': [1.5, 'NaN', '-Infinity'], 'b': 'eA=='}
    """
    try:
        found = _json_dump(document)
    except UnicodeEncodeError:  # Pydantic fails at a key with a lone surrogate
        found = _with_keys(_ANY.dump_python(document, fallback=repr))
    return with_leaves(found, _finite)


def _json_dump(value: Any) -> Any:
    return _ANY.dump_python(value, mode="json", fallback=repr)


def _finite(value: Any) -> Any:
    is_json = not isinstance(value, float) or math.isfinite(value)
    return value if is_json else json.dumps(value)


def _with_keys(value: Any) -> Any:
    """Return dicts and lists as JSON values; keys that are texts stay as they are."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): _with_keys(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_keys(part) for part in value]
    return _json_dump(value)


class Value(BaseModel):
    """A frozen model of the public API, which can always be written as JSON.

    In JSON, lone surrogates become U+FFFD, values that nest too deeply become their JSON text, and calls with such
    arguments become invalid calls. Values that JSON does not have become text. `model_dump` returns all unchanged.
    """

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", arbitrary_types_allowed=True
    )

    @model_serializer(mode="wrap", when_used="json")
    def _as_json(  # type: ignore[no-untyped-def] # noqa: ANN202
        self, write: SerializerFunctionWrapHandler
    ):
        # A return type would replace the fields in the model's JSON schema.
        try:
            written = write(self)
            if is_json(written):
                return written
        except (ValueError, RecursionError):  # too many levels, or a type that JSON does not have
            pass
        return write(_sendable(self, _LEVELS, _json_leaf))


_new = object.__new__
_SLOTS = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
_set_values, _set_extra, _set_fields, _set_private = (
    vars(BaseModel)[name].__set__ for name in _SLOTS
)


def new_model(
    class_: type[_Model],
    values: dict[str, Any],
    *,
    extra: dict[str, Any] | None = None,
    private: dict[str, Any] | None = None,
    fields_set: set[str],
) -> _Model:
    """Make a pydantic model of checked fields without validation, as pickle does. The model keeps the passed dicts."""
    model = _new(class_)
    _set_values(model, values)
    _set_extra(model, extra)
    _set_fields(model, fields_set)
    _set_private(model, private)
    return model

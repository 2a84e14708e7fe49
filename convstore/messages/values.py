"""Encode any Python value of a registered type as JSON text, and decode it to an equal value.

JSON represents None, bool, int, float, str, list and dict with str keys. Every other type is written as a tag ``{"$":
[name, plain]}`` with a plain value of those types. A dict that has a key ``"$"``, or a key that is not a str, is
written as a tag too.

Nearly every value has only JSON types. `orjson` writes and reads those, about ten times as fast as a traversal in
Python; each text is read back and compared before it is used. Other values are traversed.

JSON parsers are recursive, so one line nests at most `LINE_DEPTH` levels. Deeper values are written on separate lines,
and ``{"$": ["line", n]}`` refers to them. The encoder uses an explicit stack, so any nesting is supported.

The text may contain lone surrogates, so it is stored with the error handler ``surrogatepass`` (see
`messages.compression`).

The module is long because encoder and decoder have to agree on each form of a value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeGuard, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
from langchain_core.documents import Document

from convstore.exceptions import InvalidInputError, UnencodableError
from convstore.messages.foreign_values import (
    has_fixed_offset,
    in_named_zone,
    numpy_scalar,
    zone_name,
)
from convstore.messages.json_text import (
    LINE_DEPTH,
    MANY_NODES,
    TEXT_TYPES,
    plain_json,
    plain_json_of_each,
    write_line,
    write_long_line,
)
from convstore.messages.payload_ranges import PayloadRange, PayloadReader
from convstore.values.models import Source, SourcePage
from convstore.values.plain import shown_value

_EXIT = object()
_JSON_TYPES = TEXT_TYPES | {bool, float, type(None)}
_LINE = "line"
_MAX_PATH = 1_000
_LONG = 100_000
"""Longer texts are parsed by Python's parser, whose hook lets other threads run in between."""
_YEAR = 2026
"""Year in which time zones of times without a date are checked for a fixed offset."""
_Moment = TypeVar("_Moment", datetime, time)


@dataclass(frozen=True, slots=True)
class Omitted:
    """Replaces a value of an unknown type that was left out (``on_unencodable="omit"``)."""

    type_name: str


@dataclass(frozen=True, slots=True)
class Kind:
    """The encoding of one type: `dump` returns a value of simpler types, `load` restores the original."""

    name: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class DocumentFields:
    """The fields of a Document whose text is stored elsewhere; encoded like a Document."""

    fields: dict[str, Any]


def is_text(value: object) -> TypeGuard[str]:
    """Return True if a value is a str, or LangChain's `TextAccessor`, but not another subclass."""
    return type(value) in TEXT_TYPES


class Codec:
    """Encodes and decodes values of standard library types, LangChain's Document and registered types."""

    def __init__(self) -> None:
        self._by_type: dict[type, Kind] = dict(_STANDARD)
        self._by_name: dict[str, Kind] = {kind.name: kind for kind in _STANDARD.values()}
        # Most texts are one line without a payload. Creating a decoder costs as much as using it, so one is reused.
        self._one_line = json.JSONDecoder(object_hook=lambda node: self._untag(node, {}, None))

    def register(self, type_: type, kind: Kind) -> None:
        """Register a type, so that values of exactly this type can be stored and restored.

        Raises:
            InvalidInputError: The type or the name is already registered.
        """
        if type_ in self._by_type or type_ in _JSON_TYPES or type_ in (int, list, dict):
            raise InvalidInputError(f"{type_.__qualname__} is already registered")
        if type(kind.name) is not str or not kind.name:
            raise InvalidInputError(
                f"the name of a type must be a non-empty str, not {shown_value(kind.name)}"
            )
        if kind.name in self._by_name or kind.name == _LINE:
            raise InvalidInputError(f"the name {kind.name!r} is taken; pass another name=")
        self._by_type[type_] = kind
        self._by_name[kind.name] = kind

    def copy_from(self, other: Codec) -> None:
        """Register every type of another codec."""
        self._by_type.update(other._by_type)
        self._by_name.update(other._by_name)

    def keep_unknown(self) -> None:
        """Accept stored values of unregistered types from now on; they can only be encoded again, unchanged.

        It is for programs that copy stored conversations and do not know the application's types.
        """
        self._by_name = _AnyName(self._by_name, self._by_type)

    def encode(self, value: Any, *, path: str = "", omitted: list[str] | None = None) -> str:
        """Return `value` as text that `decode` turns back into an equal value of the same types.

        Equal values give the same text in every process, because the elements of sets are sorted.

        Args:
            value: Any value of registered types, nested to any depth.
            path: Location of the value, for errors.
            omitted: If given, values of unknown types become `Omitted` and their paths are appended here.

        Raises:
            UnencodableError: A type is not registered, a `dump` failed, or a value contains itself.
        """
        if (text := plain_json(list(value) if type(value) is tuple else value)) is not None:
            return f'{{"$":["tuple",{text}]}}' if type(value) is tuple else text
        walk = _Walk(self, value, path=path, omitted=omitted)
        lines = walk.run()
        write = write_long_line if walk.nodes > MANY_NODES else write_line
        return "\n".join(map(write, lines))

    def encode_each(self, values: list[Any], *, omitted: list[str] | None) -> list[str]:
        """Return the text of each value, like `encode`; it is faster for several small values."""
        texts = plain_json_of_each(values)
        if texts is not None:
            return texts
        return [self.encode(value, omitted=omitted) for value in values]

    def encode_with(
        self,
        ranges: Mapping[str, PayloadRange],
        fields: dict[str, Any],
        *,
        omitted: list[str] | None,
    ) -> str:
        """Return the text of a message's fields and payload ranges together; the same as `encode` of both."""
        rest = plain_json(fields)
        if rest is None:
            return self.encode({**fields, **ranges}, omitted=omitted)
        tags = (
            f',"{key}":{{"$":["payload",{write_line(part.plain())}]}}'
            for key, part in ranges.items()
        )
        return f"{rest[:-1]}{''.join(tags)}}}"

    def decode(
        self, text: str, *, fetch: Callable[[int, int], str] | None = None, limit: int | None = None
    ) -> Any:
        """Return the value of a text written by `encode`.

        Args:
            text: The text.
            fetch: Returns the characters of a range of the payload. Without it, ranges are returned unresolved.
            limit: Number of payload characters that are available; ranges that end after them are returned unresolved.

        Raises:
            ValueError: The text was not written by `encode`.
            UnregisteredTypeError: A value has a type that is not registered here.
        """
        return self._decode(text, PayloadReader(fetch, limit) if fetch and '"$":' in text else None)

    def _decode(self, text: str, parts: PayloadReader | None) -> Any:
        try:
            value: Any = orjson.loads(text) if len(text) <= _LONG else None
        except orjson.JSONDecodeError:
            value = None  # the text has a NaN, a lone surrogate or several lines, or is damaged
        tags = text.count('"$":')
        if value is not None and not tags:
            return value
        try:
            if isinstance(value, dict):
                tagged = _tagged_fields(value)
                if len(tagged) == tags:  # tags are not nested
                    return value | {key: self._untag(value[key], {}, parts) for key in tagged}
            return self._decode_lines(text, parts)
        except (
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise ValueError(f"not a value written by this codec: {error!r}") from error

    def _decode_lines(self, text: str, parts: PayloadReader | None) -> Any:
        if "\n" not in text and parts is None:
            return self._one_line.decode(text)
        lines: dict[int, Any] = {}
        reader = json.JSONDecoder(object_hook=lambda node: self._untag(node, lines, parts))
        # A line refers only to later ones, so they are read from the last to the first.
        for number, line in reversed(list(enumerate(text.split("\n")))):
            lines[number] = reader.decode(line)
        return lines[0]

    def _untag(
        self, node: dict[str, Any], lines: dict[int, Any], parts: PayloadReader | None
    ) -> Any:
        """Return the value of a decoded dict; the decoder calls this for the innermost dicts first."""
        if "$" not in node:
            return node
        name, plain = node["$"]
        if name == _LINE:
            # each line may be used only once, because shared lines could expand without limit
            return lines.pop(plain)
        try:
            kind = self._by_name[name]
        except KeyError as error:
            raise UnregisteredTypeError(
                f"a value of type {name!r}: register it with register_artifact_type"
            ) from error
        try:
            value = kind.load(plain)
        except Exception as error:  # `load` may be a function of the application
            raise ValueError(f"not a value of type {name!r}: {error!r}") from error
        if type(value) is not PayloadRange or parts is None or not parts.reach(value):
            return value
        part = parts.read(value)
        return part if value.raw else self._decode(part, parts)


class UnregisteredTypeError(ValueError):
    """A stored value has a type that is not registered with this codec; the value may be intact."""


class _AnyName(dict[str, Kind]):
    """Creates a type for each unregistered name, whose values keep their encoded form."""

    def __init__(self, known: Mapping[str, Kind], by_type: dict[type, Kind]) -> None:
        super().__init__(known)
        self._by_type = by_type

    def __missing__(self, name: str) -> Kind:
        if type(name) is not str:
            raise KeyError(name)

        class Unknown:
            def __init__(self, plain: Any) -> None:
                self.plain = plain

            def __repr__(self) -> str:
                return f"<a value of type {name}>"

        kind = self[name] = Kind(name, lambda value: value.plain, Unknown)
        self._by_type[Unknown] = kind
        return kind


class _Walk:
    """Traverses a value with an explicit stack; `run` returns the lines as plain JSON values."""

    def __init__(self, codec: Codec, value: Any, *, path: str, omitted: list[str] | None) -> None:
        self._codec = codec
        self._kinds = codec._by_type  # noqa: SLF001 - one class in two halves
        self._root = value
        self._path = path
        self._omitted = omitted
        self._lines: list[Any] = [None]
        self._open: set[int] = set()
        self._keep: list[Any] = []
        self._left_out: dict[int, Any] = {}
        self._stack: list[tuple[Any, Any, Any, int]] = [(value, self._lines, 0, 0)]
        self.nodes = 0

    def run(self) -> list[Any]:
        stack = self._stack
        closing = self._open.discard
        while stack:
            value, target, key, depth = stack.pop()
            if target is _EXIT:
                closing(value)
            elif type(value) in _JSON_TYPES or (type(value) is int and value.bit_length() < 64):
                target[key] = value
            else:
                self._container(value, target, key, depth)
        if self._omitted is not None and self._left_out:
            self._omitted.extend(self._paths_of(self._left_out) or [self._path])
        return self._lines

    def _container(self, value: Any, target: Any, key: Any, depth: int) -> None:
        if id(value) in self._open:
            raise UnencodableError(
                "the value contains itself; remove the circular reference",
                path=self._path_of(value),
            )
        self._open.add(id(value))
        self._stack.append((id(value), _EXIT, None, 0))
        if depth >= LINE_DEPTH:
            self._lines.append(None)
            target[key] = {"$": ["line", len(self._lines) - 1]}
            target = self._lines
            key = len(self._lines) - 1
            depth = 0
        if type(value) is list:
            self._fill(target, key, [None] * len(value), enumerate(value), depth)
        elif type(value) is dict and "$" not in value and all(type(name) is str for name in value):
            self._fill(target, key, dict.fromkeys(value), value.items(), depth)
        else:
            self._tag(value, target, key, depth)

    def _fill(
        self, target: Any, key: Any, node: Any, children: Iterable[tuple[Any, Any]], depth: int
    ) -> None:
        target[key] = node
        self.nodes += len(node)
        self._stack.extend((child, node, child_key, depth + 1) for child_key, child in children)

    def _tag(self, value: Any, target: Any, key: Any, depth: int) -> None:
        kind = self._kinds.get(type(value))
        cause = None
        plain = None
        if kind is not None:
            try:
                if type(value) in (set, frozenset):
                    plain = sorted(value, key=self._order)
                else:
                    plain = kind.dump(value)
            except Exception as error:  # noqa: BLE001 - `dump` may be a function of the application
                kind = None
                cause = error
        if kind is None and (scalar := numpy_scalar(value)) is not value:
            self._stack.append((scalar, target, key, depth))
            return
        if kind is None:
            kind = self._kinds[Omitted]
            plain = kind.dump(self._omit(value, cause))
        # Keeps the result of `dump` alive until the walk ends, because open containers are compared by `id()`.
        self._keep.append(plain)
        tag = [kind.name, None]
        target[key] = {"$": tag}
        self._stack.append((plain, tag, 1, depth + 1))

    def _omit(self, value: Any, cause: Exception | None) -> Omitted:
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if self._omitted is None:
            reason = f" ({cause})" if cause else ""
            raise UnencodableError(
                f"a value of type {name} cannot be stored and restored equal{reason}; "
                "convert it, register the type with register_artifact_type, "
                'or append with on_unencodable="omit"',
                path=self._path_of(value),
            ) from cause
        self._left_out[id(value)] = value
        return Omitted(name)

    def _order(self, element: Any) -> str:
        """Return the sort key of a set's element, the same in every process."""
        if type(element) is frozenset:
            return f"frozenset {sorted(map(self._order, element))}"
        if type(element) is tuple:
            return f"tuple {list(map(self._order, element))}"
        if type(element) in _JSON_TYPES:
            return f"{type(element).__name__} {element!r}"
        kind = self._kinds.get(type(element))
        if kind is None:
            scalar = numpy_scalar(element)
            return type(element).__qualname__ if scalar is element else self._order(scalar)
        # The repr of a registered type may contain memory addresses, so the encoded value is used instead.
        standard = _STANDARD.get(type(element)) is kind
        return (
            f"{kind.name} "
            f"{kind.dump(element) if standard else self._codec.encode(element, omitted=[])}"
        )

    def _path_of(self, wanted: Any) -> str:
        return next(iter(self._paths_of({id(wanted): wanted})), self._path)

    def _paths_of(self, wanted: Mapping[int, Any]) -> list[str]:
        """Find the paths of values in a second traversal, because only errors and reports need paths."""
        found: list[str] = []
        stack: list[tuple[Any, _Path | None]] = [(self._root, None)]
        seen: set[int] = set()
        while stack:
            value, path = stack.pop()
            if id(value) in wanted:
                found.append(_written(self._path, path))
            if id(value) not in seen:
                seen.add(id(value))
                stack.extend((child, (path, piece)) for child, piece in reversed(_children(value)))
        return found


_Path = tuple["_Path | None", str]
"""The path to a value as a linked list: the path to its container, and the last piece."""


def _written(root: str, path: _Path | None) -> str:
    pieces: list[str] = []
    while path is not None:
        path, piece = path
        pieces.append(piece)
    whole = root + "".join(reversed(pieces))
    text = whole if root else whole.removeprefix(".")
    return text if len(text) <= _MAX_PATH else f"{text[: _MAX_PATH // 2]}…{text[-_MAX_PATH // 2 :]}"


def _children(value: Any) -> list[tuple[Any, str]]:
    if isinstance(value, dict):
        keys = [
            (key, f".keys()[{index}]") for index, key in enumerate(value) if type(key) is not str
        ]
        return [*keys, *((child, f".{_name(key)}") for key, child in value.items())]
    if isinstance(value, Document):
        return [(value.metadata, ".metadata")]
    if isinstance(value, list | tuple | set | frozenset):
        return [(child, f"[{index}]") for index, child in enumerate(value)]
    return []


def _name(key: Any) -> str:
    plain = type(key) in _JSON_TYPES or (type(key) is int and key.bit_length() < 64)
    return str(key) if plain else f"<{type(key).__qualname__}>"


def _dump_moment(value: datetime | time) -> list[Any]:
    zone = value.tzinfo
    if zone is None or type(zone) is timezone:
        return [value.isoformat(), value.fold, None]
    if name := zone_name(zone):
        fold = value.fold if type(zone) is ZoneInfo else in_named_zone(value, name).fold
        return [value.replace(tzinfo=None).isoformat(), fold, name]
    if not has_fixed_offset(zone, value.year if isinstance(value, datetime) else _YEAR):
        raise ValueError("its time zone has neither a name nor a fixed offset")
    return [value.isoformat(), value.fold, None]


def _load_moment(type_: type[_Moment], plain: list[Any]) -> _Moment:
    text, fold, zone = plain
    value = type_.fromisoformat(text)
    return value.replace(fold=fold, tzinfo=ZoneInfo(zone) if zone else value.tzinfo)


def _document(value: Document) -> dict[str, Any]:
    # Attributes can be assigned after validation, so values that the constructor would reject or change are refused.
    if (
        type(value.id) not in (str, type(None))
        or type(value.metadata) is not dict
        or not is_text(value.page_content)
    ):
        raise TypeError(
            "its id must be a str or None, its page_content a str and its metadata a dict"
        )
    return {"id": value.id, "page_content": value.page_content, "metadata": value.metadata}


def _load_path(own: type[PurePath], pure: type[PurePath], text: str) -> PurePath:
    """Return a path of its own class, or of the equal pure class on a system that cannot create it."""
    try:
        return own(text)
    except NotImplementedError:
        return pure(text)


_STANDARD: dict[type, Kind] = {
    PayloadRange: Kind("payload", PayloadRange.plain, lambda plain: PayloadRange(*plain)),
    Omitted: Kind("omitted", lambda value: value.type_name, Omitted),
    dict: Kind(
        "dict",
        lambda value: list(chain.from_iterable(value.items())),
        lambda plain: dict(zip(plain[::2], plain[1::2], strict=True)),
    ),
    tuple: Kind("tuple", list, tuple),
    set: Kind("set", list, set),
    frozenset: Kind("frozenset", list, frozenset),
    int: Kind("int", hex, lambda plain: int(plain, 16)),
    bytes: Kind("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    bytearray: Kind(
        "bytearray",
        lambda value: base64.b64encode(value).decode(),
        lambda plain: bytearray(base64.b64decode(plain)),
    ),
    complex: Kind("complex", lambda value: [value.real, value.imag], lambda plain: complex(*plain)),
    datetime: Kind("datetime", _dump_moment, partial(_load_moment, datetime)),
    date: Kind("date", date.isoformat, date.fromisoformat),
    time: Kind("time", _dump_moment, partial(_load_moment, time)),
    timedelta: Kind(
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda plain: timedelta(*plain),
    ),
    Decimal: Kind("decimal", str, Decimal),
    UUID: Kind("uuid", str, UUID),
    PurePosixPath: Kind("pure_posix_path", str, PurePosixPath),
    PureWindowsPath: Kind("pure_windows_path", str, PureWindowsPath),
    PosixPath: Kind("posix_path", str, partial(_load_path, PosixPath, PurePosixPath)),
    WindowsPath: Kind("windows_path", str, partial(_load_path, WindowsPath, PureWindowsPath)),
    Document: Kind("document", _document, lambda plain: Document(**plain)),
    DocumentFields: Kind("document", lambda value: value.fields, lambda plain: Document(**plain)),
    Source: Kind("source", dict, lambda plain: Source(**plain)),
    SourcePage: Kind("source_page", dict, lambda plain: SourcePage(**plain)),
}


def _tagged_fields(value: Mapping[str, Any]) -> list[str]:
    """Return the keys of the fields whose value is itself a tag."""
    return [key for key, part in value.items() if type(part) is dict and "$" in part]

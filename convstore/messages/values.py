"""Any Python value of a known type as JSON text, and back, equal.

JSON holds None, bool, int, float, str, list and dict with str keys. Every other type is written as
``{"$": [name, plain]}`` with a plain value of those types; a dict that has a key ``"$"`` itself, or a key that is
not a str, is written as such a tag too. JSON parsers recurse, so nothing is nested deeper than `LINE_DEPTH` in one
text: what lies deeper stands on a line of its own, and ``{"$": ["line", n]}`` refers to it. The walk itself uses an
explicit stack, so any nesting is fine.

The text may hold lone surrogates; who stores it encodes with ``surrogatepass`` (see ``codec.payloads``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, TypeGuard, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core.documents import Document
from langchain_core.messages.base import TextAccessor

from convstore.exceptions import InvalidInputError, UnencodableError
from convstore.messages.payload_ranges import PayloadRange, PayloadReader
from convstore.values.models import Source, SourcePage

__all__ = ["LINE_DEPTH", "Codec", "DocumentFields", "Kind", "Omitted", "is_text"]

LINE_DEPTH = 40
"""Containers nested in one line of JSON; a tag adds two levels each, and Python's parser gives up near 1,000."""

_EXIT = object()
_TEXTS = frozenset({str, TextAccessor})  # `message.text` is the other, equal to the plain str that comes back
_JSON_TYPES = _TEXTS | {bool, float, type(None)}
_LINE = "line"
_MOST_PATH = 1_000
_MANY_NODES, _SLICE, _SLICED_DEPTH = 2_000, 100, 4
_Moment = TypeVar("_Moment", datetime, time)


@dataclass(frozen=True, slots=True)
class Omitted:
    """Stands for a value that could not be encoded and was left out at the caller's wish (``unencodable="omit"``)."""

    type_name: str


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one type are written: `dump` gives a value of simpler types, `load` the original back."""

    name: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class DocumentFields:
    """A Document whose text stands elsewhere: written like one, read as one."""

    fields: dict[str, Any]


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a str and nothing else: not of a class that adds something to it."""
    return type(value) in _TEXTS


class Codec:
    """Writes and reads values; knows the types of the standard library, LangChain's Document and registered ones."""

    def __init__(self) -> None:
        self._by_type: dict[type, Kind] = dict(_STANDARD)
        self._by_name: dict[str, Kind] = {kind.name: kind for kind in _STANDARD.values()}
        # By far the most texts are one line without a payload; making a decoder costs as much as using it.
        self._one_line = json.JSONDecoder(object_hook=lambda node: self._untag(node, {}, None))

    def register(self, type_: type, kind: Kind) -> None:
        """Teach the codec a type; afterwards values of exactly this type come back equal.

        Raises:
            InvalidInputError: The type or the name is known already, or `type_` is not a class.
        """
        if not isinstance(type_, type):
            raise InvalidInputError(f"register a class, not {type_!r}")
        if type_ in self._by_type or type_ in _JSON_TYPES or type_ in (int, list, dict):
            raise InvalidInputError(f"{type_.__qualname__} is known already")
        if type(kind.name) is not str or not kind.name:
            raise InvalidInputError(f"the name of a type is a non-empty str, not {kind.name!r}")
        if kind.name in self._by_name or kind.name == _LINE:
            raise InvalidInputError(f"the name {kind.name!r} is taken; pass another name=")
        self._by_type[type_] = kind
        self._by_name[kind.name] = kind

    def copy_from(self, other: Codec) -> None:
        """Know every type that another codec knows."""
        self._by_type.update(other._by_type)
        self._by_name.update(other._by_name)

    def keep_unknown(self) -> None:
        """From now on read values of types that are not known here too; they can only be written again, as they were.

        For programs that carry what is stored from one place to another and do not know the application's types.
        """
        self._by_name = _AnyName(self._by_name, self._by_type)

    def encode(self, value: Any, *, path: str = "", omitted: list[str] | None = None) -> str:
        """Write `value` as text that `decode` turns back into an equal value of the same types.

        The same value gives the same text in every process (the elements of sets are put in order).

        Args:
            value: Any value of known types, nested to any depth.
            path: Where the value is, for errors.
            omitted: If given, unknown values become `Omitted` and their paths are added here.

        Raises:
            UnencodableError: A type that is not known, a value whose `dump` fails, or one that holds itself.
        """
        walk = _Walk(self, value, path=path, omitted=omitted)
        lines = walk.run()
        write = _write_in_slices if walk.nodes > _MANY_NODES else _JSON.encode
        return "\n".join(map(write, lines))

    def decode(self, text: str, *, fetch: Callable[[int, int], str] | None = None, limit: int | None = None) -> Any:
        """Read what `encode` wrote; ranges of a payload are read with `fetch`, or left standing without it.

        Args:
            text: The text.
            fetch: Gives the characters of a range.
            limit: Length of what was read of the payload; ranges that end behind it are left standing.

        Raises:
            ValueError: The text is not what `encode` writes.
        """
        return self._decode(text, None if fetch is None else PayloadReader(fetch, limit))

    def _decode(self, text: str, parts: PayloadReader | None) -> Any:
        try:
            if "\n" not in text and parts is None:
                return self._one_line.decode(text)
            lines: dict[int, Any] = {}
            reader = json.JSONDecoder(object_hook=lambda node: self._untag(node, lines, parts))
            # A line refers only to later ones, so they are read from the last to the first.
            for number, line in reversed(list(enumerate(text.split("\n")))):
                lines[number] = reader.decode(line)
            return lines[0]
        except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"not a value written by this codec: {error!r}") from error

    def _untag(self, node: dict[str, Any], lines: dict[int, Any], parts: PayloadReader | None) -> Any:
        """The value that a dict of the text stands for; called for the innermost dicts first."""
        if "$" not in node:
            return node
        name, plain = node["$"]
        if name == _LINE:
            return lines.pop(plain)  # each is referred to once; a text that shares them could unfold without end
        kind = self._by_name[name]
        try:
            value = kind.load(plain)
        except Exception as error:  # may be a function of the caller
            raise ValueError(f"not a value of type {name!r}: {error!r}") from error
        if type(value) is not PayloadRange or parts is None or not parts.reach(value):
            return value
        part = parts.read(value)
        return part if value.raw else self._decode(part, parts)


def _write_in_slices(value: Any, depth: int = 0) -> str:
    """The same text as `_JSON` writes, in many calls: in between, other threads get their turn."""
    if type(value) not in (list, dict) or depth == _SLICED_DEPTH:
        return _JSON.encode(value)
    if len(value) <= _SLICE:
        if type(value) is list:
            return f"[{','.join(_write_in_slices(child, depth + 1) for child in value)}]"
        pairs = (f"{_JSON.encode(key)}:{_write_in_slices(child, depth + 1)}" for key, child in value.items())
        return f"{{{','.join(pairs)}}}"
    rest, make = iter(value if type(value) is list else value.items()), type(value)
    slices = iter(lambda: make(islice(rest, _SLICE)), make())
    text = ",".join(_JSON.encode(one)[1:-1] for one in slices)
    return f"[{text}]" if make is list else f"{{{text}}}"


class _AnyName(dict[str, Kind]):
    """Makes up a type for each name that is not known; its values hold what was written of them."""

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
    """One pass over a value with an explicit stack: `run` gives the lines, plain enough for a JSON writer."""

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
        stack, closing = self._stack, self._open.discard
        while stack:
            value, target, key, depth = stack.pop()
            if target is _EXIT:
                closing(value)
            elif type(value) in _JSON_TYPES or (type(value) is int and value.bit_length() < 64):
                target[key] = value
            else:
                self._container(value, target, key, depth)
        if self._omitted is not None and self._left_out:
            self._omitted.extend(self._places_of(self._left_out) or [self._path])
        return self._lines

    def _container(self, value: Any, target: Any, key: Any, depth: int) -> None:
        if id(value) in self._open:
            raise UnencodableError("the value holds itself; store a tree", path=self._place_of(value))
        self._open.add(id(value))
        self._stack.append((id(value), _EXIT, None, 0))
        if depth >= LINE_DEPTH:
            self._lines.append(None)
            target[key] = {"$": ["line", len(self._lines) - 1]}
            target, key, depth = self._lines, len(self._lines) - 1, 0
        if type(value) is list:
            self._fill(target, key, [None] * len(value), enumerate(value), depth)
        elif type(value) is dict and _has_plain_keys(value):
            self._fill(target, key, dict.fromkeys(value), value.items(), depth)
        else:
            self._tag(value, target, key, depth)

    def _fill(self, target: Any, key: Any, node: Any, children: Iterable[tuple[Any, Any]], depth: int) -> None:
        target[key] = node
        self.nodes += len(node)
        self._stack.extend((child, node, place, depth + 1) for place, child in children)

    def _tag(self, value: Any, target: Any, key: Any, depth: int) -> None:
        kind, cause = self._kinds.get(type(value)), None
        plain = None
        if kind is not None:
            try:
                plain = sorted(value, key=self._order) if type(value) in (set, frozenset) else kind.dump(value)
            except Exception as error:  # noqa: BLE001 - may be a function of the caller
                kind, cause = None, error
        if kind is None:
            kind = self._kinds[Omitted]
            plain = kind.dump(self._omit(value, cause))
        # What `dump` made must live until the walk ends: ids of open containers are compared.
        self._keep.append(plain)
        tag = [kind.name, None]
        target[key] = {"$": tag}
        self._stack.append((plain, tag, 1, depth + 1))

    def _omit(self, value: Any, cause: Exception | None) -> Omitted:
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if self._omitted is None:
            why = f" ({cause})" if cause else ""
            raise UnencodableError(
                f"a value of type {name} cannot be stored and come back equal{why}; "
                "convert it, teach the store the type with register_artifact_type, "
                'or append with unencodable="omit"',
                path=self._place_of(value),
            ) from cause
        self._left_out[id(value)] = value
        return Omitted(name)

    def _order(self, element: Any) -> str:
        """What the elements of a set are put in order by, the same in every process."""
        if type(element) is frozenset:
            return f"frozenset {sorted(map(self._order, element))}"
        if type(element) is tuple:
            return f"tuple {list(map(self._order, element))}"
        if type(element) in _JSON_TYPES:
            return f"{type(element).__name__} {element!r}"
        kind = self._kinds.get(type(element))
        if kind is None:
            return type(element).__qualname__
        # The text of a registered type's repr may differ from process to process.
        standard = _STANDARD.get(type(element)) is kind
        return f"{kind.name} {kind.dump(element) if standard else self._codec.encode(element, omitted=[])}"

    def _place_of(self, wanted: Any) -> str:
        return next(iter(self._places_of({id(wanted): wanted})), self._path)

    def _places_of(self, wanted: Mapping[int, Any]) -> list[str]:
        """Look values up again: paths are built only when there is something to say about them."""
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
"""The way to a value: the way to what holds it, and a last piece."""


def _written(root: str, path: _Path | None) -> str:
    pieces: list[str] = []
    while path is not None:
        path, piece = path
        pieces.append(piece)
    whole = root + "".join(reversed(pieces))
    text = whole if root else whole.removeprefix(".")
    return text if len(text) <= _MOST_PATH else f"{text[: _MOST_PATH // 2]}…{text[-_MOST_PATH // 2 :]}"


def _children(value: Any) -> list[tuple[Any, str]]:
    if isinstance(value, dict):
        keys = [(key, f".keys()[{place}]") for place, key in enumerate(value) if type(key) is not str]
        return [*keys, *((child, f".{_name(key)}") for key, child in value.items())]
    if isinstance(value, Document):
        return [(value.metadata, ".metadata")]
    if isinstance(value, list | tuple | set | frozenset):
        return [(child, f"[{place}]") for place, child in enumerate(value)]
    return []


def _name(key: Any) -> str:
    plain = type(key) in _JSON_TYPES or (type(key) is int and key.bit_length() < 64)
    return str(key) if plain else f"<{type(key).__qualname__}>"


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    return "$" not in value and all(type(key) is str for key in value)


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _from_pairs(plain: list[Any]) -> dict[Any, Any]:
    return dict(zip(plain[::2], plain[1::2], strict=True))


def _dump_moment(value: datetime | time) -> list[Any]:
    zone, text = value.tzinfo, value.isoformat()
    if type(zone) is ZoneInfo and zone.key:
        return [value.replace(tzinfo=None).isoformat(), value.fold, zone.key]
    if zone is not None and (value.utcoffset() is None or type(value).fromisoformat(text) != value):
        raise ValueError("its time zone has no name")
    return [text, value.fold, None]


def _load_moment(type_: type[_Moment]) -> Callable[[list[Any]], _Moment]:
    def load(plain: list[Any]) -> _Moment:
        text, fold, zone = plain
        value = type_.fromisoformat(text)
        return value.replace(fold=fold, tzinfo=ZoneInfo(zone) if zone else value.tzinfo)

    return load


def _document(value: Document) -> dict[str, Any]:
    # They can be set to anything after it was made; what its constructor would refuse or change could not come back.
    if type(value.id) not in (str, type(None)) or type(value.metadata) is not dict or not is_text(value.page_content):
        raise TypeError("its id is a str or None, its page_content a str and its metadata a dict")
    return {"id": value.id, "page_content": value.page_content, "metadata": value.metadata}


_STANDARD: dict[type, Kind] = {
    PayloadRange: Kind("payload", PayloadRange.plain, lambda plain: PayloadRange(*plain)),
    Omitted: Kind("omitted", lambda value: value.type_name, Omitted),
    dict: Kind("dict", _pairs, _from_pairs),
    tuple: Kind("tuple", list, tuple),
    set: Kind("set", list, set),
    frozenset: Kind("frozenset", list, frozenset),
    int: Kind("int", hex, lambda plain: int(plain, 16)),
    bytes: Kind("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    bytearray: Kind(
        "bytearray", lambda value: base64.b64encode(value).decode(), lambda plain: bytearray(base64.b64decode(plain))
    ),
    complex: Kind("complex", lambda value: [value.real, value.imag], lambda plain: complex(*plain)),
    datetime: Kind("datetime", _dump_moment, _load_moment(datetime)),
    date: Kind("date", date.isoformat, date.fromisoformat),
    time: Kind("time", _dump_moment, _load_moment(time)),
    timedelta: Kind(
        "timedelta", lambda value: [value.days, value.seconds, value.microseconds], lambda plain: timedelta(*plain)
    ),
    Decimal: Kind("decimal", str, Decimal),
    UUID: Kind("uuid", str, UUID),
    Document: Kind("document", _document, lambda plain: Document(**plain)),
    DocumentFields: Kind("document", lambda value: value.fields, lambda plain: Document(**plain)),
    Source: Kind("source", dict, lambda plain: Source(**plain)),
    SourcePage: Kind("source_page", dict, lambda plain: SourcePage(**plain)),
}

_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))

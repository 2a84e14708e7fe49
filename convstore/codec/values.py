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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core.documents import Document

from convstore.exceptions import InvalidInputError, UnencodableError
from convstore.models import Source, SourcePage

__all__ = ["LINE_DEPTH", "Codec", "DocumentFields", "Kind", "Omitted", "PayloadRange"]

LINE_DEPTH = 40
"""Containers nested in one line of JSON; a tag adds two levels each, and Python's parser gives up near 1,000."""

_EXIT = object()
_JSON_TYPES = frozenset({str, bool, float, type(None)})


@dataclass(frozen=True, slots=True)
class Omitted:
    """Stands for a value that could not be encoded and was left out at the caller's wish (``unencodable="omit"``)."""

    type_name: str


@dataclass(frozen=True, slots=True)
class PayloadRange:
    """Stands in a body for characters ``start`` to ``end`` of the message's payload.

    ``raw`` says that they are the str itself; otherwise they are the JSON text of a value. ``about`` is what a
    placeholder may tell of the value.
    """

    start: int
    end: int
    raw: bool
    about: str = ""


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
        if kind.name in self._by_name:
            raise InvalidInputError(f"the name {kind.name!r} is taken; pass another name=")
        self._by_type[type_] = kind
        self._by_name[kind.name] = kind

    def copy_from(self, other: Codec) -> None:
        """Know every type that another codec knows."""
        self._by_type.update(other._by_type)
        self._by_name.update(other._by_name)

    def encode(self, value: Any, *, path: str = "", omitted: list[str] | None = None) -> str:
        """Write `value` as text that `decode` turns back into an equal value of the same types.

        The same value gives the same text in every process (the elements of sets are put in order).

        Args:
            value: Any value of known types, nested to any depth.
            path: Where the value is, for errors.
            omitted: If given, unknown values become `Omitted` and their paths are added here.

        Raises:
            UnencodableError: A type that is not known, or a value that holds itself.
        """
        lines = _Walk(self, value, path=path, omitted=omitted).run()
        return "\n".join(_JSON.encode(line) for line in lines)

    def decode(self, text: str, *, fetch: Callable[[int, int], str] | None = None) -> Any:
        """Read what `encode` wrote; ranges of a payload are read with `fetch`, or left standing without it.

        Raises:
            ValueError: The text is not what `encode` writes.
        """
        try:
            if "\n" not in text and fetch is None:
                return self._one_line.decode(text)
            lines: dict[int, Any] = {}
            reader = json.JSONDecoder(object_hook=lambda node: self._untag(node, lines, fetch))
            # A line refers only to later ones, so they are read from the last to the first.
            for number, line in reversed(list(enumerate(text.split("\n")))):
                lines[number] = reader.decode(line)
            return lines[0]
        except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"not a value written by this codec: {error!r}") from error

    def _untag(self, node: dict[str, Any], lines: dict[int, Any], fetch: Callable[[int, int], str] | None) -> Any:
        """The value that a dict of the text stands for; called for the innermost dicts first."""
        if "$" not in node:
            return node
        name, plain = node["$"]
        if name == "line":
            return lines[plain]
        value = self._by_name[name].load(plain)
        if type(value) is not PayloadRange or fetch is None:
            return value
        part = fetch(value.start, value.end)
        return part if value.raw else self.decode(part, fetch=fetch)


class _Walk:
    """One pass over a value with an explicit stack: `run` gives the lines, plain enough for a JSON writer."""

    def __init__(self, codec: Codec, value: Any, *, path: str, omitted: list[str] | None) -> None:
        self._kinds = codec._by_type  # noqa: SLF001 - one class in two halves
        self._root = value
        self._path = path
        self._omitted = omitted
        self._lines: list[Any] = [None]
        self._open: set[int] = set()
        self._keep: list[Any] = []
        self._stack: list[tuple[Any, Any, Any, int]] = [(value, self._lines, 0, 0)]

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
        self._stack.extend((child, node, place, depth + 1) for place, child in children)

    def _tag(self, value: Any, target: Any, key: Any, depth: int) -> None:
        kind = self._kinds.get(type(value))
        if kind is None:
            value = self._omit(value)
            kind = self._kinds[Omitted]
        plain = kind.dump(value)
        # What `dump` made must live until the walk ends: ids of open containers are compared.
        self._keep.append(plain)
        tag = [kind.name, None]
        target[key] = {"$": tag}
        self._stack.append((plain, tag, 1, depth + 1))

    def _omit(self, value: Any) -> Omitted:
        place, name = self._place_of(value), f"{type(value).__module__}.{type(value).__qualname__}"
        if self._omitted is None:
            raise UnencodableError(
                f"a value of type {name} can not be stored and come back equal; "
                "convert it, teach the store the type with register_artifact_type, "
                'or append with unencodable="omit"',
                path=place,
            )
        self._omitted.append(place)
        return Omitted(name)

    def _place_of(self, wanted: Any) -> str:
        """Look the value up again: paths are built only when there is something to say about one."""
        stack, seen = [(self._root, self._path)], set()
        while stack:
            value, path = stack.pop()
            if value is wanted:
                return path
            if id(value) not in seen:
                seen.add(id(value))
                stack.extend(_children(value, path))
        return self._path


def _children(value: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(value, dict):
        return [(child, f"{path}.{key}" if path else str(key)) for key, child in value.items()]
    if isinstance(value, Document):
        return [(value.metadata, f"{path}.metadata")]
    if isinstance(value, list | tuple | set | frozenset):
        return [(child, f"{path}[{place}]") for place, child in enumerate(value)]
    return []


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    return "$" not in value and all(type(key) is str for key in value)


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _from_pairs(plain: list[Any]) -> dict[Any, Any]:
    return dict(zip(plain[::2], plain[1::2], strict=True))


def _in_order(elements: Iterable[Any]) -> list[Any]:
    """The elements of a set in an order that does not depend on the process."""
    try:
        return sorted(elements, key=_order)
    except RecursionError as error:
        raise UnencodableError("sets or tuples inside a set are nested too deep; use lists") from error


def _order(element: Any) -> tuple[str, Any]:
    if isinstance(element, frozenset):
        return "frozenset", sorted(map(_order, element))
    if isinstance(element, tuple):
        return "tuple", list(map(_order, element))
    return type(element).__qualname__, repr(element)


def _dump_datetime(value: datetime) -> list[Any]:
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return [(value.replace(tzinfo=None) if zone else value).isoformat(), value.fold, zone]


def _load_datetime(plain: list[Any]) -> datetime:
    text, fold, zone = plain
    value = datetime.fromisoformat(text)
    return value.replace(fold=fold, tzinfo=ZoneInfo(zone) if zone else value.tzinfo)


def _load_time(plain: list[Any]) -> time:
    return time.fromisoformat(plain[0]).replace(fold=plain[1])


def _document(value: Document) -> dict[str, Any]:
    return {"id": value.id, "page_content": value.page_content, "metadata": value.metadata}


def _payload_range(value: PayloadRange) -> list[Any]:
    return [value.start, value.end, value.raw, value.about]


_STANDARD: dict[type, Kind] = {
    PayloadRange: Kind("payload", _payload_range, lambda plain: PayloadRange(*plain)),
    Omitted: Kind("omitted", lambda value: value.type_name, Omitted),
    dict: Kind("dict", _pairs, _from_pairs),
    tuple: Kind("tuple", list, tuple),
    set: Kind("set", _in_order, set),
    frozenset: Kind("frozenset", _in_order, frozenset),
    int: Kind("int", hex, lambda plain: int(plain, 16)),
    bytes: Kind("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    bytearray: Kind(
        "bytearray", lambda value: base64.b64encode(value).decode(), lambda plain: bytearray(base64.b64decode(plain))
    ),
    complex: Kind("complex", lambda value: [value.real, value.imag], lambda plain: complex(*plain)),
    datetime: Kind("datetime", _dump_datetime, _load_datetime),
    date: Kind("date", date.isoformat, date.fromisoformat),
    time: Kind("time", lambda value: [value.isoformat(), value.fold], _load_time),
    timedelta: Kind(
        "timedelta", lambda value: [value.days, value.seconds, value.microseconds], lambda plain: timedelta(*plain)
    ),
    Decimal: Kind("decimal", str, Decimal),
    UUID: Kind("uuid", str, UUID),
    Document: Kind("document", _document, lambda plain: Document(**plain)),
    DocumentFields: Kind("document", lambda value: value.fields, lambda plain: Document(**plain)),
    Source: Kind("source", lambda value: dict(value), lambda plain: Source(**plain)),
    SourcePage: Kind("source_page", lambda value: dict(value), lambda plain: SourcePage(**plain)),
}

_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))

"""Store the facts of entries in the forms that their kinds give them, and read them back.

All facts of an entry are in its field ``facts``, each under the name of its kind. Texts with lone surrogates are stored
as bytes. A `Sealed` text has a checksum of itself, its kind and the link of its entry; the link is a random number that
forks and repaired logs keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from convstore.log.entry import NO_FACTS, Entry, Facts, PayloadRef, Totals
from convstore.log.facts.kind import FactKind, Key, Sealed, UnknownFact
from convstore.log.facts.table import KINDS, kind_named
from convstore.mongo.bson_values import (
    from_stored,
    sealed,
    stored_bytes,
    stored_list,
    stored_number,
    to_stored,
    unsealed,
)
from convstore.mongo.keys import number_in
from convstore.mongo.payloads import payload_document, payload_from
from convstore.mongo.totals_documents import totals_document, totals_from
from convstore.values.plain import with_leaves

_Value = TypeVar("_Value")

LEFT_OUT = {f"facts.{kind.name}": 0 for kind in KINDS.values() if not kind.is_loaded}
"""Projection that drops the facts that no read of messages needs."""


def field_of(kind: FactKind[Any]) -> str:
    """Return the field of an entry's document that has the facts of a kind."""
    return f"facts.{kind.name}"


def needed_for(kind: FactKind[Any]) -> dict[str, int]:
    """Return the projection that `fact_in` needs."""
    return {field_of(kind): 1, "totals.link": 1}


def facts_document(entry: Entry) -> dict[str, Any]:
    """Return the stored form of an entry's facts."""
    link = str(entry.totals.link)
    return {
        name: with_leaves(
            kind_named(name).encode(value, entry), partial(_stored, owner=(link, name))
        )
        for name, value in entry.facts.items()
    }


def facts_from(stored: Mapping[str, Any], totals: Totals) -> Facts:
    """Return the facts of the entry with some totals."""
    facts = dict[str, Any]()
    for name, value in stored.items():
        reader = _Reader(totals.entries, str(totals.link), name)
        kind = KINDS.get(name)
        facts[name] = (
            UnknownFact(reader.opened(value)) if kind is None else kind.decode(value, reader)
        )
    return facts or NO_FACTS


def fact_in(document: Mapping[str, Any], kind: FactKind[_Value]) -> _Value | None:
    """Return the fact of a kind that a document holds, None without one; see `needed_for`."""
    stored = document.get("facts", NO_FACTS).get(kind.name)
    if stored is None:
        return None
    number = number_in(document["_id"])
    return kind.decode(stored, _Reader(number, str(document["totals"]["link"]), kind.name))


def with_unknown_keys(facts: Facts, keys: Iterable[Key]) -> Facts:
    """Return facts with the look-up values that no known fact explains in those of unknown kinds."""
    return {
        name: replace(value, keys=tuple(keys)) if isinstance(value, UnknownFact) else value
        for name, value in facts.items()
    }


def _stored(value: Any, owner: tuple[str, str]) -> Any:
    """Return a part of an encoded value in the form that BSON can hold."""
    match value:
        case Sealed():
            return sealed(value.text, *owner)
        case Totals():
            return totals_document(value)
        case PayloadRef():
            return payload_document(value)
        case str():
            return to_stored(value)
    return value


class _Reader:
    """Reads the stored values of a fact, as `log.facts.kind.FactReader` says."""

    __slots__ = ("_owner", "number")

    def __init__(self, number: int, link: str, kind: str) -> None:
        self.number = number
        self._owner = (link, kind)

    def sealed(self, value: Any) -> str:
        return unsealed(value, *self._owner)

    def text(self, value: Any) -> str:
        return from_stored(value)

    def whole_number(self, value: Any) -> int:
        return stored_number(value)

    def data(self, value: Any, length: int | None = None) -> bytes:
        return stored_bytes(value, length=length)

    def parts(self, value: Any) -> Sequence[Any]:
        return stored_list(value)

    def totals(self, value: Any) -> Totals:
        return totals_from(value)

    def payload(self, value: Any) -> PayloadRef:
        return payload_from(value)

    def opened(self, value: Any) -> Any:
        """Return the value of an unknown kind with its sealed texts as `Sealed`, as another entry seals them anew."""
        if isinstance(value, Mapping):
            return {name: self.opened(part) for name, part in value.items()}
        if not isinstance(value, list):
            return value
        try:
            return Sealed(self.sealed(value))
        except (ValueError, TypeError):
            return [self.opened(part) for part in value]

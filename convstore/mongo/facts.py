"""Convert the facts of entries to their stored forms, as their kinds encode them, and back.

All facts of an entry are in its field ``facts``, each under the name of its kind. Texts with lone surrogates are stored
as bytes. A `Sealed` text has a checksum of itself, its kind and the link of its entry; the link is a random number that
forks and repaired logs keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from convstore.mongo.keys import entry_number
from convstore.mongo.payloads import payload_document, payload_from
from convstore.mongo.totals_documents import totals_document, totals_from
from convstore.values.plain import with_leaves

_Value = TypeVar("_Value")

LEFT_OUT = {f"facts.{kind.name}": 0 for kind in KINDS.values() if not kind.is_loaded}
"""Projection that drops the facts that reads of messages do not need."""


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
    """Return the facts of an entry from their stored form and the entry's totals."""
    facts: dict[str, Any] = {}
    for name, value in stored.items():
        owner = (str(totals.link), name)
        kind = KINDS.get(name)
        if kind is None:
            facts[name] = UnknownFact(_unknown(value, owner))
        else:
            facts[name] = kind.decode(_opened(value, kind.shape, owner), totals.entries)
    return facts or NO_FACTS


def fact_in(document: Mapping[str, Any], kind: FactKind[_Value]) -> _Value | None:
    """Return the fact of a kind in a document, if it has one; see `needed_for`."""
    stored = document.get("facts", NO_FACTS).get(kind.name)
    if stored is None:
        return None
    owner = (str(document["totals"]["link"]), kind.name)
    return kind.decode(_opened(stored, kind.shape, owner), entry_number(document["_id"]))


def with_unknown_keys(facts: Facts, keys: Iterable[Key]) -> Facts:
    """Return facts in which those of unknown kinds have these look-up values, which do not come from a known kind."""
    return {
        name: replace(value, keys=tuple(keys)) if isinstance(value, UnknownFact) else value
        for name, value in facts.items()
    }


def _stored(value: Any, owner: tuple[str, str]) -> Any:
    """Return a part of an encoded value in a form that BSON supports."""
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


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    str: from_stored,
    int: stored_number,
    bytes: stored_bytes,
    Totals: totals_from,
    PayloadRef: payload_from,
}


def _opened(stored: Any, shape: Any, owner: tuple[str, str]) -> Any:
    """Return the value that `_stored` converted; raise an error if it has another shape, see `FactKind.shape`."""
    if isinstance(shape, dict):
        known = [name for name in shape if name in stored]
        return {name: _opened(stored[name], shape[name], owner) for name in known}
    if isinstance(shape, list):
        return [_opened(part, shape[0], owner) for part in stored_list(stored)]
    return Sealed(unsealed(stored, *owner)) if shape is Sealed else _READERS[shape](stored)


def _unknown(stored: Any, owner: tuple[str, str]) -> Any:
    """Return the value of an unknown kind with its sealed texts as `Sealed`, so that another entry can seal them."""
    if isinstance(stored, Mapping):
        return {name: _unknown(part, owner) for name, part in stored.items()}
    if not isinstance(stored, list):
        return stored
    try:
        return Sealed(unsealed(stored, *owner))
    except (ValueError, TypeError):
        return [_unknown(part, owner) for part in stored]

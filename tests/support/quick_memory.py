"""Make mongomock quicker, for tests that read thousands of conversations in memory.

Most of the time of such a test is mongomock's: it copies each value by `copy.copy`, and decides each condition of a
filter by a chain of general functions. What stands here gives the same answers for the usual values and conditions,
and leaves all others to mongomock. `tests/mongo/test_quick_memory.py` compares the two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any

import mongomock.collection
import mongomock.filtering
import mongomock_motor.patches
import pytest
from bson import Int64, ObjectId

_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None), datetime, Int64, ObjectId})
_COMPARED = frozenset({str, int})
_TEXTS = frozenset({str, bytes})
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$ne": operator.ne,
}
_copy_field: Any = mongomock.collection._copy_field
_filter_applies: Any = mongomock.filtering.filter_applies
_iter_documents: Any = mongomock.collection.Collection._iter_documents
_compute_results: Any = mongomock.collection.Cursor._compute_results
_combine_projection_spec: Any = mongomock.collection._combine_projection_spec


def copied(value: Any, container: Callable[[], Any]) -> Any:
    """Copy a value of a document."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is list:
        return [item if type(item) in _IMMUTABLE else copied(item, container) for item in value]
    if kind is dict and container is dict:
        return {
            key: item if type(item) in _IMMUTABLE else copied(item, container)
            for key, item in value.items()
        }
    return _copy_field(value, container)


def applies(query: Any, document: Mapping[str, Any]) -> bool:
    """Return True if a document matches a filter."""
    for key, wanted in query.items():
        held = document.get(key)
        if type(held) is type(wanted) and type(held) in _COMPARED:
            if held != wanted:
                return False
            continue
        is_met = _is_met(key, wanted, document)
        if is_met is None:
            return bool(_filter_applies(query, document))
        if not is_met:
            return False
    return True


def _is_met(key: str, wanted: Any, document: Mapping[str, Any]) -> bool | None:
    """Return True if a document meets a condition; None if mongomock has to decide."""
    if texts := _texts_in(wanted):
        values = _values_of(key, document)
        return None if values is None else any(value in texts for value in values)
    held = document.get(key)
    is_known = type(held) in _COMPARED and type(wanted) is dict and wanted
    return _is_within(held, wanted) if is_known else None


def _is_within(held: Any, bounds: Mapping[str, Any]) -> bool | None:
    """Return True if a value is within some bounds; None if mongomock has to decide."""
    for name, bound in bounds.items():
        compare = _ORDERS.get(name)
        if compare is None or type(bound) is not type(held):
            return None
        if not compare(held, bound):
            return False
    return True


def _texts_in(wanted: Any) -> Sequence[str | bytes]:
    """Return the texts of which a field must have one; none for any other condition."""
    texts: Any = ()
    if type(wanted) in _TEXTS:
        texts = (wanted,)
    elif type(wanted) is dict and len(wanted) == 1:
        texts = wanted.get("$in", ())
    is_plain = type(texts) in (list, tuple) and all(type(text) in _TEXTS for text in texts)
    return texts if is_plain else ()


def _values_of(key: str, document: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of a field, or of a field of each document in a list; None if another form is in the way."""
    name, _, inner = key.partition(".")
    held = document.get(name)
    if not inner:
        return held if type(held) is list else [held]
    items = held if type(held) is list else [held or {}]
    if not inner.isidentifier() or not all(type(item) is dict for item in items):
        return None
    values = [item.get(inner) for item in items]
    return values if not any(type(value) is list for value in values) else None


def found_in(collection: Any, query: Any) -> Iterator[Any]:
    """Yield the documents of a collection that match a filter, as it was when this began."""
    store = collection._store
    if store._ttl_indexes or not store._documents:
        documents: Iterator[Any] = _iter_documents(collection, query)
        return documents
    return (document for document in list(store._documents.values()) if applies(query, document))


def combined(fields: Mapping[str, Any]) -> Any:
    """Return a projection as nested mappings, each kind of projection once."""
    return _combined(tuple(fields.items()))


@cache
def _combined(fields: tuple[tuple[str, Any], ...]) -> Any:
    return _combine_projection_spec(dict(fields))


def _results(cursor: Any, with_limit_and_skip: bool = False) -> list[Any]:
    """Stop at the limit of a find: mongomock copies all documents that match."""
    is_usual = with_limit_and_skip and not cursor.collection.codec_options.tz_aware
    if not is_usual or (cursor._limit or 0) < 0:
        return list(_compute_results(cursor, with_limit_and_skip))
    if cursor._results is None:
        end = cursor._skip + cursor._limit if cursor._limit else None
        cursor._results = list(islice(cursor._factory(), cursor._skip, end))
    results: list[Any] = cursor._results
    return results


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mongomock be quick in a test."""
    monkeypatch.setattr(mongomock.collection, "_copy_field", copied)
    monkeypatch.setattr(mongomock.collection, "filter_applies", applies)
    monkeypatch.setattr(mongomock.collection, "_combine_projection_spec", combined)
    monkeypatch.setattr(mongomock.collection.Collection, "_iter_documents", found_in)
    monkeypatch.setattr(mongomock.collection.Cursor, "_compute_results", _results)
    # It replaces strings of an ODM that these tests do not use.
    monkeypatch.setattr(mongomock_motor.patches, "_normalize_strings", lambda value: value)

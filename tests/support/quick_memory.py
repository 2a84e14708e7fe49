"""Make mongomock quicker, for tests that read thousands of conversations in memory.

Most of the time of such a test is mongomock's: it copies each value by `copy.copy`, and decides each condition of a
filter by a chain of general functions. What stands here gives the same answers for the usual values and conditions,
and leaves all others to mongomock. `tests/mongo/test_quick_memory.py` compares the two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
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
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_copy_field: Any = mongomock.collection._copy_field
_filter_applies: Any = mongomock.filtering.filter_applies
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
        kind = type(held)
        if kind not in _COMPARED or "." in key or key.startswith("$"):
            return bool(_filter_applies(query, document))
        if type(wanted) is kind:
            if held != wanted:
                return False
        elif type(wanted) is dict and wanted:
            for name, bound in wanted.items():
                compare = _ORDERS.get(name)
                if compare is None or type(bound) is not kind:
                    return bool(_filter_applies(query, document))
                if not compare(held, bound):
                    return False
        else:
            return bool(_filter_applies(query, document))
    return True


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
    monkeypatch.setattr(mongomock.collection.Cursor, "_compute_results", _results)
    # It replaces strings of an ODM that these tests do not use.
    monkeypatch.setattr(mongomock_motor.patches, "_normalize_strings", lambda value: value)

"""What makes mongomock quick for some tests gives the answers that mongomock gives."""

from __future__ import annotations

from typing import Any

import quick_memory
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

_TEXTS = st.sampled_from(["", "a", "b", "b.c"])
_VALUES = st.none() | st.booleans() | st.integers(0, 3) | _TEXTS | st.just(b"a") | st.just(0.5)
_HELD = st.recursive(
    _VALUES | st.just(ObjectId("0" * 24)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
_KEYS = st.sampled_from(["_id", "a", "b", "a.b"])
_BOUNDS = st.dictionaries(
    st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"]), _VALUES, min_size=1
)
_ONE_OF = st.fixed_dictionaries({"$in": st.lists(_VALUES, max_size=2)})
_IS_THERE = st.fixed_dictionaries({"$exists": st.booleans()})
_CONDITIONS = st.dictionaries(_KEYS, _VALUES | _BOUNDS | _ONE_OF | _IS_THERE, max_size=3)
_FILTERS = _CONDITIONS | st.fixed_dictionaries(
    {"$or": st.lists(_CONDITIONS, min_size=1, max_size=2)}
)
_DOCUMENTS = st.dictionaries(st.sampled_from(["_id", "a", "b"]), _HELD)


@given(query=_FILTERS, document=_DOCUMENTS)
@examples(300)
def test_a_filter_matches_the_same_documents(query: Any, document: Any) -> None:
    """Values of all types, conditions of several kinds, fields that are missing or nested."""
    try:
        expected = bool(quick_memory._filter_applies(query, document))
    except Exception:  # noqa: BLE001 - what mongomock refuses, no test asks
        return
    assert quick_memory.applies(query, document) == expected


@given(document=_DOCUMENTS)
@examples(100)
def test_a_copy_is_equal_and_shares_nothing_that_changes(document: Any) -> None:
    """As mongomock's own copies."""
    copy = quick_memory.copied(document, dict)
    assert copy == document == quick_memory._copy_field(document, dict)
    for key, value in document.items():
        if isinstance(value, list | dict):
            assert copy[key] is not value


@given(fields=st.dictionaries(st.sampled_from(["_id", "a", "b.c", "b.d"]), st.just(1)))
@examples(20)
def test_a_projection_is_the_same(fields: dict[str, int]) -> None:
    """Also when it was asked for before."""
    for _ in range(2):
        assert quick_memory.combined(fields) == quick_memory._combine_projection_spec(fields)

"""Promise 8 at the gate: only plain text of bounded size ever becomes part of a query."""

from __future__ import annotations

import enum
from typing import Any
from uuid import UUID

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_text

from convstore.exceptions import InvalidInputError, InvalidScopeError, TooManyIdsError
from convstore.values.scope import (
    MAX_ID_BYTES,
    MAX_IDS,
    check_ids,
    check_partial_scope,
    check_scope,
    check_scope_keys,
    id_problem,
)

KEYS = ("user_id", "course_id")


class _Str(str):
    __slots__ = ()


_Word = enum.StrEnum("_Word", ["YES"])
_REFUSED: list[Any] = [
    {"$ne": ""},
    {"$gt": ""},
    ["a"],
    "",
    None,
    7,
    True,
    b"ada",
    _Str("ada"),
    _Word.YES,
    "\ud800",
    "a\udfffb",
    "x" * 513,
    "é" * 257,
]


@pytest.mark.parametrize("value", _REFUSED, ids=lambda value: ascii(value)[:20])
def test_a_value_that_is_no_plain_text_is_refused_everywhere(value: Any) -> None:
    """Operators, subclasses, other types, empty, unencodable or too long text: refused as scope value and as id."""
    assert id_problem(value)
    for check in (check_scope, check_partial_scope):
        with pytest.raises(InvalidScopeError, match="course_id"):
            check(KEYS, {"user_id": "ada", "course_id": value})
    with pytest.raises(InvalidInputError, match=r"ids\[1\]"):
        check_ids(["m1", value], name="ids")


@each_case("value", ["ada", "\0", "$ne", "a.b", " ", "x" * 512, "é" * 256, "😀" * 128, "' or 1=1"])
def test_any_other_text_is_data(value: str) -> None:
    """NUL, dollar signs and dots are data like any other; 512 bytes of UTF-8 are allowed."""
    assert id_problem(value) == ""
    assert check_scope(KEYS, {"course_id": value, "user_id": "ada"}) == (
        ("user_id", "ada"),
        ("course_id", value),
    )
    assert check_ids(iter([value]), name="ids") == [value]


@given(any_text | st.binary() | st.integers() | st.none() | st.dictionaries(any_text, any_text))
def test_what_passes_is_plain_text_that_bson_can_hold(value: Any) -> None:
    """Exactly the non-empty str that UTF-8 encodes to at most 512 bytes are accepted."""
    try:
        fits = type(value) is str and 0 < len(value.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        fits = False
    assert (id_problem(value) == "") == fits


@each_case(
    "values", [{}, {"user_id": "ada"}, {"user_id": "a", "course_id": "b", "tenant": "c"}, {7: "a"}]
)
def test_a_scope_has_exactly_the_keys_of_the_store(values: dict[str, Any]) -> None:
    """A missing key and an unknown one are refused, so that no query ever runs over more than one scope."""
    with pytest.raises(InvalidScopeError):
        check_scope(KEYS, values)


def test_an_unknown_key_is_named_before_a_missing_one() -> None:
    """The error for ``user`` instead of ``user_id`` has both names."""
    with pytest.raises(
        InvalidScopeError, match="'user' is not in this store's scope: user_id, course_id"
    ):
        check_scope(KEYS, {"user": "ada", "course_id": "ml"})


@each_case(
    ("value", "problem"),
    [
        (UUID(int=0), "must be a plain str, not UUID; pass str(user_id)"),
        (7, "must be a plain str, not int; pass str(user_id)"),
        (_Word.YES, "must be a plain str, not _Word; pass str(user_id)"),
        (None, "must be a plain str, not NoneType"),
        ({"$ne": ""}, "must be a plain str, not dict"),
    ],
)
def test_a_value_that_has_a_text_says_how_to_pass_it(value: Any, problem: str) -> None:
    """A scope value of another type is refused. The error says how to pass it, if it has a text."""
    with pytest.raises(InvalidScopeError) as caught:
        check_partial_scope(KEYS, {"user_id": value})
    assert str(caught.value) == f"scope value user_id {problem}"


def test_a_partial_scope_has_only_keys_of_the_store() -> None:
    """A part of a scope may lack keys but not bring others."""
    assert check_partial_scope(KEYS, {}) == ()
    assert check_partial_scope(KEYS, {"course_id": "ml"}) == (("course_id", "ml"),)
    with pytest.raises(InvalidScopeError, match="tenant"):
        check_partial_scope(KEYS, {"tenant": "x"})


@each_case("keys", [("user_id",), ["a", "b"], tuple("abcdefgh"), ["_x", "größe"]])
def test_names_are_scope_keys(keys: Any) -> None:
    """One to eight different names are valid scope keys and keep their order."""
    assert check_scope_keys(keys) == tuple(keys)


@pytest.mark.parametrize(
    "keys",
    [
        (),
        "user_id",
        None,
        7,
        tuple("abcdefghi"),
        ("a", "a"),
        ("",),
        ("a.b",),
        ("$where",),
        ("a b",),
        ("1a",),
        ("a\0",),
        ("\ud800",),
        (_Str("a"),),
        (b"a",),
        (None,),
        (["a"],),
        ({"$ne": ""},),
        ("limit",),
        ("user_id", "cursor"),
        ("tool_message_ids",),
    ],
    ids=ascii,
)
def test_anything_else_is_no_scope_key(keys: Any) -> None:
    """No keys, too many, repeated, reserved ones or what is not a name are refused."""
    with pytest.raises(InvalidScopeError):
        check_scope_keys(keys)


@each_case("ids", ["m1", b"m1", {"m1": 1}, None, 7])
def test_ids_are_a_list(ids: Any) -> None:
    """A single id or another value in place of a list of ids is refused."""
    with pytest.raises(InvalidInputError, match="list of message ids"):
        check_ids(ids, name="ids")


def test_ids_are_bounded_in_number() -> None:
    """Two hundred ids in one call, not one more."""
    assert len(check_ids(["m"] * MAX_IDS, name="ids")) == MAX_IDS == 200
    with pytest.raises(TooManyIdsError):
        check_ids(["m"] * (MAX_IDS + 1), name="ids")

"""Marks of the messages that the store makes: how they are written, and read where anything may stand."""

from __future__ import annotations

from typing import Any

from cases import each_case
from langchain_core.messages import BaseMessage, HumanMessage

from convstore.messages.provenance import kind_of, mark, without_mark

FOREIGN = [
    None,
    "note",
    7,
    ["note"],
    {},
    {"kind": None},
    {"kind": ["note"]},
    {"kind": {"note": 1}},
    {"x": "note"},
]
"""Values that others may have stored under the key of the mark."""


def bearing(value: Any) -> BaseMessage:
    """A message with some value in the place of the mark."""
    return HumanMessage("hi", id="q", additional_kwargs={"convstore": value, "x": 1})


def test_a_mark_is_read_as_it_was_written() -> None:
    """A mark is read as it was written, even with more fields than its kind."""
    message = HumanMessage("", additional_kwargs=mark("left_out", keys=["a"]))
    assert message.additional_kwargs == {"convstore": {"kind": "left_out", "keys": ["a"]}}
    assert kind_of(message) == "left_out"


@each_case("value", FOREIGN)
def test_what_is_no_mark_says_nothing(value: Any) -> None:
    """Reading never fails, whatever value is found there."""
    assert kind_of(bearing(value)) == ""


def test_a_message_that_was_never_validated_says_nothing() -> None:
    """A message whose `additional_kwargs` is not a dict has no kind and is not changed."""
    message = HumanMessage.model_construct(content="hi", additional_kwargs=None)
    assert (kind_of(message), without_mark(message)) == ("", message)


@each_case(
    "value", [value for value in FOREIGN if not (isinstance(value, dict) and "kind" in value)]
)
def test_only_what_says_a_kind_is_taken_from_a_message(value: Any) -> None:
    """without_mark() keeps a value without a kind, because it belongs to the application."""
    assert without_mark(bearing(value)) == bearing(value)


@each_case("kind", ["note", "", None, ["note"]])
def test_a_view_shows_no_kind_that_somebody_wrote(kind: Any) -> None:
    """without_mark() removes a foreign mark with a kind, whatever type the kind has."""
    assert without_mark(bearing({"kind": kind})).additional_kwargs == {"x": 1}

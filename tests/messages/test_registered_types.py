"""Values of models and dataclasses that a store was taught come back equal, or are refused when they are appended."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
from cases import each_case
from langchain_core.documents import Document
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator

from convstore.exceptions import InvalidInputError, UnencodableError
from convstore.messages.custom_types import functions_of
from convstore.messages.values import Codec, Kind


class Aliased(BaseModel):
    """A model with aliases, as results of MCP tools have."""

    hits: list[str]
    meta: dict[str, int] | None = Field(default=None, alias="_meta")
    total: int = Field(alias="totalHits")


class Hashing(BaseModel):
    """Changes what it is made of."""

    password: str

    @field_validator("password", mode="before")
    @classmethod
    def _hash(cls, value: str) -> str:
        return f"hash:{value}"


class Open(BaseModel):
    """Takes fields that it does not name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    number: int = 1


class Root(RootModel[list[int]]):
    """Is its one value."""


class Lazy(BaseModel):
    """Works something out once."""

    number: int

    @cached_property
    def double(self) -> int:
        """Twice the number."""
        return 2 * self.number


@dataclass(frozen=True, slots=True)
class Hit:
    """Has a field that its constructor does not take."""

    score: float
    rank: int = field(init=False, default=7)


@dataclass
class Doubling:
    """Would double again."""

    number: int

    def __post_init__(self) -> None:
        self.number *= 2


def codec_of(*types: type) -> Codec:
    """A codec that was taught some types."""
    codec = Codec()
    for type_ in types:
        dump, load = functions_of(type_)
        codec.register(type_, Kind(type_.__qualname__, dump, load))
    return codec


def worked_out() -> Lazy:
    """A value that was asked for what it works out."""
    value = Lazy(number=2)
    assert value.double == 4
    return value


@pytest.mark.parametrize(
    "value",
    [
        Aliased(hits=["x"], _meta={"k": 1}, totalHits=3),
        Hashing(password="x"),
        Open(number=2, more="yes"),  # type: ignore[call-arg]
        Root([1, 2]),
        worked_out(),
        Hit(0.5),
        Doubling(3),
        Open.model_construct(number="not a number"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_equal(value: Any) -> None:
    """A registered value comes back equal, whatever its constructor does with the arguments."""
    codec = codec_of(type(value))
    found = codec.decode(codec.encode(value))
    assert type(found) is type(value)
    assert found == value


def test_what_no_field_holds_is_refused() -> None:
    """Before anything is written: it could not come back."""
    value = Doubling(1)
    value.note = "mine"
    with pytest.raises(UnencodableError, match=r"it has \['note'\], which are not fields"):
        codec_of(Doubling).encode(value)
    with pytest.raises(UnencodableError, match="Lazy"):
        codec_of(Lazy).encode(Lazy.model_construct())


def test_a_type_with_private_attributes_wants_functions() -> None:
    """Private attributes are not read, so such a type needs functions of its own."""

    class Private(BaseModel):
        _secret: int = PrivateAttr(default=1)

    with pytest.raises(InvalidInputError, match="pass dump= and load="):
        functions_of(Private)


def test_fields_that_were_added_have_their_defaults() -> None:
    """A value that was stored before a field was there is read; without a default it is not guessed."""
    assert functions_of(Open)[1]({}) == Open()
    assert functions_of(Hit)[1]({"score": 0.5}) == Hit(0.5)
    for type_, plain in (
        (Lazy, {}),
        (Lazy, {"number": 1, "gone": 2}),
        (Hit, {}),
        (Hit, {"score": 1.0, "gone": 2}),
    ):
        with pytest.raises(TypeError, match="have changed since the value was stored"):
            functions_of(type_)[1](plain)


@each_case("change", [{"id": 7}, {"metadata": None}, {"page_content": b"x"}])
def test_a_document_that_was_changed_to_what_it_can_not_be_is_refused(
    change: dict[str, Any],
) -> None:
    """A document with a changed field is refused if its constructor would refuse or convert the value."""
    document = Document("text")
    for name, value in change.items():
        setattr(document, name, value)
    with pytest.raises(UnencodableError, match="its id must be a str or None"):
        Codec().encode(document)

"""Make messages and other models from checked fields, without validation."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

_Model = TypeVar("_Model", bound=BaseModel)

_new = object.__new__
_SLOTS = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
_set_values, _set_extra, _set_fields, _set_private = (
    vars(BaseModel)[name].__set__ for name in _SLOTS
)


def new_model(
    class_: type[_Model],
    values: dict[str, Any],
    *,
    extra: dict[str, Any] | None = None,
    fields_set: set[str],
) -> _Model:
    """Return a pydantic model with all these fields, which it takes over; pickle restores models the same way."""
    model = _new(class_)
    _set_values(model, values)
    _set_extra(model, extra)
    _set_fields(model, fields_set)
    _set_private(model, None)
    return model

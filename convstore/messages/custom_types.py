"""Serialise pydantic models and dataclasses that are registered without `dump` and `load` functions.

A value is restored from its fields without calling its constructor, because validators, aliases and ``__post_init__``
already ran and must not run twice. A value with state outside its fields is rejected, because that state would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property, partial
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from convstore.exceptions import InvalidInputError
from convstore.values.json_form import new_model

_Function = Callable[[Any], Any]


def functions_of(type_: type) -> tuple[_Function, _Function]:
    """Return the two functions that dump a value of a type and load it again.

    Raises:
        InvalidInputError: It is neither a pydantic model nor a dataclass, or has private attributes.

    >>> class Hit(BaseModel):
    ...     url: str
    >>> dump, load = functions_of(Hit)
    >>> load(dump(Hit(url="a")))
    Hit(url='a')
    """
    if issubclass(type_, BaseModel):
        if type_.__private_attributes__:
            raise InvalidInputError(
                f"pass dump= and load= for {type_!r}: it has private attributes"
            )
    elif not is_dataclass(type_):
        raise InvalidInputError(
            f"pass dump= and load= for {type_!r}: it is neither a pydantic model nor a dataclass"
        )
    return _dump, partial(_load, type_)


def _defaults_of(type_: Any) -> dict[str, Callable[[], Any] | None]:
    """Return a function that makes the default of each field, None for a required field."""
    if issubclass(type_, BaseModel):
        return {name: _default_in(info) for name, info in type_.model_fields.items()}
    return {field.name: _default_of(field) for field in fields(type_)}


def _default_in(field: FieldInfo) -> Callable[[], Any] | None:
    if field.is_required():
        return None
    return partial(field.get_default, call_default_factory=True)


def _default_of(field: Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    return None if field.default is MISSING else lambda: field.default


def _dump(value: Any) -> dict[str, Any]:
    """Return the fields of a value; raise a TypeError if it has other attributes that are not cached properties."""
    type_ = type(value)
    names = _defaults_of(type(value))
    others = getattr(value, "__dict__", {}).keys() - names
    if lost := [
        name for name in others if not isinstance(getattr(type_, name, None), cached_property)
    ]:
        raise TypeError(
            f"it has {sorted(lost)}, which are not fields; register its type with dump= and load="
        )
    return {name: getattr(value, name) for name in names} | (
        getattr(value, "__pydantic_extra__", None) or {}
    )


def _load(type_: Any, plain: Mapping[str, Any]) -> Any:
    declared = _defaults_of(type_)
    _check_fields(type_, declared, plain)
    values: dict[str, Any] = {}
    for name, default in declared.items():
        if name in plain:
            values[name] = plain[name]
        elif default is not None:
            values[name] = default()
    if issubclass(type_, BaseModel):
        extra = None
        if _allows_extra(type_):
            extra = {name: part for name, part in plain.items() if name not in declared}
        return new_model(type_, values, extra=extra, fields_set=set(plain))
    value: Any = object.__new__(type_)
    for name, item in values.items():
        object.__setattr__(value, name, item)
    return value


def _check_fields(type_: Any, declared: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    """Raise a TypeError if a stored value lacks a required field, or has a field that its type does not have."""
    missing = [name for name, default in declared.items() if default is None and name not in plain]
    extra = [name for name in plain if name not in declared]
    if missing or (extra and not _allows_extra(type_)):
        changed = sorted([*missing, *extra])
        raise TypeError(
            f"the fields of {type_.__qualname__} have changed since the value was stored: {changed}"
        )


def _allows_extra(type_: Any) -> bool:
    return issubclass(type_, BaseModel) and type_.model_config.get("extra") == "allow"

"""Serialise pydantic models and dataclasses that are registered without functions of their own.

A value is restored from its fields without calling its constructor, because validators, aliases and ``__post_init__``
already ran and must not run twice. A value with state outside its fields is rejected, because that state would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from convstore.exceptions import InvalidInputError

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
    if isinstance(type_, type) and issubclass(type_, BaseModel):
        if type_.__private_attributes__:
            raise InvalidInputError(f"pass dump= and load= for {type_!r}: it has private attributes")
        return _dump_model, lambda plain: _load_model(type_, plain)
    if isinstance(type_, type) and is_dataclass(type_):
        return _dump_dataclass, lambda plain: _load_dataclass(type_, plain)
    raise InvalidInputError(f"pass dump= and load= for {type_!r}: it is neither a pydantic model nor a dataclass")


def _dump_model(value: BaseModel) -> dict[str, Any]:
    names = type(value).model_fields
    _reject_extra_state(type(value), vars(value), names)
    return {name: vars(value)[name] for name in names} | (value.__pydantic_extra__ or {})


def _load_model(type_: type[BaseModel], plain: Mapping[str, Any]) -> BaseModel:
    declared, allows_extra = type_.model_fields, type_.model_config.get("extra") == "allow"
    extra = {name: one for name, one in plain.items() if name not in declared}
    missing = [name for name, field in declared.items() if field.is_required() and name not in plain]
    if missing or (extra and not allows_extra):
        changed = sorted([*missing, *extra])
        raise TypeError(f"the fields of {type_.__qualname__} have changed since the value was stored: {changed}")
    value = object.__new__(type_)
    value.__setstate__(
        {
            "__dict__": {
                name: plain[name] if name in plain else field.get_default(call_default_factory=True)
                for name, field in declared.items()
            },
            "__pydantic_extra__": extra if allows_extra else None,
            "__pydantic_fields_set__": set(plain),
            "__pydantic_private__": None,
        }
    )
    return value


def _dump_dataclass(value: Any) -> dict[str, Any]:
    names = [field.name for field in fields(value)]
    _reject_extra_state(type(value), getattr(value, "__dict__", {}), names)
    return {name: getattr(value, name) for name in names}


def _load_dataclass(type_: type, plain: Mapping[str, Any]) -> Any:
    declared = {field.name: field for field in fields(type_)}
    missing = [name for name, field in declared.items() if name not in plain and not _has_default(field)]
    if changed := sorted([*missing, *(plain.keys() - declared.keys())]):
        raise TypeError(f"the fields of {type_.__qualname__} have changed since the value was stored: {changed}")
    value: Any = object.__new__(type_)
    for name, field in declared.items():
        object.__setattr__(value, name, plain[name] if name in plain else _default(field))
    return value


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _reject_extra_state(type_: type, attributes: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise if a value has attributes outside its fields; cached properties are recomputed and therefore allowed."""
    others = attributes.keys() - set(names)
    if lost := [name for name in others if not isinstance(getattr(type_, name, None), cached_property)]:
        raise TypeError(f"it holds {sorted(lost)}, which are no fields; register its type with dump= and load=")

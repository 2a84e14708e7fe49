"""How values of pydantic models and dataclasses are written and read back, equal, when no functions are given for them.

Layer 1. A value is made again from what its fields held, without its constructor: validators, aliases and
``__post_init__`` have done their work, and would do it twice. What fields do not hold cannot come back, so it is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from convstore.exceptions import InvalidInputError

__all__ = ["functions_of"]

_Function = Callable[[Any], Any]


def functions_of(type_: type) -> tuple[_Function, _Function]:
    """Functions that take a value of a type apart and make it again.

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
    _refuse_others(type(value), vars(value), names)
    return {name: vars(value)[name] for name in names} | (value.__pydantic_extra__ or {})


def _load_model(type_: type[BaseModel], plain: Mapping[str, Any]) -> BaseModel:
    known, takes_more = type_.model_fields, type_.model_config.get("extra") == "allow"
    extra = {name: one for name, one in plain.items() if name not in known}
    missing = [name for name, field in known.items() if field.is_required() and name not in plain]
    if missing or (extra and not takes_more):
        raise TypeError(f"the fields of {type_.__qualname__} are others by now: {sorted([*missing, *extra])}")
    value = object.__new__(type_)
    value.__setstate__(
        {
            "__dict__": {
                name: plain[name] if name in plain else field.get_default(call_default_factory=True)
                for name, field in known.items()
            },
            "__pydantic_extra__": extra if takes_more else None,
            "__pydantic_fields_set__": set(plain),
            "__pydantic_private__": None,
        }
    )
    return value


def _dump_dataclass(value: Any) -> dict[str, Any]:
    names = [field.name for field in fields(value)]
    _refuse_others(type(value), getattr(value, "__dict__", {}), names)
    return {name: getattr(value, name) for name in names}


def _load_dataclass(type_: type, plain: Mapping[str, Any]) -> Any:
    known = {field.name: field for field in fields(type_)}
    missing = [name for name, field in known.items() if name not in plain and not _has_default(field)]
    if changed := [*missing, *(plain.keys() - known.keys())]:
        raise TypeError(f"the fields of {type_.__qualname__} are others by now: {sorted(changed)}")
    value: Any = object.__new__(type_)
    for name, field in known.items():
        object.__setattr__(value, name, plain[name] if name in plain else _default(field))
    return value


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _refuse_others(type_: type, held: Mapping[str, Any], names: Iterable[str]) -> None:
    """Make sure that a value has what its fields say, and nothing beside that could not be worked out again."""
    others = held.keys() - set(names)
    if lost := [name for name in others if not isinstance(getattr(type_, name, None), cached_property)]:
        raise TypeError(f"it holds {sorted(lost)}, which are no fields; register its type with dump= and load=")

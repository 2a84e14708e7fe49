"""Checks scopes and ids before they come near a query.

Layer 1. A scope value or a message id is a plain, non-empty str of at most 512 bytes, nothing else: a dict such as
``{"$ne": ""}`` in its place would be an operator that matches what belongs to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from convstore.exceptions import InvalidInputError, InvalidScopeError, TooManyIdsError

__all__ = [
    "MAX_IDS",
    "MAX_ID_BYTES",
    "Scope",
    "check_choice",
    "check_id",
    "check_ids",
    "check_number",
    "check_partial_scope",
    "check_scope",
    "check_scope_keys",
    "check_seconds",
    "id_problem",
    "scope_of_run",
]

Scope = tuple[tuple[str, str], ...]
"""A checked scope: pairs of key and value in the order of the store's keys."""


MAX_ID_BYTES = 512


MAX_IDS = 200
"""At most this many ids in one call."""


_RESERVED = frozenset(
    {"cursor", "dry_run", "everything", "limit", "older_than", "progress", "repair", "tool_message_ids"}
)
"""Names of other arguments of the store's methods."""


_MOST_KEYS = 8


def check_choice(value: object, *choices: str | None, name: str) -> None:
    """Make sure that a value is one of a few choices.

    >>> check_choice("skip", None, "skip", "raise", name="resent")

    Raises:
        InvalidInputError: It is not; says which there are.
    """
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        *first, last = [f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices]
        raise InvalidInputError(f"{name} is {', '.join(first)} or {last}, not {value!r}")


def check_number(value: int, *, name: str, least: int, most: int | None = None) -> int:
    """The same number, once it is sure that it is a whole one in its bounds; True and False are none.

    >>> check_number(7, name="limit", least=1, most=1_000)
    7

    Args:
        value: What a caller passed.
        name: What the error calls it.
        least: The lowest that is allowed.
        most: The highest; None for no limit.

    Raises:
        InvalidInputError: Anything else; says the bounds and what was passed.
    """
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise InvalidInputError(f"{name} is a whole number {bounds}, not {value!r}")
    return value


def check_seconds(value: float, *, name: str) -> float:
    """Return the same number, if it is a time to wait: finite and not negative.

    >>> check_seconds(0.5, name="wait")
    0.5

    Args:
        value: What a caller passed.
        name: What the error calls it.

    Raises:
        InvalidInputError: Anything else; NaN, infinity, True and False too.
    """
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise InvalidInputError(f"{name} is a number of seconds from 0, not {value!r}")
    return value


def check_scope_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys of a store's scopes.

    >>> check_scope_keys(["user_id", "course_id"])
    ('user_id', 'course_id')

    Raises:
        InvalidScopeError: No keys, too many, repeated, reserved, or not names.
    """
    found = tuple(keys) if not isinstance(keys, str) and isinstance(keys, Iterable) else ()
    for key in found:
        if type(key) is not str or not key.isidentifier() or key in _RESERVED:
            raise InvalidScopeError(
                f"a scope key is a Python name other than {', '.join(sorted(_RESERVED))}, not {key!r}"
            )
    if not 1 <= len(found) <= _MOST_KEYS or len(set(found)) != len(found):
        raise InvalidScopeError(f"scope_keys is 1 to {_MOST_KEYS} different names, not {keys!r}")
    return found


def check_scope(keys: Sequence[str], values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pairs of a whole scope, in the order of the store's keys.

    Raises:
        InvalidScopeError: A key is missing or unknown, or a value cannot be one.
    """
    checked = dict(check_partial_scope(keys, values))
    if missing := [key for key in keys if key not in values]:
        raise InvalidScopeError(f"the scope lacks {', '.join(missing)}; this store's scope is {', '.join(keys)}")
    return tuple((key, checked[key]) for key in keys)


def check_partial_scope(keys: Sequence[str], values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pairs of a part of a scope.

    Raises:
        InvalidScopeError: A key is unknown, or a value cannot be one.
    """
    if unknown := [key for key in values if key not in keys]:
        raise InvalidScopeError(f"{', '.join(map(repr, unknown))} is not in this store's scope: {', '.join(keys)}")
    for key, value in values.items():
        if problem := id_problem(value):
            hint = f"; pass str({key})" if isinstance(value, int | str | UUID) and type(value) is not str else ""
            raise InvalidScopeError(f"scope value {key} {problem}{hint}")
    return tuple(values.items())


def scope_of_run(
    keys: Sequence[str], *, context: Any, configurable: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> Scope:
    """The whole scope of a run of an agent or a graph, as the application said when it started the run.

    >>> scope_of_run(["user_id", "thread_id"], context={"user_id": "ada"}, configurable={"thread_id": "t1"})
    (('user_id', 'ada'), ('thread_id', 't1'))

    Args:
        keys: Of the store.
        context: Of whatever kind; None if the run has none.
        configurable: Of the run's configuration.
        given: Values that count whatever the run says. Elsewhere None stands for absent, here it is refused.

    Raises:
        InvalidScopeError: A key is missing, unknown or said twice, or a value cannot be one.
    """
    given = given or {}
    said = _said_of([key for key in keys if key not in given], context=context, configurable=configurable)
    values = {**said, **given}
    if missing := [key for key in keys if key not in values]:
        raise InvalidScopeError(
            f"the run lacks {', '.join(missing)}: pass it in the run's context or in config['configurable'], "
            f"or say it where the tool or the integration is made; this store's scope is {', '.join(keys)}"
        )
    return check_scope(keys, values)


def _said_of(keys: Iterable[str], *, context: Any, configurable: Mapping[str, Any]) -> dict[str, Any]:
    """What a run says of some keys; refuses two values for one, as one of them is another's."""
    found: dict[str, Any] = {}
    for key in keys:
        in_context = context.get(key) if isinstance(context, Mapping) else getattr(context, key, None)
        said = [value for value in (in_context, configurable.get(key)) if value is not None]
        if len(said) == 2 and not (type(said[0]) is type(said[1]) is str and said[0] == said[1]):
            raise InvalidScopeError(
                f"{key} is one thing in the run's context and another in config['configurable']; pass it once, "
                "or say it where the tool or the integration is made"
            )
        if said:
            found[key] = said[0]
    return found


def check_id(value: str, *, name: str) -> str:
    """The id of a message that a caller names.

    Raises:
        InvalidInputError: Not an id.
    """
    if problem := id_problem(value):
        raise InvalidInputError(f"{name} {problem}")
    return value


def check_ids(ids: Any, *, name: str) -> list[str]:
    """Message ids that a caller asks for.

    Raises:
        InvalidInputError: Not a list of ids.
        TooManyIdsError: More than `MAX_IDS`.
    """
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise InvalidInputError(f"{name} is a list of message ids, not {type(ids).__name__}")
    found = list(ids)
    if len(found) > MAX_IDS:
        raise TooManyIdsError(f"{len(found)} ids in one call; ask for at most {MAX_IDS} at a time")
    return [check_id(value, name=f"{name}[{place}]") for place, value in enumerate(found)]


def id_problem(value: Any) -> str:
    """What is wrong with a value as an id or a scope value; "" if nothing is."""
    if type(value) is not str:
        return f"must be a plain str, not {type(value).__name__}"
    if not value:
        return "must not be empty"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "must be text that UTF-8 can encode, without lone surrogates"
    return f"must be at most {MAX_ID_BYTES} bytes in UTF-8, not {size:,}" if size > MAX_ID_BYTES else ""

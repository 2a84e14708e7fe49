"""Checks that a number is in its bounds, and a choice one of those there are.

Layer 0, for policies and for the arguments of the public API.
"""

from __future__ import annotations

import math

from convstore.exceptions import InvalidInputError

__all__ = ["check_choice", "check_number", "check_seconds"]


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

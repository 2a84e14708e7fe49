"""Checks that a number is one, and in its bounds.

Layer 0, for policies and for the arguments of the public API.
"""

from __future__ import annotations

from convstore.exceptions import InvalidInputError

__all__ = ["check_number"]


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

"""Small functions on plain values: a part by its name, and a count in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def counted(number: int, singular: str, many: str = "") -> str:
    """Format a count with its noun.

    >>> counted(1, "message"), counted(2_000, "summary", "summaries")
    ('1 message', '2,000 summaries')
    """
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def part_of(value: Any, name: str) -> Any:
    """Return a value of a dict, or an attribute of any other object; None if it is missing.

    >>> part_of({"id": 1}, "id"), part_of(object(), "id")
    (1, None)
    """
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)

"""Check and copy the fields of dicts that a caller passes.

Floor 4, without I/O; `inputs` and `formats` call it. Every error names the index of the message and the field.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from convstore.exceptions import InvalidMessageError

__all__ = ["check_text", "check_type", "copied", "kind", "shown"]


def kind(value: object) -> str:
    """Return the type of a value, in words."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def shown(value: object) -> str:
    """Return the beginning of a text, or the type of any other value."""
    return repr(value[:40]) if isinstance(value, str) else kind(value)  # the repr of a deep list may recurse too far


def check_type(value: object, *allowed: type, field: str, index: int) -> None:
    """Check that a value has one of some types.

    Raises:
        InvalidMessageError: It has another type.
    """
    if not isinstance(value, allowed):
        wanted = " or ".join("None" if one is NoneType else one.__name__ for one in allowed)
        raise InvalidMessageError(f"must be {wanted}, not {kind(value)}", index=index, field=field)


def check_text(value: object, *, field: str, index: int) -> None:
    """Check that a value is a non-empty text.

    Raises:
        InvalidMessageError: It is not.
    """
    if not isinstance(value, str) or not value:
        raise InvalidMessageError(f"must be a non-empty str, not {shown(value)}", index=index, field=field)


def copied(value: Any) -> Any:
    """Return a copy of the value with every nested dict and list copied; other objects are shared."""
    root = [value]
    copies: dict[int, Any] = {}  # a container met twice, or inside itself, is copied once
    pending: list[Any] = [root]
    while pending:
        parent = pending.pop()
        for slot, child in list(parent.items() if type(parent) is dict else enumerate(parent)):
            if type(child) not in (dict, list):
                continue
            if id(child) not in copies:
                copies[id(child)] = child.copy()
                pending.append(copies[id(child)])
            parent[slot] = copies[id(child)]
    return root[0]

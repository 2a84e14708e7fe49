"""Merge the deltas of a streamed reply into whole values, whichever protocol sends them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def grow(known: dict[str, Any], delta: Mapping[str, Any], texts: Collection[str] = ()) -> None:
    """Merge a delta into `known`: named texts grow, lists are extended, of any other value the first one counts.

    A null or an empty text is no value yet, because servers send them before the value.

    >>> known = {}
    >>> for delta in ({"id": "c1", "said": "Half "}, {"id": "c1", "said": "of it.", "notes": [1]}):
    ...     grow(known, delta, {"said"})
    >>> known
    {'id': 'c1', 'said': 'Half of it.', 'notes': [1]}
    """
    for name, value in delta.items():
        if value is not None and value != "":
            known[name] = _grown(known.get(name), value, is_text=name in texts)


def _grown(before: Any, value: Any, *, is_text: bool) -> Any:
    if isinstance(value, list):
        if not isinstance(before, list):
            return list(value)
        before.extend(value)
        return before
    if is_text and isinstance(value, str) and isinstance(before, str):
        return before + value
    return value if before in (None, "") else before

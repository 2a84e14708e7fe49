"""Paths into stored documents, for tests that damage one value after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]


def paths(value: Any, before: Path = ()) -> Iterator[Path]:
    """Yield the path of each value in a document, also inside other values, except its key."""
    for key, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        if (path := (*before, key)) != ("_id",):
            yield path
            yield from paths(item, path)


def at(value: Any, path: Path) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def shape(path: Path) -> str:
    """Return a path without positions in lists."""
    return ".".join(key for key in path if isinstance(key, str))


def changed(document: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return a copy with another value at a path; without that field for ``...``."""
    made = copy.deepcopy(document)
    holder = at(made, path[:-1])
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return made

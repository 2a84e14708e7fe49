"""Write values of plain JSON types as JSON text, fast and without blocking other threads for long.

Values of other types need tags, which `messages.values` writes.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import orjson
from langchain_core.messages.base import TextAccessor

LINE_DEPTH = 40
"""Maximum nesting of values on one line; each tag adds two levels, and Python's parser fails near 1,000."""

MANY_NODES = 2_000
"""A value with more nodes is written in several calls, so that other threads can run in between."""

# TextAccessor is the type of `message.text`, equal to the str it wraps
TEXT_TYPES = frozenset({str, TextAccessor})
_SCALAR_TYPES = TEXT_TYPES | {bool, float, int, type(None)}
_PLAIN_TYPES = _SCALAR_TYPES | {list, dict}
_SLICE = 100
_SLICED_DEPTH = 4

write_line = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode
"""Return the JSON text of a value; NaN, infinities and lone surrogates are written unchanged."""


def plain_json(value: Any) -> str | None:
    """Return the JSON text of a value that JSON represents exactly; None for any other value."""
    texts = plain_json_of_each([value])
    return texts[0] if texts else None


def plain_json_of_each(values: list[Any]) -> list[str] | None:
    """Return the JSON text of each value; None if JSON does not represent all of them exactly, or they are large.

    For ten small values, it takes half as long as ten calls of `plain_json`.
    """
    if not _are_plain(values):
        return None
    # orjson refuses a number beyond 64 bits, a lone surrogate, or a key that is not a str
    try:
        texts = [orjson.dumps(value) for value in values]
    except orjson.JSONEncodeError:
        return None
    written = b"[" + b",".join(texts) + b"]"
    # orjson writes NaN as null, which the comparison finds. A key "$" would be read as a tag.
    if b'"$":' in written or orjson.loads(written) != values:
        return None
    return [text.decode() for text in texts]


def _are_plain(values: list[Any]) -> bool:
    """Return True if values have only JSON types, not subclasses, and few enough nodes and levels for one C call."""
    level = values
    nodes = 0
    for _ in range(LINE_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _SCALAR_TYPES:
            return True
        if not kinds <= _PLAIN_TYPES:
            return False
        nodes += len(level)
        if nodes > MANY_NODES:
            return False
        inner: list[Any] = []
        for node in level:
            if type(node) is dict:
                inner.extend(node.values())
            elif type(node) is list:
                inner.extend(node)
        level = inner
    return False


def write_long_line(value: Any, depth: int = 0) -> str:
    """Return the same text as `write_line`, written in many calls so that other threads can run in between."""
    if type(value) not in (list, dict) or depth == _SLICED_DEPTH:
        return write_line(value)
    if len(value) <= _SLICE:
        if type(value) is list:
            return f"[{','.join(write_long_line(child, depth + 1) for child in value)}]"
        pairs = (
            f"{write_line(key)}:{write_long_line(child, depth + 1)}" for key, child in value.items()
        )
        return f"{{{','.join(pairs)}}}"
    rest = iter(value if type(value) is list else value.items())
    make = type(value)
    slices = iter(lambda: make(islice(rest, _SLICE)), make())
    text = ",".join(write_line(part)[1:-1] for part in slices)
    return f"[{text}]" if make is list else f"{{{text}}}"

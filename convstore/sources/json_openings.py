"""Parse JSON and know where in its text each object begins, so that a text can be changed without encoding it again."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NUMBER = re.compile(r"\s*:\s*(\d+)")


class ParsedJson(NamedTuple):
    """A value that was parsed, and its objects.

    Attributes:
        value: The value.
        openings: Index of the brace of each object in the text, by the id of its dict.
        objects: All objects, which keeps their ids valid.
    """

    value: Any
    openings: dict[int, int]
    objects: list[dict[str, Any]]


def parse_with_openings(text: str) -> ParsedJson | None:
    """Parse the dict or list that a text encodes in JSON; None if it encodes anything else.

    The parser finishes the objects in the order of their closing braces, also those under a key that comes twice.

    >>> parsed = parse_with_openings('[{"a": 1}, {"a": 2}]')
    >>> [parsed.openings[id(item)] for item in parsed.value]
    [1, 11]
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    objects: list[dict[str, Any]] = []

    def finished(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        objects.append(made)
        return made

    try:
        value = json.loads(text, object_pairs_hook=finished)
    except (ValueError, RecursionError):
        return None
    openings = {id(made): opening for made, opening in zip(objects, _openings(text), strict=True)}
    return ParsedJson(value, openings, objects)


def _openings(text: str) -> list[int]:
    """Return the index of each opening brace, in the order of the closing ones."""
    opened = []
    closed = []
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign == "{":
            opened.append(token.start())
        elif sign == "}":
            closed.append(opened.pop())
    return closed


def find_number(text: str, opening: int, key: str) -> tuple[int, int] | None:
    """Return where the digits of an object's number stand, given the index of its brace; None without such a key.

    >>> find_number('[{"b": {"a": 1}, "a": 25}]', 1, "a")
    (22, 24)
    """
    depth = 0
    found = None
    for token in _TOKEN.finditer(text, opening):
        sign = token[0]
        if sign in "{[":
            depth += 1
        elif sign in "}]":
            depth -= 1
        elif depth == 1 and sign[1:-1] == key and (number := _NUMBER.match(text, token.end())):
            found = number.span(1)
        if depth == 0:
            break
    return found

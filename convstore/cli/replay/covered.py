"""Finds the parts of a value that no page shows, although pages show each text only once.

Floor 8. A page says `[text of source 3]` for a text that content or artifact repeat, so the
text of that source replaces it, as it is and as JSON writes it, before a line is searched for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from convstore.sources.detection import parse_json

__all__ = ["Pool"]

_PLACEHOLDER = re.compile(r"\[text of source (\d+)\]")
_BEGINNING = 60


class Pool:
    """Every text that was read back of one message."""

    def __init__(self, passages: Sequence[str], sources: Mapping[int, str]) -> None:
        self._sources = sources
        texts = dict.fromkeys(text for passage in passages for text in _unpacked(passage))
        self._texts = [*sources.values(), *(text for one in texts for text in self._expanded(one))]

    def missing(self, value: Any) -> int:
        """Count the characters of a value, by lines and other leaves, that are in none of the texts."""
        return sum(len(line) for leaf in _leaves(value) for line in leaf.splitlines() if not self._holds(line.strip()))

    def _expanded(self, text: str) -> Iterator[str]:
        yield text
        for form in (str, _quoted, _in_ascii) if _PLACEHOLDER.search(text) else ():
            yield _PLACEHOLDER.sub(lambda found, form=form: form(self._sources.get(int(found[1]), "")), text)  # type: ignore[misc]

    def _holds(self, line: str) -> bool:
        if any(line in text for text in self._texts):
            return True
        # A truncated line is shown together with the whole line of its source.
        for text in self._texts if len(line) > _BEGINNING else ():
            if (start := text.find(line[:_BEGINNING])) >= 0:
                alike = takewhile(lambda signs: signs[0] == signs[1], zip(line, text[start:], strict=False))
                rest = line[sum(1 for _ in alike) :].strip()
                if any(rest in other for other in self._texts):
                    return True
        return False


def _unpacked(text: str) -> Iterator[str]:
    """Yield a text, and if it is JSON the texts in it."""
    yield text
    if (value := parse_json(text)) is not None:
        yield from (inner for leaf in _leaves(value) for inner in _unpacked(leaf))


def _leaves(value: Any) -> Iterator[str]:
    """Yield every text in a value, and every other leaf as JSON."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list | tuple):
            todo.extend(one)
        elif isinstance(one, dict):
            todo.extend([*one.keys(), *one.values()])
        else:
            yield json.dumps(one, default=repr)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _in_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]

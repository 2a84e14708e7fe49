r"""Finds the ranges of a text that repeat other texts, so that each text is read back once.

Tools that put their sources into an artifact usually write them into the content as well: unchanged, line by line
between headings, truncated, or as JSON strings. The search time is bounded; a missed repetition is only read twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

Range = tuple[int, int]
"""Start and end of a part of a text."""

_MIN_LENGTH = 20
"""A shorter line may occur in a text by chance."""
_MIN_TEXT_FOR_LINES = 200
"""A shorter text is searched for whole parts only, not for their lines."""
_PREFIX = 60
"""Number of characters by which a truncated line is recognised."""
_MAX_MISSED = 3
"""Number of consecutive missing lines after which the search for a part ends."""
_SCANS = 8
"""Limit of fruitless search: about this many scans of the text, or the number of characters below."""
_MIN_SCANNED = 200_000
_MAX_FOUND = 1_000
_MAX_NODES = 20_000

_Form = Callable[[str], str]


def repeats(text: str, parts: Sequence[str]) -> list[list[Range]]:
    r"""Return for each part the ranges of a text that repeat it or its lines, in order; no two ranges overlap.

    >>> song, bark = "Whales sing all night long.", "Seals bark when they are hungry."
    >>> repeats(f"[1] Whales\n{song}\n\n[2] Seals\n{bark}", [song, bark])
    [[(11, 38)], [(50, 82)]]
    """
    search = _Search(text, budget=max(_SCANS * (len(text) + sum(map(len, parts))), _MIN_SCANNED))
    return [search.ranges_of(part) if len(text) >= _MIN_LENGTH else [] for part in parts]


def leaves(value: Any) -> list[str]:
    """Return the strings in nested dicts and lists that are long enough to search for, in order, up to a maximum.

    >>> leaves({"a": ["x" * 20, 7], "b": "short"})
    ['xxxxxxxxxxxxxxxxxxxx']
    """
    texts = (node for node in _nodes(value) if type(node) is str and len(node) >= _MIN_LENGTH)
    return list(islice(texts, _MAX_FOUND))


def _nodes(value: Any) -> Iterator[Any]:
    todo = [value]
    for _ in range(_MAX_NODES):
        if not todo:
            return
        yield (item := todo.pop())
        if type(item) in (list, tuple, dict):
            todo.extend(reversed(list(item.values() if type(item) is dict else item)[:_MAX_NODES]))


@dataclass(slots=True)
class _Search:
    """Searches for one part after the other, first after the previous match, because tools keep the order."""

    text: str
    budget: int
    forms: tuple[_Form, ...] = field(init=False)
    position: int = 0
    matched: list[Range] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = self.text[:100].lstrip()[:1]
        last = self.text[-100:].rstrip()[-1:]
        is_json = first + last in ("{}", "[]", '""')
        twice = (lambda text: _quoted(_quoted(text)), lambda text: _quoted(_in_ascii(text)))
        self.forms = (_quoted, _in_ascii, *twice, str) if is_json else (str,)

    def ranges_of(self, part: str) -> list[Range]:
        if len(part.strip()) < _MIN_LENGTH:
            return []
        missed = set[str]()
        for form in self.forms:
            if (needle := form(part)) not in missed and (position := self._find(needle)) >= 0:
                return [self._take(position, len(needle))]
            missed.add(needle)
        for form in self.forms if len(self.text) >= _MIN_TEXT_FOR_LINES else ():
            if ranges := self._lines_of(part, form):
                return _joined(self.text, ranges)
        return []

    def _lines_of(self, part: str, form: _Form) -> list[Range]:
        ranges: list[Range] = []
        missed = 0
        for line in (
            line for stripped in part.splitlines() if len(line := stripped.strip()) >= _MIN_LENGTH
        ):
            found = self._line(form(line))
            missed = 0 if found else missed + 1
            ranges += [found] if found else []
            if missed == _MAX_MISSED:
                break
        return ranges

    def _line(self, needle: str) -> Range | None:
        if (position := self._find(needle)) >= 0:
            return self._take(position, len(needle))
        if len(needle) <= _PREFIX or (position := self._find(needle[:_PREFIX])) < 0:
            return None
        at_match = self.text[position : position + len(needle)]
        alike = takewhile(lambda signs: signs[0] == signs[1], zip(needle, at_match, strict=False))
        return self._take(position, sum(1 for _ in alike))

    def _find(self, needle: str) -> int:
        """Return the position of a text outside earlier matches; -1 if it is not found."""
        if self.budget <= 0 or len(needle) > len(self.text):
            return -1
        position = self.text.find(needle, self.position)
        if position < 0:
            self.budget -= len(self.text) - self.position
            position = self.text.find(needle, 0, self.position)
            self.budget -= self.position
            if any(
                start < position + len(needle) and position < end for start, end in self.matched
            ):
                return -1
        return position

    def _take(self, position: int, length: int) -> Range:
        self.matched.append((position, position + length))
        self.position = max(self.position, position + length)
        return position, position + length


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _in_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


def _joined(text: str, ranges: Sequence[Range]) -> list[Range]:
    """Sort ranges and join those with only white space between them."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        touches = bool(joined) and not text[joined[-1][1] : start].replace("\\n", "").strip()
        joined.append((joined.pop()[0] if touches else start, end))
    return joined

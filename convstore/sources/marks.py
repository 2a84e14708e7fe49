"""Find the numbers of sources that a text cites, outside of code.

A mark is ``[17]``, ``[17, 18]``, ``[11-13]``, ``[^17]``, ``[source 17]`` or ``【17†source】``. Code of Markdown,
between fences or backticks, is ignored. The search takes linear time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

MAX_CITED = 1_000
"""Maximum number of citations that are read from one text."""

_BRACKETS = re.compile(r"[\[【]([^\[\]【】\n]{1,200})[\]】]")
_SEPARATOR = re.compile(r"[,;&]|\band\b")
_PART = re.compile(
    r"\s*(?:\^|#|(?:sources?|refs?|no)\b[.:]?\s*#?\s*)?"
    r"(\d{1,9})(?:\s*[-\u2013\u2014]\s*(\d{1,9}))?\s*(?:†.*)?",
    re.IGNORECASE | re.ASCII,
)
_LONGEST = 100
"""Maximum numbers in a range; a longer range is not a citation."""
_FENCE = re.compile(r"[ \t>]*(`{3,}(?=[^`]*$)|~{3,})")
_BACKTICKS = re.compile(r"\\`|`+|\n[ \t]*(?=\n)")


class Mark(NamedTuple):
    """A citation of sources by their numbers in a text."""

    start: int
    end: int
    numbers: tuple[int, ...]


def marks_in(text: str) -> list[Mark]:
    """Return the marks in a text in their order, with at most `MAX_CITED` numbers.

    >>> marks_in("Fish [17], squid [18, 20-21]; `list[0]`.")
    [Mark(start=5, end=9, numbers=(17,)), Mark(start=17, end=28, numbers=(18, 20, 21))]
    """
    found: list[Mark] = []
    room = MAX_CITED
    for brackets in _BRACKETS.finditer(_without_code(text)):
        numbers = _numbers(brackets[1])[:room]
        if numbers:
            found.append(Mark(brackets.start(), brackets.end(), numbers))
            room -= len(numbers)
        if not room:
            break
    return found


def _numbers(inside: str) -> tuple[int, ...]:
    """Return the numbers between two brackets; empty if there is anything else between them."""
    numbers: dict[int, None] = {}
    for part in _SEPARATOR.split(inside):
        found = _PART.fullmatch(part)
        if found is None:
            return ()
        first = int(found[1])
        last = int(found[2] or first)
        if not first <= last < first + _LONGEST:
            return ()
        numbers |= dict.fromkeys(range(first, last + 1))
    return tuple(numbers)


def _without_code(text: str) -> str:
    """Return a text of the same length with spaces in place of code."""
    if "`" not in text and "~~~" not in text:
        return text
    pieces: list[str] = []
    prose: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        mark = found[1] if found else ""
        if fence:
            pieces.append(" " * len(line))
            is_end = mark.startswith(fence) and not line.strip(" \t>\r\n").strip(mark[:1])
            fence = "" if is_end else fence
        elif mark:
            pieces += [_without_spans("".join(prose)), " " * len(line)]
            prose = []
            fence = mark
        else:
            prose.append(line)
    return "".join([*pieces, _without_spans("".join(prose))])


def _without_spans(prose: str) -> str:
    """Return a text with spaces in place of spans between equal runs of backticks in one paragraph."""
    pieces: list[str] = []
    position = 0
    for start, end in _spans(prose):
        pieces += [prose[position:start], " " * (end - start)]
        position = end
    return "".join([*pieces, prose[position:]])


def _spans(prose: str) -> Iterator[tuple[int, int]]:
    runs: list[tuple[int, int, int]] = []
    closing: dict[tuple[int, int], deque[int]] = {}
    paragraph = 0
    for found in _BACKTICKS.finditer(prose):
        if found[0].startswith("\n"):
            paragraph += 1
        elif found[0].startswith("`"):
            length = len(found[0])
            runs.append((found.start(), length, paragraph))
            closing.setdefault((length, paragraph), deque()).append(found.start())
    position = 0
    for start, length, number in runs:
        ends = closing[length, number]
        while ends and ends[0] <= start:
            ends.popleft()
        if start >= position and ends:
            position = ends[0] + length
            yield start, position

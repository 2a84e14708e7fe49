r"""Find the marks by which a tool counts its own sources: ``[1]``, ``(1)``, ``1.``, ``Source 1``, ``<doc id="1">``.

They are its marks only if one begins the first line of every item and they count from 0 or 1 without a gap. A list
``1.`` in a passage is not one of them, and neither is a footnote ``[2]``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convstore.sources.placing import Place, Shield, Shown

_START = r"(?:^|(?<=>)(?!>))[ \t>*#_•-]{0,20}"
_NUMBER = r"(?P<number>\d{1,4})"
_WORD = r"(?i:source|document|doc|result|passage|chunk|hit|reference|ref)"
_COUNTER = r"(?i:id|index|n|number|rank|source_id)"

_KINDS = (
    re.compile(rf"{_START}[\[【]{_NUMBER}[\]】](?![(\[])", re.MULTILINE),
    re.compile(
        rf"<[A-Za-z][^<>\n]{{0,300}}?\s{_COUNTER}\s*=\s*[\"']?{_NUMBER}\b[\"']?[^<>\n]{{0,300}}>"
    ),
    re.compile(rf"{_START}[\[<(]?{_WORD}[ _]?#?{_NUMBER}\b(?!\.\d)", re.MULTILINE),
    re.compile(rf"{_START}\({_NUMBER}\)", re.MULTILINE),
    re.compile(rf"{_START}{_NUMBER}[.)](?=[ \t\n*])", re.MULTILINE),
)
_USES = {
    _KINDS[0]: re.compile(rf"[\[【]{_NUMBER}[\]】](?![(\[])"),
    _KINDS[2]: re.compile(rf"\b{_WORD}[ _]?#?{_NUMBER}\b(?!\.\d)"),
    _KINDS[3]: re.compile(rf"\({_NUMBER}\)"),
}
"""How the kinds of marks are used elsewhere in a text. ``1.`` is left alone there, because it may begin any list."""

_LINES = 8
"""Maximum number of line breaks between a mark and the place of its source."""
_CONTEXT = 12
"""A use that stands in a source's text with these characters before it is the source's."""
_MAX_COMPARED = 50_000_000


class _Words(NamedTuple):
    """A part of a text that is the tool's own, and the texts of the sources around it."""

    start: int
    end: int
    around: str


class Digits(NamedTuple):
    """The digits of a mark in a text, and the index of the source that they count."""

    start: int
    end: int
    source: int


def own_marks(
    text: str, sources: Sequence[Shown], places: Sequence[Place], shield: Shield
) -> list[Digits]:
    r"""Return the digits of a tool's own marks, in order; none if its text has no such marks.

    >>> from convstore.sources.placing import find_places
    >>> text = "Best: [2]\n[1] Seals sleep.\n[2] Orcas sing [1].\n"
    >>> sources = [Shown("Seals sleep."), Shown("Orcas sing [1].")]
    >>> places = find_places(text, sources, shield := Shield(text))
    >>> [(found.start, found.source) for found in own_marks(text, sources, places, shield)]
    [(7, 1), (11, 0), (28, 1)]
    """
    gaps = _gaps(places)
    for kind in _KINDS:
        found = [mark for mark in kind.finditer(text) if not shield.is_code(mark.start("number"))]
        for first in (1, 0):
            marks = _counting(text, found, gaps, first)
            if marks:
                words = _own_words(sources, gaps, places[-1].end, len(text))
                others = _other_uses(text, _USES.get(kind), words, first, len(sources))
                return sorted({*marks, *(use for use in others if not shield.is_code(use.start))})
    return []


def counted_passages(text: str) -> list[int]:
    r"""Return the numbers in brackets at the beginnings of lines, if they count two passages or more from 0 or 1.

    >>> counted_passages("[1] Seals sleep.\n[2] Orcas sing."), counted_passages("[1] once, [2]")
    ([1, 2], [])
    """
    marks = list(_KINDS[0].finditer(text))
    if len(marks) < 2:
        return []
    shield = Shield(text)
    numbers = [int(mark["number"]) for mark in marks if not shield.is_code(mark.start("number"))]
    return numbers if len(numbers) > 1 and _counts(numbers) else []


def leading_numbers(texts: Sequence[str]) -> list[int]:
    """Return the numbers in brackets with which texts begin, if all of them do and they count from 0 or 1.

    >>> leading_numbers(["[1] Seals sleep.", "[2] Orcas sing."]), leading_numbers(["[2] Orcas sing."])
    ([1, 2], [])
    """
    marks = [_KINDS[0].match(text.lstrip()) for text in texts]
    numbers = [int(mark["number"]) for mark in marks if mark]
    return numbers if len(numbers) == len(texts) and _counts(numbers) else []


def _counts(numbers: Sequence[int]) -> bool:
    """Return True if numbers count from 0 or 1 without a gap."""
    first = numbers[0] if numbers else 2
    return first < 2 and list(numbers) == list(range(first, first + len(numbers)))


def _gaps(places: Sequence[Place]) -> list[tuple[int, int]]:
    """Return for each source the part of the text between the one before and it."""
    ends = [0, *(place.end for place in places)]
    return [(end, place.start) for end, place in zip(ends, places, strict=False)]


def _counting(
    text: str, found: Sequence[re.Match[str]], gaps: Sequence[tuple[int, int]], first: int
) -> list[Digits]:
    """Return the mark of each source if all of them have one that counts from `first`; else none."""
    starts = [mark.start() for mark in found]
    marks = []
    for index, (low, high) in enumerate(gaps):
        between = found[bisect_left(starts, low) : bisect_left(starts, high)]
        mark = _last_of(text, between, first + index, high)
        if mark is None:
            return []
        marks.append(Digits(mark.start("number"), mark.end("number"), index))
    return marks


def _last_of(
    text: str, found: Sequence[re.Match[str]], number: int, end: int
) -> re.Match[str] | None:
    """Return the last mark with a number, if it is near enough to the end of its gap."""
    lines = 0
    before = end
    for mark in reversed(found):
        lines += text.count("\n", mark.end(), before)
        if lines > _LINES:
            return None
        if int(mark["number"]) == number and mark.end() <= end:
            return mark
        before = mark.start()
    return None


def _own_words(
    sources: Sequence[Shown], gaps: Sequence[tuple[int, int]], end: int, length: int
) -> Iterator[_Words]:
    """Yield the parts of a text that are of no source, each with the texts of the sources around it."""
    before = ""
    for source, (low, high) in zip(sources, gaps, strict=True):
        yield _Words(low, high, before + "\n" + source.text)
        before = source.text
    yield _Words(end, length, before)


def _other_uses(
    text: str,
    uses: re.Pattern[str] | None,
    words: Iterator[_Words],
    first: int,
    count: int,
) -> Iterator[Digits]:
    """Yield where the tool uses its marks elsewhere, in its own words."""
    if uses is None:
        return
    budget = _MAX_COMPARED
    for low, high, around in words:
        for use in uses.finditer(text, low, high):
            source = int(use["number"]) - first
            context = text[max(low, use.start() - _CONTEXT) : use.end()]
            budget -= len(around)
            if budget < 0:
                return
            if 0 <= source < count and context not in around:
                yield Digits(use.start("number"), use.end("number"), source)

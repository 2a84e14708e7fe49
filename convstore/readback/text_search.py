"""Find a text inside longer texts, ignoring case, and cut the passages around each match.

Pure functions on strings, used by the pages of the retrieval tool.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["fold", "matches", "snippets"]

_CONTEXT = 200


_GROWING = re.compile(
    "["
    + "".join(
        sign
        for sign in map(chr, (*range(0xDF, 0x2000), *range(0xFB00, 0xFB18)))
        if len(sign.casefold()) > 1 and sign != "İ"
    )
    + "]"
)
"""Characters that become several when their case is folded, such as the German sharp s."""


def matches(text: str, find: str) -> Iterator[tuple[int, int]]:
    """Ranges of a text that say the same as another in any case, by Unicode's full case folding; linear in both.

    >>> list(matches("Maße, MASSE, masse", "mASSe"))
    [(0, 4), (6, 11), (13, 18)]
    """
    folded, wanted = fold(text), fold(find)
    grown, extra = _growth(text, folded)
    position = folded.find(wanted) if wanted else -1
    while position >= 0:
        yield _unfolded(position, grown, extra), _unfolded(position + len(wanted) - 1, grown, extra) + 1
        position = folded.find(wanted, position + len(wanted))


def fold(text: str) -> str:
    """A text in one case; the Turkish letters i, with a dot and without, are one letter.

    >>> fold("STRAẞE"), fold("İstanbul")
    ('strasse', 'istanbul')
    """
    return text.replace("İ", "i").replace("\u0131", "i").casefold()


def snippets(text: str, find: str, *, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of a text around the matches of another, in any case, those that touch joined.

    The last one is the first that is longer than `limit`: nobody shows it whole.

    >>> list(snippets("a" * 300 + "Needle" + "b" * 300, "needle", limit=1_000))
    [(100, 506)]
    """
    start = stop = 0
    for first, end in matches(text, find):
        if stop and first - _CONTEXT > stop:
            yield start, stop
            stop = 0
        start = start if stop else max(0, first - _CONTEXT)
        stop = min(len(text), end + _CONTEXT)
        if stop - start > limit:
            break
    if stop:
        yield start, stop


def _growth(text: str, folded: str) -> tuple[list[int], list[int]]:
    """Where in a folded text the characters begin that are several there, and by how many it grew through each."""
    grown: list[int] = []
    extra: list[int] = []
    if len(folded) > len(text):
        sum_ = 0
        for found in _GROWING.finditer(text):
            grown.append(found.start() + sum_)
            sum_ += len(found[0].casefold()) - 1
            extra.append(sum_)
    return grown, extra


def _unfolded(position: int, grown: list[int], extra: list[int]) -> int:
    """Which character of a text the one at a place of the folded text comes from."""
    last = bisect_right(grown, position) - 1
    if last < 0:
        return position
    before = extra[last - 1] if last else 0
    return max(grown[last] - before, position - extra[last])

"""Finds a text inside longer texts, ignoring case, and cuts the excerpts around each match."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from convstore.index.texts import windows_of
from convstore.index.words import is_common, language_of, query_groups, terms
from convstore.messages.text import fold

_CONTEXT = 200
_SEARCHED_FOR_WORDS = 200_000
"""Maximum characters that are searched for words; their forms take a second for three million."""


_GROWING = re.compile(
    "["
    + "".join(
        sign
        for sign in map(chr, (*range(0xDF, 0x2000), *range(0xFB00, 0xFB18)))
        if len(sign.casefold()) > 1 and sign != "İ"
    )
    + "]"
)
"""Matches characters that become several under case folding, such as the German sharp s."""


def matches(text: str, find: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text that match another under Unicode's full case folding, in linear time.

    >>> list(matches("Maße, MASSE, masse", "mASSe"))
    [(0, 4), (6, 11), (13, 18)]
    """
    folded, wanted = fold(text), fold(find)
    grown, extra = _growth(text, folded)
    position = folded.find(wanted) if wanted else -1
    while position >= 0:
        yield _unfolded(position, grown, extra), _unfolded(position + len(wanted) - 1, grown, extra) + 1
        position = folded.find(wanted, position + len(wanted))


def snippets(text: str, find: str, *, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text around the matches of another, ignoring case; adjacent ranges are joined.

    The iteration stops after the first range longer than `limit`, because no page shows it whole.

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


def windows_with_words(texts: Sequence[str], find: str, *, limit: int) -> list[tuple[int, int, int]]:
    """Return the windows with most words of a query, in any form: index of the text, start and end, best first.

    >>> windows_with_words(["Whales sing.", "A seal and a whale."], "seals whale", limit=1)
    [(1, 0, 19)]
    """
    groups = query_groups(find)
    groups = [group for group in groups if not is_common(group)] or groups
    found: list[tuple[int, int, int, int]] = []
    room = _SEARCHED_FOR_WORDS
    for index, text in enumerate(texts):
        language = language_of(text)
        for start, end in windows_of(text[:room]):
            words = set(terms(text[start:end], language))
            score = sum(not words.isdisjoint(group) for group in groups)
            found += [(-score, index, start, end)] if score else []
        room = max(0, room - len(text))
    best = min(found, default=(0,))[0]
    return [window[1:] for window in sorted(found)[:limit] if 2 * window[0] <= best]


def _growth(text: str, folded: str) -> tuple[list[int], list[int]]:
    """Return the start of each expanded character in the folded text, and the total growth up to it."""
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
    """Map a position in the folded text to the character of the original text it comes from."""
    last = bisect_right(grown, position) - 1
    if last < 0:
        return position
    before = extra[last - 1] if last else 0
    return max(grown[last] - before, position - extra[last])

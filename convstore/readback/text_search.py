"""Finds a text inside longer texts, ignoring case, and cuts the excerpts around each match."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from convstore.index.texts import windows_of
from convstore.index.words import is_common, language_of, query_groups, terms
from convstore.messages.text import fold

_CONTEXT = 200
_SEARCHED_FOR_WORDS = 200_000
"""Maximum characters that are searched for words; their forms take a second for three million."""


def matches(text: str, find: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text that match another under Unicode's full case folding, in linear time.

    >>> list(matches("Maße, MASSE, masse", "mASSe"))
    [(0, 4), (6, 11), (13, 18)]
    """
    folded = fold(text)
    wanted = fold(find)
    # Some characters become several, such as the German sharp s: where each one ends in the folded text.
    ends: Sequence[int] = range(1, len(text) + 1)
    if len(folded) > len(text):
        ends = list(accumulate(len(fold(sign)) for sign in text))
    position = folded.find(wanted) if wanted else -1
    while position >= 0:
        after = position + len(wanted)
        yield bisect_right(ends, position), bisect_left(ends, after) + 1
        position = folded.find(wanted, after)


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


def windows_with_words(
    texts: Sequence[str], find: str, *, limit: int
) -> list[tuple[int, int, int]]:
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

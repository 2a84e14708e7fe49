"""Join, subtract and search ranges of integers such as ordinals, given as pairs of the first and the last number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

Pair = tuple[int, int]
_first = itemgetter(0)


def merge_ranges(pairs: Iterable[Pair]) -> list[Pair]:
    """Sort ranges and merge those that touch or overlap; empty ones are dropped.

    >>> merge_ranges([(5, 6), (1, 2), (3, 4), (9, 8)])
    [(1, 6)]
    """
    found: list[Pair] = []
    for first, last in sorted(pair for pair in pairs if pair[1] >= pair[0]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def without(pairs: Iterable[Pair], others: Sequence[Pair]) -> list[Pair]:
    """Subtract other ranges, which must be in order, from ranges.

    >>> without([(1, 10)], [(3, 4), (10, 12)])
    [(1, 2), (5, 9)]
    """
    rest: list[Pair] = []
    for first, last in pairs:
        start = first
        for low, high in others:
            if low <= last and high >= start:
                rest.append((start, low - 1))
                start = high + 1
        rest.append((start, last))
    return [pair for pair in rest if pair[1] >= pair[0]]


def has(pairs: Sequence[Sequence[int]], number: int) -> bool:
    """Return True if a number is in one of some ranges, which must be in order and not overlap.

    >>> [has([(2, 3), (7, 7)], number) for number in (1, 3, 4, 7, 8)]
    [False, True, False, True, False]
    """
    index = bisect_right(pairs, number, key=_first)
    return index > 0 and pairs[index - 1][1] >= number

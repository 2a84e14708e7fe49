"""Says how many of the oldest parts leave a view for want of room, in large steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def leaving(sizes: Sequence[int], gap: int, portion: int) -> int:
    """Return how many of the oldest parts leave, so that the others take at most `gap`.

    They leave in portions, counted from the first part: so the same parts leave while later ones are added.

    >>> leaving([30, 30, 30], 90, 50), leaving([30, 30, 30, 30], 90, 50), leaving([30, 30, 30, 30, 30], 90, 50)
    (0, 2, 2)
    """
    total = sum(sizes)
    if total <= gap:
        return 0
    for index, (before, after) in enumerate(pairwise(accumulate(sizes, initial=0)), 1):
        if after // portion > before // portion and total - after <= gap:
            return index
    return len(sizes)

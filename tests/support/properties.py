"""Numbers of examples of property tests: half of what they ask for in CI, fewer elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

FEWEST = 2

STRIDE = 1 if settings().max_examples >= 50 else 15
"""Tests that go through all cases of a kind take each of them in CI, and one in so many elsewhere."""


_SOAK = [pytest.mark.slow, pytest.mark.soak]


def examples(count: int, **options: Any) -> settings:
    """Return settings with `count` examples, scaled as the profile in use scales Hypothesis' default of 100."""
    share = count * settings().max_examples // 100
    return settings(max_examples=min(count, max(share, FEWEST)), **options)


def soaked(cases: Iterable[Any], *, first: int) -> list[Any]:
    """Return cases that differ in their seed alone: the first ones run in `.ci/run`, the others with `-m soak`."""
    return [
        case if number < first else pytest.param(case, marks=_SOAK)
        for number, case in enumerate(cases)
    ]


def parts(count: int) -> list[Any]:
    """Return slices that share out the cases of one test: the first runs in `.ci/run`, the others with `-m soak`."""
    return [
        pytest.param(
            slice(number, None, count),
            id=f"part {number + 1} of {count}",
            marks=_SOAK if number else (),
        )
        for number in range(count)
    ]


def sampled(cases: Iterable[Any], *, every: int = 5) -> list[Any]:
    """Return all cases for a parametrisation: one in `every` runs each time, the others with `-m slow`."""
    return [
        case if number % every == 0 else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]

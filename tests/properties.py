"""How many examples a property test tries: as many as it asks for in CI, fewer where somebody waits."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

FEWEST = 4

STRIDE = max(1, 100 // settings().max_examples)
"""Tests that go through all cases of a kind take each of them in CI, and one in so many elsewhere."""


def examples(count: int, **options: Any) -> settings:
    """Return settings with `count` examples, scaled as the profile in use scales Hypothesis' default of 100."""
    share = count * settings().max_examples // 100
    return settings(max_examples=min(count, max(share, FEWEST)), **options)

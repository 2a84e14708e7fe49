"""One test for many small cases: pytest and its workers need longer for a case of their own than most of these take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import Any

import pytest

_WITH_MARKS = type(pytest.param())


def each_case(
    names: str | Sequence[str], cases: Iterable[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test without fixtures for each case, as `pytest.mark.parametrize` does; an error names its case."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = list(cases)
    if any(isinstance(case, _WITH_MARKS) for case in cases):
        raise TypeError("a case with an id or marks needs pytest.mark.parametrize")
    given = [dict(zip(keys, case if len(keys) > 1 else (case,), strict=True)) for case in cases]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def run() -> None:
            for number, values in enumerate(given):
                try:
                    test(**values)
                except Exception as error:
                    error.add_note(f"in case {number}: {values!r}")
                    raise

        async def run_async() -> None:
            for number, values in enumerate(given):
                try:
                    await test(**values)
                except Exception as error:
                    error.add_note(f"in case {number}: {values!r}")
                    raise

        made = run_async if iscoroutinefunction(test) else run
        made.__name__, made.__doc__, made.__module__ = test.__name__, test.__doc__, test.__module__
        return made

    return decorate

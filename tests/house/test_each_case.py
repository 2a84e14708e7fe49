"""A test that loops over its cases runs each, and names the one that fails."""

from __future__ import annotations

import pytest
from cases import each_case


async def test_a_failure_names_its_case() -> None:
    """Cases before it have run, with one parameter or several, in tests that await too."""
    ran = []

    @each_case("number, name", [(1, "a"), (2, "b"), (3, "c")])
    def test(number: int, name: str) -> None:
        ran.append(name)
        assert number < 2

    @each_case("number", [1, 2])
    async def test_async(number: int) -> None:
        ran.append(str(number))
        assert number < 2

    with pytest.raises(AssertionError) as caught:
        test()
    assert caught.value.__notes__ == ["in case 1: {'number': 2, 'name': 'b'}"]
    with pytest.raises(AssertionError) as caught:
        await test_async()
    assert caught.value.__notes__ == ["in case 1: {'number': 2}"]
    assert ran == ["a", "b", "1", "2"]

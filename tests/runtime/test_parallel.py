"""What is awaited at once has ended when its error is raised, and comes back in order."""

from __future__ import annotations

import asyncio

import pytest

from convstore.mongo.parallel import in_parallel, together


async def test_results_come_in_order() -> None:
    """Whichever ends first, of any number, with a limit too."""

    async def late(text: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return text

    async def double(number: int) -> int:
        await asyncio.sleep(0.01 / number)
        return 2 * number

    assert await together(late("a", 0.01), late("b", 0)) == ("a", "b")
    assert await together() == ()
    assert await in_parallel(double, range(1, 20), limit=3) == [*range(2, 40, 2)]


async def test_an_error_is_raised_when_all_have_ended() -> None:
    """The first one in order, whenever it came."""
    ended = list[str]()

    async def end(text: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(text)
        if text != "fine":
            raise ValueError(text)

    with pytest.raises(ValueError, match="late"):
        await together(end("late", 0.01), end("early", 0), end("fine", 0.02))
    assert ended == ["early", "late", "fine"]

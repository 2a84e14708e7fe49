"""Write after the end of the log, and again as long as other writers move it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from convstore.append.condition import TailMoved
from convstore.runtime.retrying import Attempts

_Result = TypeVar("_Result")


async def until_written(write: Callable[[], Awaitable[_Result]]) -> _Result:
    """Write, and write again as long as other writers moved the end of the log."""
    attempts = Attempts()
    while True:
        try:
            return await write()
        except TailMoved:
            await attempts.back_off()

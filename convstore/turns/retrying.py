"""Write after the end of the log, and again as long as other writers move it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from convstore.append.condition import TailMoved
from convstore.exceptions import StoreError
from convstore.runtime.clock import pause

_Result = TypeVar("_Result")
_TRIES = 100


async def until_written(write: Callable[[], Awaitable[_Result]]) -> _Result:
    """Write, and write again as long as other writers moved the end of the log."""
    for tries in range(_TRIES):
        try:
            return await write()
        except TailMoved:
            await pause(tries)
    raise StoreError(f"other writers were faster {_TRIES} times; call again")

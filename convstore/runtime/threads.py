"""Move long work to a thread, so that it does not block the event loop.

Floor 3; the log reader, loader and writer call it. Python switches threads every few milliseconds, unless a single C
call takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from convstore.log.entry import EntryMessage

__all__ = ["characters_of", "run_in_thread_if_long"]

_Result = TypeVar("_Result")

_LONG = 200_000
"""Characters that take about 10 ms to decode in the worst case, nested JSON; plain text takes a twentieth of that."""

_PER_MESSAGE = 500
"""Cost of a message in addition to its text, in characters."""


async def run_in_thread_if_long(work: Callable[[], _Result], *, characters: int) -> _Result:
    """Return the result of the work, which runs in a thread if it is long."""
    return await asyncio.to_thread(work) if characters > _LONG else work()


def characters_of(messages: Iterable[EntryMessage], payloads: Mapping[str, str]) -> int:
    """Estimate the text to decode in messages and their payloads, for `run_in_thread_if_long`."""
    return sum(map(len, payloads.values())) + sum(_PER_MESSAGE + len(message.body) for message in messages)

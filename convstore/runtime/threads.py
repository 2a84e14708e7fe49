"""Moves long work to a thread, so that it does not hold up the other tasks of the event loop.

Layer 4. In a thread Python lets others have their turn every few milliseconds, unless one call of C takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from convstore.log.entry import EntryMessage

__all__ = ["characters_of", "run_in_thread_if_long"]

_Result = TypeVar("_Result")

_LONG = 200_000
"""Characters that take about 10 ms to decode at worst, which is nested JSON; as many in one text take a twentieth."""

_PER_MESSAGE = 500
"""What a message takes beside its characters."""


async def run_in_thread_if_long(work: Callable[[], _Result], *, characters: int) -> _Result:
    """What the work gives: done at once if it is short, else in a thread."""
    return await asyncio.to_thread(work) if characters > _LONG else work()


def characters_of(messages: Iterable[EntryMessage], payloads: Mapping[str, str]) -> int:
    """How much text there is to decode in messages and their payloads; `run_in_thread_if_long` decides by it."""
    return sum(map(len, payloads.values())) + sum(_PER_MESSAGE + len(message.body) for message in messages)

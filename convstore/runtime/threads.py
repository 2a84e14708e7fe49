"""Keep the event loop responsive: long work runs in a thread, and shorter work of many tasks runs one by one.

Python switches threads every few milliseconds, unless a single C call takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage

from convstore.log.entry import Entry, EntryMessage

_Result = TypeVar("_Result")

_LONG = 200_000
"""Characters that take about 10 ms to decode in the worst case, nested JSON; plain text takes a twentieth of that."""

_NOTICEABLE = 2_000
"""Characters that take some tenths of a millisecond, which is noticeable if many users do so at once."""

_gates = WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()

PER_MESSAGE = 500
_PER_VALUE = 20
"""Cost of a message, and of a value in it, in addition to its text, in characters."""

_TEXTS = (str, bytes)
_CONTAINERS = (dict, list, tuple)


async def run_in_thread_if_long(work: Callable[[], _Result], *, characters: int) -> _Result:
    """Return the result of the work, which runs in a thread if it is long.

    After noticeable work the event loop runs everything else that is ready before it begins further such work.
    """
    if characters > _LONG:
        return await asyncio.to_thread(work)
    if characters > _NOTICEABLE:
        loop = asyncio.get_running_loop()
        gate = _gates.get(loop) or _gates.setdefault(loop, asyncio.Lock())
        await gate.acquire()
        loop.call_soon(gate.release)
    return work()


def characters_of(messages: Iterable[EntryMessage], payloads: Mapping[str, str]) -> int:
    """Estimate the text to decode in messages and their payloads, for `run_in_thread_if_long`."""
    bodies = [PER_MESSAGE + len(message.body) for message in messages]
    return sum(map(len, payloads.values())) + sum(bodies)


def payload_characters(entry: Entry) -> int:
    """Return the characters of the payloads of an entry's messages."""
    return sum(message.payload.ends[-1] for message in entry.messages if message.payload)


def characters_in(messages: Sequence[BaseMessage]) -> int:
    """Estimate the text to encode in messages, for `run_in_thread_if_long`; stops once that is long."""
    characters = 0
    todo = list[Any](message.__dict__ for message in messages)
    while todo and characters <= _LONG:
        value = todo.pop()
        children = value.values() if isinstance(value, dict) else value[:_LONG]
        characters += _PER_VALUE * len(children)
        for child in children:
            if isinstance(child, _TEXTS):
                characters += len(child)
            elif isinstance(child, _CONTAINERS):
                if child:
                    todo.append(child)
            elif issubclass(type(child), Document):
                # attributes of other objects are not read: a property may raise
                todo.append(child.__dict__)
    return characters

"""Overhead of the store above the bare driver: paired appends and loads on a private real MongoDB.

Run: ``python benchmarks/append_and_load.py [TURNS]``. The floor writes each turn as one plain document and reads the
last documents back, with the same write concern and no safety: no order, no idempotency, no stubs, no LangChain
objects. Both sides alternate in one run, so that load on the machine affects both; medians and ratios are printed.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pymongo import AsyncMongoClient, WriteConcern

from convstore import ConversationStore
from convstore.devserver import DevServer
from convstore.testing import rag_turn

_LAST_TURNS = 13


async def _milliseconds(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def _measure(client: AsyncMongoClient[dict[str, Any]], turns: int) -> dict[str, list[float]]:
    store = ConversationStore(client["benchmark"])
    await store.setup()
    chat = store.conversation(user_id="bench", thread_id="one")
    floor = client["benchmark"].get_collection("floor", write_concern=WriteConcern("majority", j=True))
    taken: dict[str, list[float]] = {name: [] for name in ("append", "append floor", "load", "load floor")}

    async def load_floor() -> None:
        last = floor.find({}, {"messages.artifact": 0, "messages.content": 0}).sort("_id", -1).limit(_LAST_TURNS)
        await last.to_list(None)

    for number in range(turns):
        turn = rag_turn(f"What about topic {number}?", sources=10, words=200)
        plain = {"_id": number, "messages": [message.model_dump() for message in turn]}
        taken["append"].append(await _milliseconds(partial(chat.append, turn)))
        taken["append floor"].append(await _milliseconds(partial(floor.insert_one, plain)))
        taken["load"].append(await _milliseconds(chat.load_history))
        taken["load floor"].append(await _milliseconds(load_floor))
    return taken


async def main(turns: int) -> None:
    """Measure and print."""
    async with DevServer() as server, AsyncMongoClient[dict[str, Any]](server.uri) as client:
        taken = await _measure(client, turns)
    late = {name: figures[len(figures) // 2 :] for name, figures in taken.items()}
    median = {name: statistics.median(figures) for name, figures in late.items()}
    print(f"{turns} turns of 4 messages with 10 sources; medians of the second half, milliseconds")
    for name in ("append", "load"):
        ratio = median[name] / median[f"{name} floor"]
        print(f"{name:8} {median[name]:7.2f}   floor {median[f'{name} floor']:7.2f}   ratio {ratio:5.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 300))

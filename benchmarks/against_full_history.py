"""Cost of the next model call with a full history and with convstore: tokens, bytes read, milliseconds.

Run: ``python benchmarks/against_full_history.py [TURNS ...]``, on a private real MongoDB. A turn is a question, a call,
a tool result with ten passages and an answer. The full history keeps one document for each message, as chat histories
do, and loads all of them, with tool results in content and artifact. Both are loaded alternately at the same point,
after a new question; medians of seven loads. Passages are random words, so that compression gains little.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import bson
from langchain_core.messages import (
    BaseMessage,
    HumanMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from pymongo import AsyncMongoClient, monitoring

from convstore import ConversationStore
from convstore.devserver import DevServer
from convstore.messages.tokens import approximate_tokens
from convstore.testing import rag_turn

_LOADS = 7
_SYLLABLES = [
    "ka",
    "ro",
    "mi",
    "te",
    "lun",
    "sar",
    "vo",
    "pel",
    "dri",
    "nu",
    "ash",
    "gol",
    "fen",
    "wy",
    "tor",
]


class Cost(NamedTuple):
    """Cost of one load."""

    tokens: int
    bytes: int
    milliseconds: float


class _Received(monitoring.CommandListener):
    """Adds up the replies of the server."""

    total = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Ignore the start; no reply has arrived."""

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Count the reply."""
        self.total += len(
            bson.encode({key: value for key, value in event.reply.items() if key[0] != "$"})
        )

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Ignore a failure; it has no reply."""


def _turn(number: int, dice: random.Random) -> list[BaseMessage]:
    """Return a turn with passages of random words."""
    turn = rag_turn(f"What about topic {number}?", sources=10, words=1)
    words = ["".join(dice.choices(_SYLLABLES, k=dice.randint(1, 4))) for _ in range(1_500)]
    passages = [" ".join(dice.choices(words, k=150)) for _ in range(10)]
    [result] = [message for message in turn if isinstance(message, ToolMessage)]
    result.content = "\n\n".join(passages)
    result.artifact = [
        (passage, {"title": f"Passage {place}"}) for place, passage in enumerate(passages)
    ]
    return turn


async def _cost(load: Callable[[], Awaitable[list[BaseMessage]]], received: _Received) -> Cost:
    received.total = 0
    started = time.perf_counter()
    messages = await load()
    return Cost(
        approximate_tokens(messages), received.total, (time.perf_counter() - started) * 1000
    )


async def _measure(
    client: AsyncMongoClient[dict[str, Any]], received: _Received, turns: int
) -> list[Cost]:
    dice = random.Random(turns)  # noqa: S311 - text to fill passages
    database = client[f"full_{turns}"]
    store = ConversationStore(database)
    await store.setup()
    chat, full = store.conversation(user_id="bench", thread_id="one"), database["full"]
    await full.create_index("session")

    async def append(messages: list[BaseMessage]) -> None:
        await chat.append(messages)
        await full.insert_many(
            [{"session": "one", "message": message_to_dict(message)} for message in messages]
        )

    for number in range(turns):
        await append(_turn(number, dice))
    await append([HumanMessage("And what was the first one about?")])

    async def load_full() -> list[BaseMessage]:
        found = await full.find({"session": "one"}).sort("_id", 1).to_list(None)
        return messages_from_dict([document["message"] for document in found])

    async def load_view() -> list[BaseMessage]:
        return (await chat.load_history()).messages

    taken: list[list[Cost]] = [[], []]
    for _ in range(_LOADS):
        for loads, load in zip(taken, (load_full, load_view), strict=True):
            loads.append(await _cost(load, received))
    return [
        Cost(
            loads[0].tokens, loads[-1].bytes, statistics.median(cost.milliseconds for cost in loads)
        )
        for loads in taken
    ]


async def main(sizes: list[int]) -> None:
    """Measure and print a table."""
    received = _Received()
    async with (
        DevServer() as server,
        AsyncMongoClient[dict[str, Any]](server.uri, event_listeners=[received]) as client,
    ):
        print("turns              tokens           bytes  milliseconds")
        for turns in sizes:
            full, view = await _measure(client, received, turns)
            print(f"{turns:5}  full   {full.tokens:10,} {full.bytes:15,} {full.milliseconds:13.1f}")
            print(f"       view   {view.tokens:10,} {view.bytes:15,} {view.milliseconds:13.1f}")


if __name__ == "__main__":
    asyncio.run(main([int(size) for size in sys.argv[1:]] or [1, 10, 40, 200]))

"""What does the index cost by which the log can be sharded, and what would another one cost?

Run: ``python benchmarks/shard_key.py [--turns 5000] [--rounds 10]``, on a private real MongoDB (Linux). There is a
conversation for each index, and their calls take turns, so a busy machine disturbs each alike. Times are medians of
the client's; the processor time is the server's, of all its threads.

- ``none``: as `setup` leaves it.
- ``conversation, _id``: as ``convstore migrate --sharded`` makes it.
- ``conversation``: as ``shardCollection`` makes it by itself where the log is empty. Do not do that.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient

from convstore import ConversationStore
from convstore.devserver import DevServer
from convstore.mongo.driver import Driver
from convstore.mongo.keys import state_id
from convstore.mongo.states import States
from convstore.mongo.turn_leases import TurnLease, TurnLeases

INDEXES: dict[str, list[tuple[str, int]]] = {
    "none": [],
    "conversation, _id": [("conversation", 1), ("_id", 1)],
    "conversation": [("conversation", 1)],
}
_CALLS_A_ROUND = 50
_TICKS_A_SECOND = 100
_AT = datetime(2026, 1, 1, tzinfo=UTC)

Call = Callable[[], Awaitable[Any]]


class Subject:
    """One conversation in a database of its own."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.store = ConversationStore(database, search_index=False)
        self.chat = self.store.conversation(user_id="ada", thread_id="t")
        driver = Driver(database)
        self.states = States(driver)
        self.leases = TurnLeases(driver)

    async def prepare(self, index: list[tuple[str, int]], turns: int) -> None:
        """Create the index and fill the conversation."""
        await self.store.setup()
        if index:
            await self.database["log"].create_index(index)
        for _ in range(turns):
            await self.append()
        await self.chat.load_history()
        self.id = (await self.chat.info()).conversation_id

    async def append(self) -> None:
        """Append a turn of 600 characters."""
        await self.chat.append([HumanMessage("What of the tide?"), AIMessage("So and so. " * 50)])

    async def take_lease(self) -> None:
        """Take the lease of a turn, for no time."""
        lease = TurnLease("turn", "owner", _AT, is_stopping=False)
        await self.leases.take(self.id, lease, time=timedelta(0))

    def calls(self) -> dict[str, Call]:
        """Return the calls that are measured, by name."""
        return {
            "append": self.append,
            "warm load": self.chat.load_history,
            "state read": lambda: self.states.find(self.id),
            "lease": self.take_lease,
        }

    async def examined(self) -> int:
        """Return how many keys and documents a read of the state examines."""
        query = {"_id": state_id(self.id), "conversation": self.id}
        found = (await self.database["log"].find(query).explain())["executionStats"]
        return int(found["totalKeysExamined"]) + int(found["totalDocsExamined"])


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


async def measure(uri: str, pid: int, *, turns: int, rounds: int) -> None:
    """Print a line for each call and index."""
    times, processor = (
        defaultdict[tuple[str, str], list[float]](list),
        defaultdict[tuple[str, str], float](float),
    )
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        subjects = {
            name: Subject(client[f"shard_key_{number}"]) for number, name in enumerate(INDEXES)
        }
        for name, subject in subjects.items():
            await subject.prepare(INDEXES[name], turns)
        for number in range(rounds):
            first = number % len(subjects)  # no index is always the first of a round
            for name in [*subjects][first:] + [*subjects][:first]:
                for title, call in subjects[name].calls().items():
                    await call()
                    before = processor_seconds(pid)
                    for _ in range(_CALLS_A_ROUND):
                        start = time.perf_counter()
                        await call()
                        times[title, name].append(time.perf_counter() - start)
                    processor[title, name] += processor_seconds(pid) - before
        print("| call | index | median | processor of the server |\n|---|---|---|---|")
        for (title, name), seconds in sorted(times.items(), key=lambda item: item[0][0]):
            each = processor[title, name] / len(seconds)
            print(
                f"| {title} | {name} | {statistics.median(seconds) * 1_000:.2f} ms | {each * 1_000:.2f} ms |"
            )
        for name, subject in subjects.items():
            stats = await subject.database.command("collStats", "log")
            indexes = stats["totalIndexSize"] / 1_000
            sizes = f"{indexes:,.0f} KB of indexes, {stats['storageSize'] / 1_000:,.0f} KB of log"
            print(
                f"{name}: a state read examines {await subject.examined()} keys and documents; {sizes}"
            )


def main() -> None:
    """Measure on a private server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5_000, help="turns in each conversation")
    parser.add_argument("--rounds", type=int, default=10, help=f"rounds of {_CALLS_A_ROUND} calls")
    given = parser.parse_args()
    with DevServer() as server:
        asyncio.run(
            measure(server.uri, server.primary().pid, turns=given.turns, rounds=given.rounds)
        )


if __name__ == "__main__":
    main()

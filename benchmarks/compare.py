"""Compare convstore with the other conversation stores that are installed: time and bytes against length.

Run: ``python benchmarks/compare.py [--turns 10 100 1000] [--chart FILE]``, on a private real MongoDB, in minutes. A
turn is a question, a call, a result with ten passages of 2 KB and an answer. One conversation in each store grows turn
by turn; at each length the stores alternate in appending a turn, in loading what the next model call needs and in
reading one old tool result by its id. Medians are printed, and the bytes that the server sends for a load.

The floor is the bare driver without any promise: one document for each turn, the last 50 turns without their results. A
store that needs more than a minute to grow to a length is left out from there on, and one that refuses a turn as well.

A store takes part if its package is installed. Two of them pin other versions than the rest: for pydantic-ai-harness
run ``pip install --no-deps pydantic-ai-harness json-repair`` beside the extra ``frameworks``; google-adk and
google-adk-community need an environment with this library alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from charts import line_charts
from compare_frameworks import (
    AdkSessions,
    AgentsSession,
    ConvstoreAgentsSession,
    ConvstorePydantic,
    PydanticStepStore,
)
from compare_stores import Convstore, Floor, LangChainHistory, LangGraphSaver, Place, Store
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import AsyncMongoClient, MongoClient

from convstore.devserver import DevServer

MEASURES = {"append": "ms", "load": "ms", "one result by id": "ms", "bytes of a load": "KB"}

_SAMPLES = 15
_FILL_SECONDS = 60.0
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


class Run:
    """Stores of the same growing conversation, and the figures measured so far.

    Attributes:
        figures: By measure, store and number of turns.
        turns: The turns that were made so far.
    """

    def __init__(self, uri: str, stores: Sequence[Store]) -> None:
        self.figures: dict[str, dict[str, dict[int, float]]] = {measure: {} for measure in MEASURES}
        self._server: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._stores, self._dice = list(stores), random.Random(7)  # noqa: S311 - text, and an order
        self.turns: list[list[BaseMessage]] = []
        self._length = {store.name: 0 for store in stores}

    async def measure(self, turns: int) -> None:
        """Grow every conversation to a number of turns, then measure."""
        while len(self.turns) < turns + _SAMPLES:
            self.turns.append(_turn(len(self.turns), self._dice))
        for store in [*self._stores]:
            if not await self._grow(store, turns):
                self._stores.remove(store)
        for store in self._stores:
            await self._measure_bytes(store, turns)
        await self._alternate("load", turns, lambda store, _: store.load())
        await self._alternate(
            "one result by id", turns, lambda store, n: store.result(self.turns[n * 7 % turns])
        )
        await self._alternate("append", turns, self._append_next)

    async def _append_next(self, store: Store, _: int) -> None:
        await store.append(self.turns[self._length[store.name]])
        self._length[store.name] += 1

    async def _grow(self, store: Store, turns: int) -> bool:
        """Return False if a store refuses a turn or takes too long."""
        started = time.perf_counter()
        while self._length[store.name] < turns:
            try:
                await self._append_next(store, 0)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, it is out
                print(
                    f"{store.name} refuses turn {self._length[store.name]}: {type(error).__name__}"
                )
                return False
            if time.perf_counter() - started > _FILL_SECONDS:
                print(f"{store.name} has not grown to {turns} turns in {_FILL_SECONDS:.0f} s")
                return False
        return True

    async def _alternate(self, measure: str, turns: int, work: Any) -> None:
        taken: dict[str, list[float]] = {store.name: [] for store in self._stores}
        for number in range(_SAMPLES):
            for store in self._dice.sample(self._stores, len(self._stores)):
                started = time.perf_counter()
                await work(store, number)
                taken[store.name].append((time.perf_counter() - started) * 1000)
        for name, times in taken.items():
            self.figures[measure].setdefault(name, {})[turns] = statistics.median(times)

    async def _measure_bytes(self, store: Store, turns: int) -> None:
        await store.load()
        own = self._sent() - self._sent()
        before = self._sent()
        await store.load()
        sent = self._sent() - before + own
        self.figures["bytes of a load"].setdefault(store.name, {})[turns] = max(sent, 1) / 1000

    def _sent(self) -> int:
        status = self._server.admin.command(
            {"serverStatus": 1, "repl": 0, "metrics": 0, "wiredTiger": 0, "locks": 0}
        )
        return int(status["network"]["bytesOut"])

    def close(self) -> None:
        """Close the connection that reads the server's counters."""
        self._server.close()


def _turn(number: int, dice: random.Random) -> list[BaseMessage]:
    words = ["".join(dice.choices(_SYLLABLES, k=dice.randint(1, 4))) for _ in range(1_500)]
    passages = [" ".join(dice.choices(words, k=310)) for _ in range(10)]
    call = {
        "name": "search",
        "args": {"query": " ".join(dice.choices(words, k=8))},
        "id": f"call-{number}",
    }
    content = "\n\n".join(f"[{place}] {passage}" for place, passage in enumerate(passages, 1))
    return [
        HumanMessage(" ".join(dice.choices(words, k=60)), id=f"q{number}"),
        AIMessage("", id=f"c{number}", tool_calls=[call]),
        ToolMessage(content, id=f"r{number}", name="search", tool_call_id=f"call-{number}"),
        AIMessage(" ".join(dice.choices(words, k=150)), id=f"a{number}"),
    ]


_OTHERS: dict[str, tuple[type[Store], ...]] = {
    "openai-agents": (AgentsSession, ConvstoreAgentsSession),
    "pydantic-ai-harness": (PydanticStepStore, ConvstorePydantic),
    "google-adk": (AdkSessions,),
    "langchain-mongodb": (LangChainHistory,),
    "langgraph-checkpoint-mongodb": (LangGraphSaver,),
}
"""What is measured if a package is installed: its store, and this library's for it."""


def _is_installed(distribution: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(distribution))
    print(f"not measured, as it is not installed: {distribution}", file=sys.stderr)
    return False


@contextlib.asynccontextmanager
async def opened(uri: str, database: str = "compare") -> AsyncIterator[list[Store]]:
    """Give the stores whose packages are installed."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        found = (
            store
            for package, stores in _OTHERS.items()
            if _is_installed(package)
            for store in stores
        )
        kinds: list[type[Store]] = [Convstore, Floor, *found]
        stores = [kind() for kind in kinds]
        for store in stores:
            await store.open(Place(client, uri, database))
        yield stores
        for store in stores:
            await store.close()


def table(figures: dict[str, dict[str, dict[int, float]]], lengths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the tables, one for each measure."""
    for measure, unit in MEASURES.items():
        yield f"\n{f'{measure}, {unit}':32}" + "".join(
            f"{f'{turns:,} turns':>14}" for turns in lengths
        )
        for name, by_length in figures[measure].items():
            shown = (
                f"{by_length[turns]:14,.1f}" if turns in by_length else f"{'-':>14}"
                for turns in lengths
            )
            yield f"{name:32}" + "".join(shown)


async def measure(lengths: Sequence[int]) -> dict[str, dict[str, dict[int, float]]]:
    """Measure all installed stores at some lengths."""
    async with DevServer() as server, opened(server.uri) as stores:
        run = Run(server.uri, stores)
        for turns in lengths:
            await run.measure(turns)
        run.close()
    return run.figures


def main() -> None:
    """Measure, print the tables and write the chart."""
    parser = argparse.ArgumentParser(description="How do time and bytes grow with a conversation?")
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--chart", type=Path, help="SVG file to write")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.turns))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    machine += f", {datetime.now(UTC):%B %Y}"
    print(f"medians of {_SAMPLES}; a turn is 4 messages and 25 KB; {machine}")
    print("\n".join(table(figures, options.turns)))
    if options.chart:
        panels = {f"{name}, {unit}": figures[name] for name, unit in MEASURES.items()}
        options.chart.write_text(
            line_charts(f"Against the number of turns; {machine}", panels), "utf-8"
        )


if __name__ == "__main__":
    main()

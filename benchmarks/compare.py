"""Compare convstore with the other conversation stores that are installed: time and bytes against length.

Run: ``python benchmarks/compare.py [--turns 10 100 1000] [--chart FILE]``, on a private real MongoDB, in minutes. A
turn is a question, a call, a result with ten passages of 2 KB and an answer. One conversation in each store grows turn
by turn; at each length the stores alternate in appending a turn, in loading what the next model call needs and in
reading one old tool result by its id. Medians are printed, and the bytes that the server sends for a load.

The floor is the bare driver without any promise: one document for each turn, the last 50 turns without their results. A
store that needs more than a minute to grow to a length is left out from there on, and one that refuses a turn as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import importlib.metadata
import os
import platform
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from charts import line_charts
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from typing_extensions import TypedDict

from convstore import Conversation, ConversationStore
from convstore.devserver import DevServer

MEASURES = {"append": "ms", "load": "ms", "one result by id": "ms", "bytes of a load": "KB"}

_SAMPLES = 15
_FILL_SECONDS = 60.0
_LAST_TURNS = 50
_SYLLABLES = ["ka", "ro", "mi", "te", "lun", "sar", "vo", "pel", "dri", "nu", "ash", "gol", "fen", "wy", "tor"]


class Store(ABC):
    """A store with one conversation."""

    name: str

    @abstractmethod
    async def append(self, turn: list[BaseMessage]) -> None:
        """Store the messages of a turn."""

    @abstractmethod
    async def load(self) -> Sequence[Any]:
        """Return the messages for the next model call."""

    @abstractmethod
    async def result(self, turn: list[BaseMessage]) -> str:
        """Return the content of the tool result of a turn."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what the store opened."""


class Convstore(Store):
    """This library, with its defaults."""

    name = "convstore"

    async def open(self, client: AsyncMongoClient[dict[str, Any]], database: str) -> None:
        """Set the store up."""
        store = ConversationStore(client[f"{database}_convstore"])
        await store.setup()
        self._chat = store.conversation(user_id="bench", thread_id="one")

    async def append(self, turn: list[BaseMessage]) -> None:
        """Append a turn."""
        await self._chat.append(turn)

    async def load(self) -> Sequence[Any]:
        """Load the view."""
        return (await self._chat.load_history()).messages

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one tool message."""
        [record] = await self._chat.get_tool_messages([str(turn[2].id)])
        return str(record.content)


class Floor(Store):
    """The bare driver: no order between writers, no idempotency, no checks."""

    name = "floor (bare driver)"

    async def open(self, client: AsyncMongoClient[dict[str, Any]], database: str) -> None:
        """Create the index by result."""
        majority = WriteConcern("majority", j=True)
        self._turns = client[f"{database}_floor"].get_collection("turns", write_concern=majority)
        await self._turns.create_index("call")
        self._count = 0

    async def append(self, turn: list[BaseMessage]) -> None:
        """Insert one document, the result beside the other messages."""
        self._count += 1
        result, others = turn[2], [message_to_dict(message) for message in turn if not isinstance(message, ToolMessage)]
        call, content = result.id, {"result": message_to_dict(result)}
        await self._turns.insert_one({"_id": self._count, "call": call, "messages": others, **content})

    async def load(self) -> Sequence[Any]:
        """Read the last turns without their results."""
        last = await self._turns.find({}, {"result": 0}).sort("_id", -1).limit(_LAST_TURNS).to_list(None)
        return messages_from_dict([message for document in reversed(last) for message in document["messages"]])

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one document."""
        document = await self._turns.find_one({"call": turn[2].id})
        assert document
        return str(messages_from_dict([document["result"]])[0].content)


class LangChainHistory(Store):
    """langchain-mongodb's MongoDBChatMessageHistory, with one client and one creation of its index."""

    name = "langchain-mongodb"

    async def open(self, uri: str, database: str) -> None:
        """Open the history."""
        from langchain_mongodb import MongoDBChatMessageHistory  # noqa: PLC0415 - optional

        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._history = MongoDBChatMessageHistory(
            None, "one", client=self._client, database_name=f"{database}_langchain", collection_name="history"
        )

    async def append(self, turn: list[BaseMessage]) -> None:
        """Add messages, one document for each."""
        await self._history.aadd_messages(turn)

    async def load(self) -> Sequence[Any]:
        """Load all messages."""
        return await self._history.aget_messages()

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load all messages and pick one, as there is no other way."""
        return next(str(message.content) for message in await self.load() if message.id == turn[2].id)

    async def close(self) -> None:
        """Close the client."""
        self._client.close()


def _nothing(state: Any) -> dict[str, list[Any]]:  # noqa: ARG001 - LangGraph's signature
    return {"messages": []}


class LangGraphSaver(Store):
    """LangGraph's MongoDBSaver under a graph that only adds messages, one step for each turn."""

    name = "langgraph-checkpoint-mongodb"
    _config = {"configurable": {"thread_id": "one"}}  # noqa: RUF012 - never changed

    async def open(self, uri: str, database: str) -> None:
        """Compile the graph."""
        from langgraph.checkpoint.mongodb import MongoDBSaver  # noqa: PLC0415 - optional
        from langgraph.graph import START, StateGraph  # noqa: PLC0415
        from langgraph.graph.message import add_messages  # noqa: PLC0415

        state = TypedDict("state", {"messages": Annotated[list[Any], add_messages]})  # noqa: UP013 - made at run time
        graph = StateGraph(state)
        graph.add_node("agent", _nothing)
        graph.add_edge(START, "agent")
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._graph: Any = graph.compile(checkpointer=MongoDBSaver(self._client, db_name=f"{database}_langgraph"))

    async def append(self, turn: list[BaseMessage]) -> None:
        """Run the graph for a turn."""
        await self._graph.ainvoke({"messages": turn}, self._config)

    async def load(self) -> Sequence[Any]:
        """Load the state."""
        messages: list[BaseMessage] = (await self._graph.aget_state(self._config)).values["messages"]
        return messages

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load the state and pick a message, as there is no other way."""
        return next(str(message.content) for message in await self.load() if message.id == turn[2].id)

    async def close(self) -> None:
        """Close the client."""
        self._client.close()


class AgentsSession(Store):
    """OpenAI Agents' MongoDBSession, one batch for each turn, everything loaded."""

    name = "openai-agents"

    def __init__(self) -> None:
        self._session: Any = None

    async def open(self, client: AsyncMongoClient[dict[str, Any]], database: str) -> None:
        """Open the session."""
        module = importlib.import_module("agents.extensions.memory")  # optional, and not typed
        self._session = module.MongoDBSession("one", client=client, database=f"{database}_agents")

    async def append(self, turn: list[BaseMessage]) -> None:
        """Add the items of a turn."""
        question, call, result, answer = turn
        arguments = {"type": "function_call", "call_id": result.id, "name": "search", "arguments": str(call.content)}
        output = {"type": "function_call_output", "call_id": result.id, "output": result.content}
        asked, said = (
            {"role": role, "content": message.content} for role, message in (("user", question), ("assistant", answer))
        )
        await self._session.add_items([asked, arguments, output, said])

    async def load(self) -> Sequence[Any]:
        """Load all items."""
        items: list[dict[str, Any]] = await self._session.get_items()
        return items

    async def result(self, turn: list[BaseMessage]) -> str:
        """Load all items and pick one, as there is no other way."""
        call = turn[2].id
        results = [item for item in await self.load() if "output" in item]
        return next(str(result["output"]) for result in results if result.get("call_id") == call)


class ConvstoreAgentsSession(AgentsSession):
    """Our session for OpenAI Agents, the same batches; a load is the view, a result is read by its ordinal."""

    name = "convstore for openai-agents"

    async def open(self, client: AsyncMongoClient[dict[str, Any]], database: str) -> None:
        """Set the store up."""
        store = ConversationStore(client[f"{database}_convstore_agents"])
        await store.setup()
        module = importlib.import_module("convstore.ext.openai_agents")  # needs the SDK
        self._session = module.ConvstoreSession(store, user_id="bench", thread_id="one")

    async def result(self, turn: list[BaseMessage]) -> str:
        """Read one tool message, the third of the four of a turn."""
        number = int(str(turn[2].id)[1:])
        chat: Conversation = self._session.conversation()
        [result] = await chat.list_messages(after=4 * number + 2, limit=1, full=True)
        return str(result.message.content)


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
        await self._alternate("one result by id", turns, lambda store, n: store.result(self.turns[n * 7 % turns]))
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
                print(f"{store.name} refuses turn {self._length[store.name]}: {type(error).__name__}")
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
        status = self._server.admin.command({"serverStatus": 1, "repl": 0, "metrics": 0, "wiredTiger": 0, "locks": 0})
        return int(status["network"]["bytesOut"])

    def close(self) -> None:
        """Close the connection that reads the server's counters."""
        self._server.close()


def _turn(number: int, dice: random.Random) -> list[BaseMessage]:
    words = ["".join(dice.choices(_SYLLABLES, k=dice.randint(1, 4))) for _ in range(1_500)]
    passages = [" ".join(dice.choices(words, k=310)) for _ in range(10)]
    call = {"name": "search", "args": {"query": " ".join(dice.choices(words, k=8))}, "id": f"call-{number}"}
    content = "\n\n".join(f"[{place}] {passage}" for place, passage in enumerate(passages, 1))
    return [
        HumanMessage(" ".join(dice.choices(words, k=60)), id=f"q{number}"),
        AIMessage("", id=f"c{number}", tool_calls=[call]),
        ToolMessage(content, id=f"r{number}", name="search", tool_call_id=f"call-{number}"),
        AIMessage(" ".join(dice.choices(words, k=150)), id=f"a{number}"),
    ]


def _is_installed(distribution: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(distribution))
    return False


@contextlib.asynccontextmanager
async def opened(uri: str, database: str = "compare") -> AsyncIterator[list[Store]]:
    """Give the stores whose packages are installed."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        stores: list[Any] = [Convstore(), Floor()]
        stores += [AgentsSession(), ConvstoreAgentsSession()] if _is_installed("openai-agents") else []
        threaded: list[Any] = [LangChainHistory()] if _is_installed("langchain-mongodb") else []
        threaded += [LangGraphSaver()] if _is_installed("langgraph-checkpoint-mongodb") else []
        for store in stores:
            await store.open(client, database)
        for store in threaded:
            await store.open(uri, database)
        yield [*stores, *threaded]
        for store in (*stores, *threaded):
            await store.close()


def table(figures: dict[str, dict[str, dict[int, float]]], lengths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the tables, one for each measure."""
    for measure, unit in MEASURES.items():
        yield f"\n{f'{measure}, {unit}':32}" + "".join(f"{f'{turns:,} turns':>14}" for turns in lengths)
        for name, by_length in figures[measure].items():
            shown = (f"{by_length[turns]:14,.1f}" if turns in by_length else f"{'-':>14}" for turns in lengths)
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
    print(f"medians of {_SAMPLES}; a turn is 4 messages and 22 KB; {machine}")
    print("\n".join(table(figures, options.turns)))
    if options.chart:
        panels = {f"{name}, {unit}": figures[name] for name, unit in MEASURES.items()}
        options.chart.write_text(line_charts(f"Against the number of turns; {machine}", panels), "utf-8")


if __name__ == "__main__":
    main()

"""Bytes that a checkpointer writes per turn, with the history in the graph's state and in convstore.

Run: ``python benchmarks/checkpoint_bytes.py [TURNS]``, with the extras langgraph and test. The same agent with one
retrieval in each turn and scripted models runs on a private real MongoDB under the real ``MongoDBSaver``: once with all
messages in its state, like LangGraph's own examples, and once with a load and an append node. The benchmark counts the
bytes of every insert and update command as BSON, and at the end the data as the server counts it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import bson
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from pymongo import AsyncMongoClient, MongoClient, monitoring

from convstore import ConversationStore
from convstore.devserver import DevServer
from convstore.ext.langgraph import ConversationState, append_node, load_node, view_of
from convstore.testing import rag_turn

TABLE = (1, 5, 10, 20, 40)
_CONFIG: RunnableConfig = {"configurable": {"user_id": "bench", "thread_id": "one"}}
_Document: TypeAlias = dict[str, Any]


class WrittenBytes(monitoring.CommandListener):
    """Adds up the insert and update commands of a client."""

    def __init__(self) -> None:
        self.total = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Count the command, without the fields that the driver adds to every command."""
        if event.command_name in ("insert", "update"):
            own = {
                key: value
                for key, value in event.command.items()
                if not key.startswith("$") and key != "lsid"
            }
            self.total += len(bson.encode(own))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Ignore the reply; the command was counted when it was sent."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Ignore the failure, as above."""


@dataclass(slots=True)
class Measured:
    """Bytes written by turn, and data on the server after the last one."""

    checkpointer: list[int] = field(default_factory=list)
    store: list[int] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)


async def measure(
    uri: str,
    *,
    turns: int,
    with_store: bool,
    sources: int = 10,
    words: int = 200,
    database: str = "checkpoint_bytes",
) -> Measured:
    """Run an agent for some turns and count.

    Args:
        uri: A server, in which the database must not exist.
        turns: How many.
        with_store: Whether convstore has the history; else the state has it.
        sources: Passages of each tool result.
        words: Of each passage.
        database: Its name; checkpoints go there too.
    """
    measured, by_saver, by_store = Measured(), WrittenBytes(), WrittenBytes()
    with MongoClient[_Document](uri, event_listeners=[by_saver]) as sync_client:
        async with AsyncMongoClient[_Document](uri, event_listeners=[by_store]) as client:
            store = ConversationStore(client[database])
            await store.setup()
            turn: list[BaseMessage] = []
            graph = _graph(turn, store if with_store else None)
            compiled = graph.compile(checkpointer=MongoDBSaver(sync_client, db_name=database))
            by_saver.total = by_store.total = 0
            for number in range(turns):
                turn[:] = rag_turn(f"What about topic{number}?", sources=sources, words=words)
                result = await compiled.ainvoke({"messages": [turn[0]]}, _CONFIG)
                assert result["messages"][-1].text == turn[-1].text
                measured.checkpointer.append(by_saver.total)
                measured.store.append(by_store.total)
                by_saver.total = by_store.total = 0
            measured.stored = {
                name: (await client[database].command("collStats", name))["size"]
                for name in sorted(await client[database].list_collection_names())
            }
            await store.close()
    return measured


def _graph(turn: list[BaseMessage], store: ConversationStore | None) -> StateGraph[Any]:
    """Build an agent that replays the given turn: a call, its result, an answer."""

    async def call_model(state: ConversationState) -> dict[str, Any]:
        shown = view_of(state) if store else state["messages"]
        return {"messages": [turn[1 if shown[-1].type == "human" else 3]]}

    async def search(state: MessagesState) -> dict[str, Any]:  # noqa: ARG001 - a node gets it
        return {"messages": [turn[2]]}

    def next_of(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "search" if isinstance(last, AIMessage) and last.tool_calls else "end"

    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("search", search)
    graph.add_edge("search", "model")
    if store is None:
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", next_of, {"search": "search", "end": END})
        return graph
    graph.add_node("load", load_node(store))
    graph.add_node("append", append_node(store))
    graph.add_edge(START, "load")
    graph.add_edge("load", "model")
    graph.add_conditional_edges("model", next_of, {"search": "search", "end": "append"})
    graph.add_edge("append", END)
    return graph


async def main(turns: int) -> None:
    """Measure and print."""
    with DevServer() as server:
        without = await measure(server.uri, turns=turns, with_store=False, database="without")
        within = await measure(server.uri, turns=turns, with_store=True, database="with")
    print(f"Bytes written per turn of 4 messages, 10 sources of 200 words; {turns} turns\n")
    print(
        "turn   MongoDBSaver alone   MongoDBSaver beside convstore   convstore itself       both   ratio"
    )
    for turn in (number for number in TABLE if number <= turns):
        alone, saver, store = (
            row[turn - 1] for row in (without.checkpointer, within.checkpointer, within.store)
        )
        both = saver + store
        print(
            f"{turn:4}   {alone:18,}   {saver:29,}   {store:16,}   {both:8,}   {alone / both:5.1f}"
        )
    sums = sum(without.checkpointer), sum(within.checkpointer), sum(within.store)
    both = sums[1] + sums[2]
    print(
        f" all   {sums[0]:18,}   {sums[1]:29,}   {sums[2]:16,}   {both:8,}   {sums[0] / both:5.1f}"
    )
    print("\nData on the server after the last turn, uncompressed, as collStats counts it:")
    for title, measured in (("MongoDBSaver alone", without), ("beside convstore", within)):
        named = ", ".join(f"{name} {size:,}" for name, size in measured.stored.items() if size)
        print(f"{title:20} {sum(measured.stored.values()):12,}   {named}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else TABLE[-1]))

"""What does a call cost as turns, conversations, a turn and an agent's run grow?

Run: ``python benchmarks/growth.py [turns conversations steps agent session compaction] [--divide N]``, on a private
real MongoDB. All of it takes about 20 minutes; ``--divide 100`` tries a hundredth of all sizes. Figures are medians of
seven calls; processor time of this process is measured instead of time, as a busy machine disturbs it less. Bytes are
those of the server's answers.

- ``turns``: one conversation grows to 20,000 turns of a question, a call, a result of 2 KB and an answer.
- ``conversations``: one store touches 100,000 conversations of one turn; also its memory.
- ``steps``: one turn grows to 3,000 messages, a call and its result at a time.
- ``agent``: an agent calls a tool 100 times in a run, with the middleware and without.
- ``session``: turns of four messages and two loads, by `append` and by `chat.turn`, one after the other.
- ``compaction``: summaries are made while a conversation grows; documents read for each stored message.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bson
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pymongo import AsyncMongoClient, monitoring

from convstore import Conversation, ConversationStore
from convstore.devserver import DevServer
from convstore.ext.langchain import ConversationMiddleware
from convstore.integration import host_of
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn

SIZES = {
    "turns": (10, 1_000, 20_000),
    "conversations": (1_000, 10_000, 100_000),
    "steps": (100, 1_000, 3_000),
    "agent": (10, 30, 100),
    "session": (25, 100),
    "compaction": (100, 1_000, 3_000),
}

_SAMPLES = 7
_CONCURRENT = 32
_USER = {"user_id": "growth"}

Call = Callable[[], Awaitable[Any]]


_IS_COUNTED = ContextVar("_IS_COUNTED", default=False)
"""True in the context of a call that is counted; timers of a store run in a context of their own."""


class Counter(monitoring.CommandListener):
    """Counts the commands, documents and bytes of counted calls, not those of a store's timers."""

    def __init__(self) -> None:
        self.commands = self.documents = self.bytes = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Ignore the start."""

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Count a command and its answer."""
        if not _IS_COUNTED.get():
            return
        cursor = event.reply.get("cursor", {})
        self.commands += 1
        self.documents += len(cursor.get("firstBatch", ())) + len(cursor.get("nextBatch", ()))
        self.bytes += len(
            bson.encode(
                {key: value for key, value in event.reply.items() if not key.startswith("$")}
            )
        )

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Ignore a failure; nothing here fails."""


@dataclass(frozen=True)
class Cost:
    """Cost of one call: commands, documents and bytes of the server's answers, and processor time."""

    commands: int
    documents: int
    bytes: int
    milliseconds: float

    def __str__(self) -> str:
        return f"{self.commands} / {self.documents} / {self.bytes / 1000:.1f} KB / {self.milliseconds:.1f} ms"


class Benchmark:
    """Databases whose names have a prefix, and the counter of their client."""

    def __init__(
        self, client: AsyncMongoClient[dict[str, Any]], counter: Counter, prefix: str = "growth"
    ) -> None:
        self.client, self.counter, self.prefix = client, counter, prefix

    def store(self, name: str, **options: Any) -> ConversationStore:
        """Return a new store on the database of a section."""
        return ConversationStore(self.client[f"{self.prefix}_{name}"], **options)

    async def cost(self, call: Call) -> Cost:
        """Return the medians of some calls."""
        costs = [await self._cost_once(call) for _ in range(_SAMPLES)]
        return Cost(
            *(statistics.median_low(values) for values in zip(*map(astuple, costs), strict=True))
        )

    async def _cost_once(self, call: Call) -> Cost:
        counter = self.counter
        counter.commands = counter.documents = counter.bytes = 0
        gc.collect()
        started = time.process_time()
        await _counted(call)
        return Cost(
            counter.commands,
            counter.documents,
            counter.bytes,
            (time.process_time() - started) * 1000,
        )

    async def turns(self, sizes: Sequence[int]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Grow one conversation turn by turn."""
        store = self.store("turns")
        await store.setup()
        chat, length = store.conversation(**_USER, thread_id="long"), 0
        early = _turn(0)
        await chat.append(early)
        for turns in sizes:
            for number in range(length, turns):
                await chat.append(_turn(number + 1))
            length = turns
            await chat.load_history()
            await _seal(store, chat)
            yield (
                f"{turns:,} turns",
                {
                    "append a turn": await self.cost(lambda: chat.append(_turn(0))),
                    "load after it": await self.cost(chat.load_history),
                    "first load of a store": await self.cost(self._first_load("turns", chat)),
                    "an early result by id": await self.cost(
                        lambda: chat.get_tool_messages([str(early[2].id)])
                    ),
                    "last 20 messages": await self.cost(lambda: chat.list_messages(limit=20)),
                    "search": await self.cost(lambda: chat.search("What about topic 7?")),
                },
            )

    def _first_load(self, name: str, chat: Conversation) -> Call:
        async def load() -> None:
            await self.store(name).conversation(**chat.scope).load_history()

        return load

    async def conversations(
        self, sizes: Sequence[int]
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Give a database more and more conversations, all by one store."""
        store = self.store("conversations")
        await store.setup()
        before, begun = _memory(), 0
        for total in sizes:
            await _each(
                range(begun, total),
                lambda number: store.conversation(
                    user_id=f"u{number % 1000}", thread_id=f"{number}"
                ).append(_turn(0)),
            )
            begun = total
            chat = store.conversation(user_id="u5", thread_id="5")
            yield (
                f"{total:,} conversations",
                {
                    "append a turn": await self.cost(lambda: chat.append(_turn(0))),  # noqa: B023 - awaited here
                    "first load of a store": await self.cost(
                        self._first_load("conversations", chat)
                    ),
                    "newest 20 of all": await self.cost(
                        lambda: store.list_conversations(everything=True, limit=20)
                    ),
                    "newest 20 of a user": await self.cost(
                        lambda: store.list_conversations(user_id="u5", limit=20)
                    ),
                    "memory of the store": f"{_memory() - before:.0f} MB",
                },
            )

    async def steps(self, sizes: Sequence[int]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Grow one turn by calls and results."""
        store = self.store("steps")
        await store.setup()
        chat, length = store.conversation(**_USER, thread_id="steps"), 0
        await chat.append(HumanMessage("Research this."))
        for messages in sizes:
            for _ in range(length, messages, 2):
                await chat.append(_step())
            length = messages
            await chat.load_history()
            await _seal(store, chat)
            yield (
                f"a turn of {messages:,} messages",
                {
                    "append a call and its result": await self.cost(lambda: chat.append(_step())),
                    "load after it": await self.cost(chat.load_history),
                    "first load of a store": await self.cost(self._first_load("steps", chat)),
                },
            )

    async def agent(self, sizes: Sequence[int]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Run an agent that calls a tool again and again."""
        store = self.store("agent")
        await store.setup()
        for steps in sizes:
            bare = await self.cost(self._run(steps, []))
            stored = await self.cost(self._run(steps, [ConversationMiddleware(store)]))
            yield (
                f"{steps} tool calls",
                {
                    "the agent alone, for each call": f"{bare.milliseconds / steps:.1f} ms",
                    "with the middleware": f"{stored.milliseconds / steps:.1f} ms",
                    "commands for each call": f"{stored.commands / steps:.1f}",
                },
            )

    def _run(self, steps: int, middleware: list[Any]) -> Call:
        runs = iter(range(1_000_000))

        async def run() -> None:
            model = _Scripted(messages=_script(steps))
            agent: Any = create_agent(model, [look_up], middleware=middleware)
            config = {
                "configurable": {**_USER, "thread_id": f"{steps}-{next(runs)}"},
                "recursion_limit": 10_000,
            }
            await agent.ainvoke({"messages": [HumanMessage("Research this.")]}, config)

        return run

    async def session(self, sizes: Sequence[int]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Ask and answer without a lease, and with one."""
        store, ways = self.store("session"), {"by append": _by_append, "by chat.turn": _by_turn}
        await store.setup()
        for turns in sizes:
            costs: dict[str, list[Cost]] = {way: [] for way in ways}
            for number in range(turns):
                for way, work in ways.items():
                    chat = store.conversation(**_USER, thread_id=f"{turns} {way}")
                    costs[way].append(await self._cost_once(partial(work, chat, f"q{number}")))
            each = {
                way: statistics.median(cost.milliseconds for cost in found)
                for way, found in costs.items()
            }
            commands = {
                way: statistics.median(cost.commands for cost in found)
                for way, found in costs.items()
            }
            shown = {f"{way}, each": f"{commands[way]:.0f} / {each[way]:.1f} ms" for way in ways}
            yield (
                f"{turns} turns",
                shown | {"ratio": f"{each['by chat.turn'] / each['by append']:.2f}"},
            )

    async def compaction(self, sizes: Sequence[int]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Compact a conversation after each turn while it grows."""
        rule = CompactionRule(
            max_tokens_before_summary=4_000, max_summary_tokens=500, keep_last_turns=2
        )
        store = self.store("compaction", summarizer=HeadTailSummarizer(rule))
        await store.setup()
        chat, length = store.conversation(**_USER, thread_id="summarised"), 0
        for turns in sizes:
            self.counter.documents, begun, done = 0, length, 0
            for number in range(length, turns):
                await chat.append(_turn(number))
                done += (await _counted(chat.compact)).status == "done"
            length = turns
            yield (
                f"turns {begun + 1:,} to {turns:,}",
                {
                    "summaries made": str(done),
                    "documents read for each message": f"{self.counter.documents / 4 / (turns - begun):.2f}",
                    "a call that makes none": await self.cost(chat.compact),
                },
            )


async def _by_append(chat: Conversation, question: str) -> None:
    _, call, result, answer = _turn(0)
    await chat.append(HumanMessage("Research this.", id=question))
    stamp = (await chat.load_history()).stamp
    await chat.append(call, stamp=stamp)
    await chat.append(result)
    stamp = (await chat.load_history()).stamp
    await chat.append(answer, stamp=stamp)


async def _by_turn(chat: Conversation, question: str) -> None:
    _, call, result, answer = _turn(0)
    async with await chat.turn(question, human="Research this.") as turn:
        await turn.load_history()
        await turn.append(call)
        await turn.append(result)
        await turn.load_history()
        await turn.append(answer)


class _Scripted(GenericFakeChatModel):
    """A model with prepared answers that accepts tools."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Return the model itself."""
        return self


@tool
def look_up(query: str) -> str:
    """Look something up."""
    return f"{query}: " + "a fact and its explanation, " * 20


def _script(steps: int) -> Iterator[AIMessage]:
    for number in range(steps):
        call = {"name": "look_up", "args": {"query": f"topic {number}"}, "id": f"call-{number}"}
        yield AIMessage("", tool_calls=[call])
    yield AIMessage("That is all.")


def _turn(number: int) -> list[BaseMessage]:
    return rag_turn(f"What about topic {number}?", sources=5, words=40)


def _step() -> list[BaseMessage]:
    _, call, result, _ = rag_turn("More?", sources=1, words=40)
    return [call, ToolMessage(result.content, name="search", tool_call_id=result.tool_call_id)]  # type: ignore[attr-defined]


async def _counted(call: Call) -> Any:
    token = _IS_COUNTED.set(True)
    try:
        return await call()
    finally:
        _IS_COUNTED.reset(token)


async def _each(items: Any, work: Callable[[int], Awaitable[Any]]) -> None:
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(_CONCURRENT)))


async def _seal(store: ConversationStore, chat: Conversation) -> None:
    """Seal a conversation, and wait for what the sealer does in the background: it would be counted as a call's."""
    sealer = (await host_of(store).services()).sealer
    await sealer.seal(tuple(chat.scope.items()))
    await sealer.wait()


def _memory() -> float:
    """Return the memory of this process, in megabytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


SECTIONS = {
    "turns": Benchmark.turns,
    "conversations": Benchmark.conversations,
    "steps": Benchmark.steps,
    "agent": Benchmark.agent,
    "session": Benchmark.session,
    "compaction": Benchmark.compaction,
}


async def table(benchmark: Benchmark, section: str, sizes: Sequence[int]) -> AsyncIterator[str]:
    """Yield the lines of a section as a Markdown table, each as soon as it is measured."""
    is_first = True
    async for size, costs in SECTIONS[section](benchmark, sizes):
        if is_first:
            yield f"\n| {section} | {' | '.join(costs)} |\n|---|{'--:|' * len(costs)}"
        yield f"| {size} | {' | '.join(map(str, costs.values()))} |"
        is_first = False


async def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    print("commands / documents / bytes of the answers / processor time of this process")
    counter = Counter()
    async with (
        DevServer() as server,
        AsyncMongoClient[dict[str, Any]](server.uri, event_listeners=[counter]) as client,
    ):
        for section in options.sections or SECTIONS:
            sizes = [max(2, size // options.divide) for size in SIZES[section]]
            async for line in table(Benchmark(client, counter), section, sizes):
                print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="What does a call cost as turns and conversations grow?"
    )
    parser.add_argument(
        "sections", nargs="*", choices=[[], *SECTIONS], help="all of them by default"
    )
    parser.add_argument(
        "--divide", type=int, default=1, help="divide all sizes, to see that it works"
    )
    asyncio.run(main(parser.parse_args()))

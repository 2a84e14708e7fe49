"""Many concurrent users on one machine: throughput, latency, memory, and stalls of the event loop.

Run: ``python benchmarks/load.py [--conversations 1000 --turns 50 --users 64 --seconds 60 --large 0.01 --think 0]``, on
a private real MongoDB. First every conversation gets its turns: a question, a call, a result with ten passages of 200
words and an answer. Then each user repeatedly picks a random conversation, loads its view and appends a turn. Some
turns have a result of 1 to 5 MB; some iterations read a result back in full, or a page of sources.

With ``--rate 20 --conversations 32 --seconds 180`` the traffic is steady instead: so many turns a second, each a load
and an append of 25 KB, after five turns in each conversation. Half of the conversations rest for half of the time. With
``--search-every 60`` each conversation is searched so often; ``--no-index`` is the same without segments. Processor
time is counted until nothing is due to be sealed, and again until the last conversation rests and is sealed.

A ticker on the loop measures its delay. One iteration of a busy loop runs all ready callbacks, so the longest single
callbacks are listed too, with their names. Each has its wall time, and the processor time of the loop's thread without
garbage collection: on a busy machine a thread also waits for the processor. Memory is printed at the start of each
third.

After filling, objects are frozen and garbage is collected less often, as docs/operations.md advises a server. Otherwise
each full garbage collection walks through every imported object and stops all threads for 100 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from langchain_core.messages import BaseMessage, ToolMessage
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore
from convstore.devserver import DevServer
from convstore.integration import host_of
from convstore.search.sealer import REST_SECONDS
from convstore.testing import rag_turn

_FILL_AT_ONCE = 10
_TICK = 0.005
_STALL = 0.020
_NAMED = 5


@dataclass
class Stalls:
    """Stalls of the event loop, in seconds.

    Attributes:
        late: How late each tick was.
        callbacks: Long callbacks: by the clock, on the processor without what garbage collection took, name.
        collections: How long each full garbage collection took.
    """

    late: list[float] = field(default_factory=list)
    callbacks: list[tuple[float, float, str]] = field(default_factory=list)
    collections: list[float] = field(default_factory=list)
    _collecting: float = 0.0
    _collected: float = 0.0

    async def tick(self) -> None:
        """Record the delay of each tick, until cancelled."""
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(_TICK)
            self.late.append(max(0.0, time.perf_counter() - begun - _TICK))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every callback of the loop inside."""
        run: Callable[[asyncio.Handle], None] = asyncio.Handle._run  # noqa: SLF001 - there is no public hook

        def timed(handle: asyncio.Handle) -> None:
            self._collected = 0.0
            begun, begun_thread = time.perf_counter(), time.thread_time()
            run(handle)
            busy = time.thread_time() - begun_thread - self._collected
            if time.perf_counter() - begun > _STALL:
                self.callbacks.append((time.perf_counter() - begun, busy, _name(handle)))

        gc.callbacks.append(self._collect)
        try:
            with patch.object(asyncio.Handle, "_run", timed):
                yield
        finally:
            gc.callbacks.remove(self._collect)

    def _collect(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
            return
        taken = time.thread_time() - self._collecting
        self._collected += taken
        if info["generation"] == 2:
            self.collections.append(taken)


def _name(handle: asyncio.Handle) -> str:
    """Return the coroutines that a callback resumes, innermost last."""
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(handle)[:200]
    names = list[str]()
    coroutine: Any = task.get_coro()
    while coroutine is not None and hasattr(coroutine, "cr_frame"):
        names.append(
            f"{coroutine.__qualname__}:{coroutine.cr_frame.f_lineno if coroutine.cr_frame else 'end'}"
        )
        coroutine = coroutine.cr_await
    return " > ".join(names[-4:])


class Users:
    """Run users concurrently, and record the time of each call."""

    def __init__(self, chats: list[Conversation], *, large: float, think: float) -> None:
        self.chats, self.large, self.think = chats, large, think
        self.taken: dict[str, list[float]] = {}
        self.dice = random.Random(1)  # noqa: S311 - text
        self.words = words = [
            "".join(self.dice.choices("abcdefghiklmnoprstuvw", k=self.dice.randint(2, 9)))
            for _ in range(5_000)
        ]
        # Built in advance to keep the loop free; random words, so that compression gains little.
        self.common = [self._turn(words, 13_000) for _ in range(50)]
        self.big = [self._turn(words, size) for size in range(1_000_000, 5_000_001, 1_000_000)]

    def _turn(self, words: list[str], size: int) -> list[BaseMessage]:
        turn = rag_turn("What about it?", sources=10, words=1)
        passages = [" ".join(self.dice.choices(words, k=size // 65)) for _ in range(10)]
        [result] = [message for message in turn if isinstance(message, ToolMessage)]
        result.content = "\n\n".join(passages)
        result.artifact = [
            (passage, {"title": f"Passage {place}"}) for place, passage in enumerate(passages)
        ]
        return turn

    def take(self, size: int) -> list[BaseMessage]:
        """Return a turn of its own with a result of some characters."""
        return self._turn(self.words, size)

    async def fill(self, turns: int) -> None:
        """Give every conversation its turns."""
        for begin in range(0, turns, _FILL_AT_ONCE):
            count = min(_FILL_AT_ONCE, turns - begin)
            await _each(self.chats, lambda chat: chat.append(self._turns(count)))  # noqa: B023

    def _turns(self, count: int) -> list[BaseMessage]:
        """Return turns under new ids."""
        return [message for _ in range(count) for message in self._take(0.0)]

    def _take(self, large: float) -> list[BaseMessage]:
        """Return a turn under new ids."""
        turn = self.dice.choice(self.big if self.dice.random() < large else self.common)
        return [message.model_copy(update={"id": None}) for message in turn]

    async def use(self, until: float) -> None:
        """Run one user."""
        while time.monotonic() < until:
            chat = self.dice.choice(self.chats)
            history = await self._timed("load", chat.load_history)
            await self._timed("append", lambda: chat.append(self._take(self.large)))  # noqa: B023
            if self.dice.random() < 0.1 and history.report.stubbed:
                id_ = self.dice.choice(history.report.stubbed)
                await self._timed("read back", lambda: chat.get_tool_messages([id_]))  # noqa: B023
                await self._timed("sources", lambda: chat.get_sources(tool_message_ids=[id_]))  # noqa: B023
            if self.think:
                await asyncio.sleep(self.dice.uniform(0, 2 * self.think))

    async def _timed(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        begun = time.perf_counter()
        answer = await call()
        self.taken.setdefault(name, []).append(time.perf_counter() - begun)
        return answer


async def _each(
    items: list[Any], work: Callable[[Any], Awaitable[Any]], *, at_once: int = 16
) -> None:
    """Apply a function to each item with limited concurrency."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(at_once)))


def _freeze() -> None:
    """Set up garbage collection as docs/operations.md advises a server."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def _memory() -> float:
    """Return the current memory in megabytes, or the peak where the system reports only that."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return pages * resource.getpagesize() / (1 << 20)


def _quantile(figures: list[float], share: float) -> float:
    return sorted(figures)[min(len(figures) - 1, int(share * len(figures)))]


def _print(users: Users, stalls: Stalls, memory: list[float], seconds: float) -> None:
    print(
        f"{'':10}{'calls':>9}{'a second':>10}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'most ms':>9}"
    )
    for name, taken in users.taken.items():
        figures = [
            statistics.median(taken),
            _quantile(taken, 0.95),
            _quantile(taken, 0.99),
            max(taken),
        ]
        row = "".join(f"{figure * 1000:9.1f}" for figure in figures)
        print(f"{name:10}{len(taken):9,}{len(taken) / seconds:10.1f}{row}")
    late = stalls.late or [0.0]
    print(
        "memory, MB, at the beginning of each third and at the end:",
        *(f"{figure:.0f}" for figure in memory),
    )
    shares = ", ".join(
        f"p{share} {_quantile(late, share / 100) * 1000:.1f} ms" for share in (50, 95, 99)
    )
    print(f"ticks late: {shares}, ", end="")
    above = sum(number > _STALL for number in late)
    print(f"most {max(late) * 1000:.1f} ms; above {_STALL * 1000:.0f} ms: {above} of {len(late):,}")
    longest = max(stalls.collections, default=0.0) * 1000
    print(f"full garbage collections: {len(stalls.collections)}, the longest {longest:.0f} ms")
    busy = sum(callback[1] > _STALL for callback in stalls.callbacks)
    print(
        f"callbacks above {_STALL * 1000:.0f} ms: {len(stalls.callbacks)} by the clock, {busy} by their own work; ",
        end="",
    )
    print("the longest:")
    for wall, own, name in sorted(stalls.callbacks, key=lambda callback: callback[1], reverse=True)[
        :_NAMED
    ]:
        print(f"  {own * 1000:7.1f} of {wall * 1000:7.1f} ms: {name}")


class Steady:
    """Steady traffic with a rate, and what the process pays for it, the index included."""

    def __init__(
        self, store: ConversationStore, chats: list[Conversation], arguments: argparse.Namespace
    ) -> None:
        self.store, self.chats, self.users = store, chats, Users(chats, large=0.0, think=0.0)
        self.rate, self.seconds, self.search_every = (
            arguments.rate,
            arguments.seconds,
            arguments.search_every,
        )
        self.busy = [False] * len(chats)

    def _is_at_rest(self, number: int, second: float) -> bool:
        return number % 2 == 1 and 0.25 <= second / self.seconds < 0.75

    async def run(self, stalls: Stalls) -> tuple[int, float, float]:
        """Return the number of turns, the processor time until nothing is due, and until all conversations rest."""
        began, busy, turns, number = time.perf_counter(), time.process_time(), 0, 0
        running = set[asyncio.Task[None]]()
        ticker = asyncio.create_task(stalls.tick())
        searches = asyncio.create_task(self._search()) if self.search_every else None
        while (second := time.perf_counter() - began) < self.seconds:
            number = (number + 1) % len(self.chats)
            if self.busy[number] or self._is_at_rest(number, second):
                await asyncio.sleep(0.001)
                continue
            task = asyncio.create_task(self._turn(number))
            running.add(task)
            task.add_done_callback(running.discard)
            turns += 1
            await asyncio.sleep(max(0.0, began + turns / self.rate - time.perf_counter()))
        await asyncio.gather(*running)
        if searches:
            searches.cancel()
        ticker.cancel()  # it would take more processor time than the rest of the wait
        sealer = (await host_of(self.store).services()).sealer
        await sealer.wait()
        due = time.process_time() - busy
        # until the last conversation rests, and the sealer's timer rings
        await asyncio.sleep(REST_SECONDS + 2)
        await sealer.wait()
        return turns, due, time.process_time() - busy

    async def _turn(self, number: int) -> None:
        self.busy[number], turn = True, self.users.take(25_000)
        begun = time.perf_counter()
        await self.chats[number].load_history()
        await self.chats[number].append(turn)
        self.users.taken.setdefault("turn", []).append(time.perf_counter() - begun)
        self.busy[number] = False

    async def _search(self) -> None:
        while True:
            for chat in self.chats:
                await asyncio.sleep(self.search_every / len(self.chats))
                query = " ".join(self.users.dice.choices(self.users.words, k=3))
                begun = time.perf_counter()
                await chat.search(query)
                self.users.taken.setdefault("search", []).append(time.perf_counter() - begun)


async def steady(
    store: ConversationStore, chats: list[Conversation], arguments: argparse.Namespace
) -> None:
    """Run steady traffic and print what it costs."""
    traffic, stalls = Steady(store, chats, arguments), Stalls()
    await traffic.users.fill(5)
    _freeze()
    turns, *busy = await traffic.run(stalls)
    due, all_sealed = (seconds / turns * 1000 for seconds in busy)
    print(f"{turns:,} turns, {turns / arguments.seconds:.1f} a second")
    print(
        f"processor time of each: {due:.1f} ms until nothing is due, {all_sealed:.1f} ms until all rest and are sealed"
    )
    _print(traffic.users, stalls, [_memory()], arguments.seconds)


async def main(arguments: argparse.Namespace) -> None:
    """Fill, load and print."""
    async with DevServer() as server, AsyncMongoClient[dict[str, Any]](server.uri) as client:
        store = ConversationStore(client["load"], search_index=not arguments.no_index)
        await store.setup()
        chats = [
            store.conversation(user_id="load", thread_id=str(n))
            for n in range(arguments.conversations)
        ]
        if arguments.rate:
            await steady(store, chats, arguments)
            return
        users = Users(chats, large=arguments.large, think=arguments.think)
        begun = time.monotonic()
        await users.fill(arguments.turns)
        print(
            f"{len(chats):,} conversations of {arguments.turns} turns in {time.monotonic() - begun:.0f} s"
        )
        _freeze()
        stalls, memory = Stalls(), [_memory()]
        ticker = asyncio.create_task(stalls.tick())
        with stalls.watching():
            until = time.monotonic() + arguments.seconds
            work = asyncio.gather(*(users.use(until) for _ in range(arguments.users)))
            for _ in range(2):
                await asyncio.wait({work}, timeout=arguments.seconds / 3)
                memory.append(_memory())
            await work
        ticker.cancel()
        memory.append(_memory())
        _print(users, stalls, memory, arguments.seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Many users at once on one machine.")
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--large", type=float, default=0.01, help="share of turns with a result of 1 to 5 MB"
    )
    parser.add_argument("--no-index", action="store_true", help="keep no segments")
    parser.add_argument("--rate", type=float, default=0.0, help="turns a second of steady traffic")
    parser.add_argument(
        "--search-every",
        type=float,
        default=0.0,
        help="seconds between two searches of a conversation",
    )
    parser.add_argument(
        "--think", type=float, default=0.0, help="seconds between two turns of a user, about"
    )
    asyncio.run(main(parser.parse_args()))

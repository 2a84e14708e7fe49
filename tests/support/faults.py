"""Faults on a real replica set, with client processes that write and read all the while.

``python tests/support/faults.py --minutes 10`` does faults by chance until the time is over, one in each round, and
prints a table; ``--only NAME`` does one kind. `test_faults` does each kind once, or `CONVSTORE_FAULT_ROUNDS` times.

A round has conversations of its own. Its clients begin, the fault comes and goes, the clients settle: whatever they
were refused they repeat until it is acknowledged. Then `fault_checker` compares the log with what each of
them wrote and read. Clients and nodes live through many rounds; those that a fault kills are started anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fault_checker import Findings, check_round, read_notes
from fault_client import KINDS
from fault_cluster import Cluster
from pymongo import AsyncMongoClient

from convstore import ConversationStore

__all__ = ["FAULTS", "Field", "table"]

PATIENT, IMPATIENT = 3, 1
"""Client processes; an impatient one gives up sooner than an election takes, and tries again."""

MINORITY = "convstore-minority"
"""Names of the first client of each kind; a partition leaves them alone with the old primary."""

_CLIENT = Path(__file__).with_name("fault_client.py")
_SETTLE_SECONDS = 60.0
_BEFORE, _AFTER = 0.8, 0.8
_HELD = 2.5
"""Seconds that a node is cut off or stopped: more than twice what it takes until another is elected."""


class Process:
    """A client process, and its place in the crowd, which one after the other may have."""

    def __init__(self, name: str, arguments: tuple[str, ...]) -> None:
        self.name, self._arguments = name, arguments
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it; it waits for a command."""
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(_CLIENT), self.name, *self._arguments),
            stdin=pipe,
            stdout=pipe,
            cwd=_CLIENT.parents[1],
        )

    async def send(self, do: str, **values: Any) -> None:
        """Give a command and wait until it is done."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
        await self.process.stdin.drain()
        answer = await self.process.stdout.readline()
        assert answer == json.dumps(do).encode() + b"\n", f"client {self.name} is gone: {answer!r}"

    async def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        """Let it end by itself."""
        if self.process.returncode is None and self.process.stdin:
            self.process.stdin.close()
            await self.process.wait()


class Field:
    """A replica set, a database and clients, on which one round follows the other; runs inside ``async with``."""

    def __init__(self, *, seed: int | None = None) -> None:
        self.cluster = Cluster()
        self.dice = random.Random(seed)
        self.clients: list[Process] = []
        self._folder = tempfile.TemporaryDirectory(prefix="convstore-faults-")
        self._name = f"faults_{uuid.uuid4().hex[:8]}"
        self._stack = AsyncExitStack()
        self._threads: list[str] = []
        self._round = ""
        self._database: Any = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._folder.cleanup)
            await stack.enter_async_context(self.cluster)
            remote = await stack.enter_async_context(
                AsyncMongoClient[dict[str, Any]](self.cluster.uri)
            )
            self._database = remote[self._name]
            await ConversationStore(self._database).setup()
            for patience, number in (("patient", PATIENT), ("impatient", IMPATIENT)):
                for index in range(number):
                    name = f"{patience}{index}"
                    uri = self.cluster.uri if index else f"{self.cluster.uri}&appName={MINORITY}"
                    arguments = (uri, self._name, str(self._journals / f"{name}.jsonl"), patience)
                    self.clients.append(Process(name, arguments))
            for client in self.clients:
                await client.start()
                stack.push_async_callback(client.end)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def _journals(self) -> Path:
        return Path(self._folder.name)

    async def round(self, fault: str) -> Findings:
        """Run one round with this fault, and return its findings."""
        self._round = uuid.uuid4().hex[:8]
        self._threads = [f"{kind}-{self._round}" for kind in KINDS]
        began = time.time()
        await asyncio.gather(*(self.begin(client) for client in self.clients))
        await asyncio.sleep(_BEFORE)
        await FAULTS[fault](self)
        await self.cluster.whole()
        await asyncio.sleep(_AFTER)
        async with asyncio.timeout(_SETTLE_SECONDS):
            await asyncio.gather(*(client.send("settle") for client in self.clients))
        notes = read_notes(sorted(self._journals.glob("*.jsonl")))
        return await check_round(self._database, self._threads, notes, since=began)

    async def begin(self, client: Process) -> None:
        """Let a client work on the conversations of this round."""
        await client.send("begin", round=self._round, threads=self._threads)

    async def replace(self, client: Process) -> None:
        """Start a client in the place of one that was killed."""
        await client.start()
        await self.begin(client)


async def no_fault(field: Field) -> None:
    """Wait without any fault, for comparison."""
    await asyncio.sleep(_HELD)


async def kill_primary(field: Field) -> None:
    """The primary is killed, and comes back after another was elected."""
    primary = await field.cluster.primary()
    await field.cluster.kill(primary)
    await field.cluster.primary()
    await asyncio.sleep(_AFTER)
    await field.cluster.restart(primary)


async def kill_client(field: Field) -> None:
    """A client is killed, another takes its place."""
    client = field.dice.choice(field.clients)
    await client.kill()
    await field.replace(client)


async def kill_both(field: Field) -> None:
    """The primary and a client are killed at once."""
    client = field.dice.choice(field.clients)
    primary = await field.cluster.primary()
    await asyncio.gather(field.cluster.kill(primary), client.kill())
    await field.replace(client)
    await field.cluster.restart(primary)


async def stop_client(field: Field) -> None:
    """A client is stopped in the middle of whatever it does, and goes on with what it knew then."""
    client = field.dice.choice(field.clients)
    os.kill(client.process.pid, signal.SIGSTOP)
    await asyncio.sleep(_HELD)
    os.kill(client.process.pid, signal.SIGCONT)


async def stop_primary(field: Field) -> None:
    """The primary is stopped until another is elected, and then believes for a moment that it still is."""
    primary = await field.cluster.primary()
    await field.cluster.pause(primary)
    await asyncio.sleep(_HELD)
    await field.cluster.resume(primary)


async def stop_secondaries(field: Field) -> None:
    """Stop both secondaries: no majority confirms a write, and the primary steps down."""
    secondaries = await field.cluster.secondaries()
    for node in secondaries:
        await field.cluster.pause(node)
    await asyncio.sleep(_HELD)
    for node in secondaries:
        await field.cluster.resume(node)


async def cut_primary(field: Field) -> None:
    """Hold back silently everything sent to the primary, until another node is primary."""
    link = field.cluster.link(await field.cluster.primary())
    link.cut()
    await asyncio.sleep(_HELD)
    link.mend()


async def partition(field: Field) -> None:
    """The primary and two clients on one side, the other nodes and clients on the other, which elect another."""
    primary = await field.cluster.primary()
    field.cluster.part(primary, MINORITY)
    await asyncio.sleep(_HELD)
    elected = await field.cluster.primary()
    field.cluster.join()
    assert elected is not primary, "nobody else was elected"


async def slow_primary(field: Field) -> None:
    """Delay everything sent to and by the primary by 50 ms."""
    link = field.cluster.link(await field.cluster.primary())
    link.delay = 0.05
    await asyncio.sleep(_HELD)
    link.delay = 0.0


async def drop_connections(field: Field) -> None:
    """All connections to the primary end, three times."""
    for _ in range(3):
        field.cluster.link(await field.cluster.primary()).drop()
        await asyncio.sleep(_HELD / 6)


async def step_down(field: Field) -> None:
    """The primary hands over in order, as for maintenance."""
    await field.cluster.step_down(await field.cluster.primary())
    await field.cluster.primary()


FAULTS: Mapping[str, Callable[[Field], Awaitable[None]]] = {
    fault.__name__: fault
    for fault in (
        no_fault,
        kill_primary,
        kill_client,
        kill_both,
        stop_client,
        stop_primary,
        stop_secondaries,
        cut_primary,
        partition,
        slow_primary,
        drop_connections,
        step_down,
    )
}
"""Faults by name."""

_COUNTED = ("acknowledged", "reads", "refused", "cancelled", "deleted", "older")
_BROKEN = {"lost": "lost", "doubled": "doubled", "holes": "hole"}
_COLUMNS = ("runs", *_COUNTED, *_BROKEN, "other", "orphans", "stall")


def table(rounds: Mapping[str, list[Findings]]) -> str:
    """Return the results of rounds as a table, a line for each fault; stalls are the longest, in seconds."""
    lines = [f"{'fault':18}" + "".join(f"{name:>10}" for name in _COLUMNS)]
    whole = {**rounds, "all": [findings for found in rounds.values() for findings in found]}
    for fault, found in whole.items():
        broken = [sum(findings.count(what) for findings in found) for what in _BROKEN.values()]
        other = sum(len(texts) for findings in found for texts in findings.problems.values()) - sum(
            broken
        )
        done = [sum(getattr(findings, what) for findings in found) for what in _COUNTED]
        figures = [len(found), *done, *broken, other, sum(findings.orphans for findings in found)]
        stall = max((findings.stall for findings in found), default=0.0)
        lines.append(
            f"{fault:18}" + "".join(f"{figure:>10,}" for figure in figures) + f"{stall:>10.1f}"
        )
    return "\n".join(lines)


async def main(minutes: float, only: list[str], seed: int | None) -> bool:
    """Do faults until the time is over; True if nothing is wrong."""
    names = only or list(FAULTS)
    rounds: dict[str, list[Findings]] = {name: [] for name in names}
    until = time.time() + minutes * 60
    async with Field(seed=seed) as field:
        try:
            while time.time() < until:
                # Each kind as often as the others, in another order each time.
                for name in field.dice.sample(names, len(names)):
                    if time.time() < until:
                        rounds[name].append(await field.round(name))
                        _tell(name, rounds[name][-1])
        finally:
            sys.stdout.write(table(rounds) + "\n")
    return not any(findings.problems for found in rounds.values() for findings in found)


def _tell(name: str, findings: Findings) -> None:
    lines = [f"{name}: {findings.acknowledged} acknowledged, stall {findings.stall:.1f} s"]
    lines += [
        f"{what}, {len(found)} times, first: {found[0]}"
        for what, found in findings.problems.items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Faults on a real replica set.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", choices=list(FAULTS), nargs="*", default=[])
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    sys.exit(not asyncio.run(main(arguments.minutes, arguments.only, arguments.seed)))

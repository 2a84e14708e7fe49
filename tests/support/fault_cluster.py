"""Three nodes that faults can be done to, behind a link each that can be cut; for the fault runs (`faults.py`).

In the configuration of the replica set the links are its members, so that clients and the other nodes go through them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self

from canary import sign_up
from pymongo.errors import PyMongoError

from convstore.devserver import DevNode, DevServer, DevServerError

__all__ = ["Cluster", "Link"]

_HOST = "127.0.0.1"
_BYTES = 65_536
_WAIT_SECONDS = 30.0
# In a handshake the name of an application, in a heartbeat the address of the node that it is from.
_NAME = re.compile(rb"(?:\x02from|\x03application\x00.{4}\x02name)\x00.{4}([^\x00]+)", re.DOTALL)
_Rule = Callable[[set[bytes]], bool]


def _nothing(names: set[bytes]) -> bool:
    return False


def _everything(names: set[bytes]) -> bool:
    return True


class Link:
    """All that goes to one node, by a TCP proxy.

    Who sends is known by what it says of itself: a client its application, a node in heartbeats its address.

    Attributes:
        port: Where it listens; the node is known by it.
        delay: Seconds that each piece is held back.
    """

    def __init__(self, target: int) -> None:
        self.port, self.delay = 0, 0.0
        self._target = target
        self._is_held: _Rule = _nothing
        self._changed = asyncio.Event()
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        """Listen."""
        server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = int(server.sockets[0].getsockname()[1])
        return server

    def cut(self) -> None:
        """Drop everything without closing a connection."""
        self.hold(_everything)

    def mend(self) -> None:
        """Deliver what was held back, and stop holding."""
        self.hold(_nothing)

    def hold(self, is_held: _Rule) -> None:
        """From now on nothing gets through to and from those of whose names this is true."""
        self._is_held = is_held
        self._changed.set()
        self._changed = asyncio.Event()

    def drop(self) -> None:
        """End every connection there is, as a firewall does that forgets them."""
        for end in self._ends:
            end.transport.abort()

    def _accept(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(near, near_end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        self._ends.add(near_end)
        try:
            far, far_end = await asyncio.open_connection(_HOST, self._target)
            self._ends.add(far_end)
            names = set[bytes]()
            try:
                await asyncio.gather(
                    self._pump(near, far_end, names, is_near=True), self._pump(far, near_end, names)
                )
            finally:
                self._ends.discard(far_end)
                far_end.transport.abort()
        except OSError:
            pass  # the node is down, or one side went; the other side notices the end of its connection
        finally:
            self._ends.discard(near_end)
            near_end.transport.abort()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        names: set[bytes],
        *,
        is_near: bool = False,
    ) -> None:
        while piece := await source.read(_BYTES):
            if is_near:
                names.update(_NAME.findall(piece))
            while self._is_held(names):
                await self._changed.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            target.write(piece)
            await target.drain()
        raise ConnectionResetError  # of a half-open connection nobody makes use

    async def stop(self) -> None:
        """End everything that goes through."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Cluster:
    """A replica set of three nodes behind links; runs inside ``async with``."""

    def __init__(self) -> None:
        self._server = DevServer(nodes=3)
        self._links: dict[DevNode, Link] = {}
        self._down: set[DevNode] = set()
        self._stack = AsyncExitStack()
        self.uri = ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._server)
            for node in self._server.nodes:
                link = self._links[node] = Link(node.port)
                stack.push_async_callback(link.stop)
                stack.callback((await link.start()).close)
            await asyncio.to_thread(self._move_members)
            self._stack = stack.pop_all()
        set_name = self._server.uri.partition("replicaSet=")[2]
        hosts = ",".join(f"{_HOST}:{link.port}" for link in self._links.values())
        self.uri = f"mongodb://{hosts}/?replicaSet={set_name}"
        await self.whole()
        self.uri = await asyncio.to_thread(sign_up, self.uri)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def _move_members(self) -> None:
        primary = self._server.primary()
        config = primary.command("replSetGetConfig")["config"]
        for member, link in zip(config["members"], self._links.values(), strict=True):
            member["host"] = f"{_HOST}:{link.port}"
        primary.command("replSetReconfig", {**config, "version": config["version"] + 1}, force=True)

    def link(self, node: DevNode) -> Link:
        """Return the link to a node."""
        return self._links[node]

    def part(self, node: DevNode, application: str) -> None:
        """Leave a node alone with the clients of an application; all others are on the other side."""
        alone = {application.encode(), f"{_HOST}:{self._links[node].port}".encode()}
        for other, link in self._links.items():
            link.hold(
                alone.isdisjoint if other is node else lambda names: not alone.isdisjoint(names)
            )

    def join(self) -> None:
        """Let everybody talk to everybody again."""
        for link in self._links.values():
            link.mend()

    async def primary(self) -> DevNode:
        """The node that takes writes; of two that think so the one that was elected last."""
        nodes: list[DevNode] = []

        async def is_found() -> bool:
            nodes.extend(
                node for node, _ in sorted(await self._primaries(), key=lambda pair: pair[1])[-1:]
            )
            return bool(nodes)

        await self._wait(is_found)
        return nodes[-1]

    async def secondaries(self) -> list[DevNode]:
        """The other two."""
        primary = await self.primary()
        return [node for node in self._server.nodes if node is not primary]

    async def _primaries(self) -> list[tuple[DevNode, Any]]:
        found = []
        for node in self._server.nodes:
            with suppress(PyMongoError, DevServerError):
                said = await self._ask(node, "hello")
                if said["isWritablePrimary"]:
                    found.append((node, said["electionId"]))
        return found

    async def _ask(
        self, node: DevNode, command: str, value: Any = 1, **options: Any
    ) -> dict[str, Any]:
        if node in self._down:
            raise DevServerError("the node is down or stopped")
        return await asyncio.to_thread(node.command, command, value, **options)

    async def whole(self) -> None:
        """Return when every node is there and one is primary, and all have what it has."""

        async def is_so() -> bool:
            said = [await self._ask(node, "hello") for node in self._server.nodes]
            return sum(reply["isWritablePrimary"] for reply in said) == 1 and all(
                reply["isWritablePrimary"] or reply["secondary"] for reply in said
            )

        await self._wait(is_so)

    async def _wait(self, is_so: Callable[[], Any]) -> None:
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                with suppress(PyMongoError, DevServerError):
                    if await is_so():
                        return
                await asyncio.sleep(0.05)

    async def kill(self, node: DevNode) -> None:
        """SIGKILL."""
        self._down.add(node)
        await asyncio.to_thread(node.kill)

    async def restart(self, node: DevNode) -> None:
        """Start a node that was killed."""
        await asyncio.to_thread(node.restart)
        self._down.discard(node)

    async def pause(self, node: DevNode) -> None:
        """SIGSTOP: it is there, and nothing answers."""
        self._down.add(node)
        await asyncio.to_thread(node.pause)

    async def resume(self, node: DevNode) -> None:
        """SIGCONT."""
        node.resume()
        self._down.discard(node)

    async def step_down(self, node: DevNode) -> None:
        """Let a primary hand over in order; its clients are notified."""
        with suppress(PyMongoError):  # it may end the connection that asked
            await self._ask(node, "replSetStepDown", 5, secondaryCatchUpPeriodSecs=2)

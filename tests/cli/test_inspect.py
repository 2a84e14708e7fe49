"""``convstore inspect`` and ``convstore demo --inspect``: a server of their own on this machine, over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import httpx
import pytest
from command_line import convstore
from langchain_core.messages import HumanMessage
from programs import ROOT
from pymongo import MongoClient

from convstore import ConversationStore

pytestmark = pytest.mark.slow


class Command:
    """A running command, and the client of the browser that opened its address."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "convstore", *arguments, "--json"]
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(3)]
        assert self.process.poll() is None, self.process.communicate()[1]
        self.address = json.loads("".join(lines))["address"]
        self.client = httpx.Client(follow_redirects=True)

    def end(self) -> str:
        """Send a signal: the command ends well; return what it printed after its address."""
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=20)
        assert (self.process.returncode, err) == (0, "")
        return out


def browsed(
    work: Callable[[httpx.Client, str], None], *arguments: str, by: signal.Signals = signal.SIGINT
) -> None:
    """Run such a command in this process, which takes a fifth of the time of one of its own.

    A thread opens its address, and then sends the signal: the command ends well and says nothing.
    """
    addresses = Queue[dict[str, str]]()

    def browse() -> None:
        address = addresses.get(timeout=20)["address"]
        try:
            with httpx.Client(follow_redirects=True) as client:
                work(client, address)
        finally:
            os.kill(os.getpid(), by)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr("convstore.cli.serving.write_json", addresses.put)
        browsing = pool.submit(browse)
        ended = convstore(*arguments, "--json")
        browsing.result()
    assert (ended.exit_code, ended.output) == (0, "")


def uri_of(server_uri: Any, database: Any) -> Any:
    """The address of a database on the server."""
    begin, _, options = server_uri.partition("?")
    return f"{begin.rstrip('/')}/{database}?{options}"


async def test_a_store_is_inspected_without_changing_it(
    server_uri: str, database_name: str
) -> None:
    """The address works once, the host must be this machine, and only the chosen user's conversations are there."""
    name = f"{database_name}_inspect"
    async with await ConversationStore.connect(uri_of(server_uri, name)) as store:
        await store.setup()
        for user in ("ada", "grace"):
            await store.conversation(user_id=user, thread_id="t").append(
                HumanMessage(f"I am {user}")
            )
    command = Command("inspect", "--uri", uri_of(server_uri, name), "--scope", "user_id=ada")
    try:
        opened = command.client.get(command.address)
        assert opened.status_code == 200
        assert "token" not in str(opened.url)
        assert "I am ada" in opened.text
        assert "grace" not in opened.text
        [path] = set(re.findall(r'href="(/c/\w+)"', opened.text))
        assert "I am ada" in command.client.get(opened.url.join(path)).text
        async with httpx.AsyncClient() as other:
            assert (await other.get(command.address)).status_code == 403
            assert (await other.get(opened.url.join(path))).status_code == 403
        assert command.client.get(opened.url, headers={"host": "evil.example"}).status_code == 403
        with pytest.raises(httpx.ConnectError):
            command.client.get(f"http://127.0.0.2:{opened.url.port}/")
    finally:
        printed = command.end()
    [again] = re.findall(r'"address": "(.*)"', printed)  # the second browser was refused
    assert again != command.address
    with MongoClient(server_uri) as client:
        assert client[name]["heads"].count_documents({}) == 2
        client.drop_database(name)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_leaves_its_conversations_at_an_address(
    server_uri: str, database_name: str, by: Any
) -> None:
    """Whole, whichever signal ends it."""
    name = f"{database_name}_demo"

    def open_page(client: httpx.Client, address: str) -> None:
        assert client.get(address).text.count('scope="row"') == 3

    browsed(open_page, "demo", "--inspect", "--uri", uri_of(server_uri, name), by=by)
    with MongoClient(server_uri) as client:
        assert client[name]["heads"].count_documents({}) == 3
        client.drop_database(name)


@pytest.mark.parametrize(
    ("price", "said"),
    [
        ("gpt-5", "--price takes MODEL=INPUT,OUTPUT, not 'gpt-5'"),
        ("=1,2", "--price takes MODEL=INPUT,OUTPUT, not '=1,2'"),
        ("gpt-5=1", "the price of 'gpt-5' must be two to four numbers"),
        ("gpt-5=1,x", "the price of 'gpt-5' must be two to four numbers"),
        ("gpt-5=1,-2", "the price of 'gpt-5' must be two to four numbers"),
        ("gpt-5=1,2,nan", "the price of 'gpt-5' must be two to four numbers"),
        ("gpt-5=1,2,3,4,5", "the price of 'gpt-5' must be two to four numbers"),
        ("gpt-5=1,2 --price gpt-5=3,4", "--price names 'gpt-5' twice"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "list", "show 1", "sums"])
def test_a_price_that_cannot_be_read_is_named(command: str, price: str, said: str) -> None:
    """Before the database is opened, as what is wrong with the command line."""
    arguments = f"{command} --uri memory:// --price {price}".split()
    done = convstore(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_a_port_in_use_is_named() -> None:
    """In one line that says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = convstore("demo", "--inspect", "--port", str(port))
    assert done.exit_code == 1
    assert re.fullmatch(
        rf"convstore: port {port} cannot be used: .*; choose another with --port\n", done.stderr
    )

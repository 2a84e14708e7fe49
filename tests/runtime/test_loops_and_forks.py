"""A store that meets a second event loop, or a forked process, works there or says what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from pymongo import AsyncMongoClient

from convstore import ConversationStore
from convstore.exceptions import StoreError

CROWD = 12
FORKED = """
import asyncio, os, signal, sys
from langchain_core.messages import HumanMessage
from convstore import ConversationStore
from convstore.integration import host_of

store = asyncio.run(ConversationStore.connect(sys.argv[1]))
scope = {"user_id": "ada", "thread_id": sys.argv[2]}

def append(text):
    async def work(twin):
        await twin.setup()
        await twin.conversation(**scope).append(HumanMessage(text))
        return [message.content async for message in twin.conversation(**scope).messages()]
    return host_of(store).run_sync(work)

if sys.argv[3] == "used":
    append("parent")
child = os.fork()
if not child:
    signal.alarm(20)
    print(append("child"), flush=True)
    asyncio.run(store.close())
    os._exit(0)
_, status = os.waitpid(child, 0)
print(append("parent again"), status, flush=True)
"""


async def crowd(store: ConversationStore, scope: dict[str, str], name: str) -> None:
    """Append from many tasks at once, so that they wait for each other."""
    chat = store.conversation(**scope)
    await asyncio.gather(
        *(chat.append(HumanMessage(f"{name} {number}")) for number in range(CROWD))
    )


def test_memory_works_in_one_loop_after_the_other(scope: dict[str, str]) -> None:
    """An in-memory store works in one event loop after another, as in a notebook."""
    store = asyncio.run(ConversationStore.connect("memory://"))
    asyncio.run(store.setup())
    for name in "abc":
        asyncio.run(crowd(store, scope, name))

    async def texts() -> list[Any]:
        return [message.content async for message in store.conversation(**scope).messages()]

    assert sorted(asyncio.run(texts())) == sorted(
        f"{name} {number}" for name in "abc" for number in range(CROWD)
    )
    asyncio.run(store.close())


@pytest.mark.slow
def test_memory_works_in_two_loops_at_once(scope: dict[str, str]) -> None:
    """Two threads with a loop each append to one conversation: the log has all, in one order."""
    store = asyncio.run(ConversationStore.connect("memory://"))
    asyncio.run(store.setup())
    errors: list[BaseException] = []

    def run(name: str) -> None:
        try:
            for _ in range(3):
                asyncio.run(crowd(store, scope, name + uuid.uuid4().hex))
        except BaseException as error:  # noqa: BLE001 - the test's own thread reports it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []

    async def check() -> None:
        page = await store.conversation(**scope).list_messages(limit=200)
        assert [message.ordinal for message in page] == list(range(1, 6 * CROWD + 1))
        assert (await store.verify()).findings == ()

    asyncio.run(check())
    asyncio.run(store.close())


@pytest.mark.slow
def test_a_server_in_a_second_loop_is_refused_with_advice(
    server_uri: str, database_name: str, scope: dict[str, str]
) -> None:
    """A store on a server raises StoreError with advice in a second event loop, even if tasks of both loops wait."""
    client = AsyncMongoClient[dict[str, Any]](server_uri)
    store = ConversationStore(client[database_name])

    async def first() -> None:
        await store.setup()
        await crowd(store, scope, "a")

    with asyncio.Runner() as runner, asyncio.Runner() as other:
        runner.run(first())
        for _ in range(2):
            with pytest.raises(StoreError, match="make a store for each event loop"):
                other.run(crowd(store, scope, "b"))
        runner.run(crowd(store, scope, "c"))
        runner.run(client.close())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "memory"])
@pytest.mark.parametrize("used", ["used", "new"])
def test_a_synchronous_call_works_in_a_forked_process(
    kind: str, used: str, server_uri: str, database_name: str, scope: dict[str, str]
) -> None:
    """The child gets a thread and a client of its own, and the parent's still work afterwards."""
    host, _, options = server_uri.rpartition("/")
    uri = "memory://" if kind == "memory" else f"{host}/{database_name}{options}"
    command = [sys.executable, "-W", "ignore", "-c", FORKED, uri, scope["thread_id"], used]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    before = ["parent"] if used == "used" else []
    shared = ["child"] if kind == "server" else []
    expected = f"{[*before, 'child']}\n{[*before, *shared, 'parent again']} 0\n"
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)

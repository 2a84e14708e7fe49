"""The store on a real sharded cluster, by the commands of docs/scaling.md."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import convstore
from every_call import CALLS, prepared, summarizing
from langchain_core.messages import AIMessage
from memory_folder import data_in_memory
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure
from sharded_cluster import SHARDS, ShardedCluster

from convstore import ConversationStore
from convstore.devserver import find_mongod
from convstore.mongo.indexes import SHARD_KEYS
from convstore.mongo.keys import OF_CONVERSATIONS, state_id

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def commands_of_the_page() -> list[tuple[str, Any]]:
    """The commands of the page in order, each with its arguments: of a shell, of mongosh's ``sh`` and ``db``."""
    found = list[tuple[str, Any]]()
    blocks = re.findall(
        r"^ *```(sh|js)\n(.*?)^ *```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for language, block in blocks:
        for line in map(str.strip, block.splitlines()):
            if language == "sh":
                name, *arguments = shlex.split(line)
            else:
                helper = re.fullmatch(r"(?:sh|db)\.(\w+)\((.*)\)", line)
                assert helper, line
                name = helper[1]
                quoted = re.sub(r"(\w+):", r'"\1":', helper[2])
                arguments = json.loads(f"[{quoted}]")
            found.append((name, arguments))
    return found


def run(cluster: ShardedCluster, name: str, arguments: list[Any]) -> None:
    """Run a command of the page."""
    if name == "convstore":
        result = convstore(*arguments, CONVSTORE_URI=cluster.uri)
        assert result.exit_code == 0, result.output
    elif name == "shardCollection":
        cluster.shard_collection(*arguments)
    elif name == "splitAt":
        cluster.split_at(*arguments)
    else:
        [command] = arguments
        cluster.move_range(command.pop("moveRange"), command)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ShardedCluster]:
    """A cluster whose data is on the first shard; skipped where the servers want another protocol of the router."""
    version = subprocess.run(  # noqa: S603
        [find_mongod(), "--version"], capture_output=True, text=True, check=True
    )
    if "db version v6.0." not in version.stdout:
        pytest.skip(
            f"the router of the tests speaks to shards of MongoDB 6.0, not of {version.stdout.splitlines()[0]}"
        )
    with data_in_memory(), ShardedCluster() as cluster:
        yield cluster


class Workers:
    """Users who ask, each in a process of its own, until they are told to stop."""

    def __init__(self, uri: str, threads: list[str]) -> None:
        self.uri = uri
        self.is_over = False
        self.answered = dict.fromkeys(threads, 0)

    async def work(self, thread: str) -> None:
        """Ask and answer, and load the history before each question."""
        async with await ConversationStore.connect(self.uri) as store:
            chat = store.conversation(user_id="worker", thread_id=thread)
            while not self.is_over:
                number = self.answered[thread]
                await chat.load_history()
                async with await chat.turn(
                    f"{thread}-{number}", human=f"What of {number}?"
                ) as turn:
                    await turn.append(
                        AIMessage(f"{thread} {number}", id=f"{thread}-{number}-answer")
                    )
                self.answered[thread] = number + 1

    async def answer(self, number: int) -> None:
        """Wait until each has answered so many questions more."""
        wanted = {thread: answered + number for thread, answered in self.answered.items()}
        while any(self.answered[thread] < least for thread, least in wanted.items()):  # noqa: ASYNC110 - several tasks
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Compare the logs with what was acknowledged."""
        async with await ConversationStore.connect(self.uri) as store:
            for thread, answered in self.answered.items():
                chat = store.conversation(user_id="worker", thread_id=thread)
                texts = [str(message.content) async for message in chat.messages()]
                assert texts == [
                    text for n in range(answered) for text in (f"What of {n}?", f"{thread} {n}")
                ]
            assert (await store.verify()).findings == ()
            assert len((await store.list_conversations(user_id="worker")).conversations) == len(
                self.answered
            )


@pytest.mark.slow
async def test_the_page_of_sharding_works_while_turns_run(cluster: ShardedCluster) -> None:
    """Each command of docs/scaling.md is accepted; no turn fails, and no message is lost, while a range moves.

    Every shard then has the same indexes, and reads a state by its key. A router that looked before the move is told
    by the shards.
    """
    commands = commands_of_the_page()
    assert {name for name, _ in commands} == {
        "convstore",
        "shardCollection",
        "splitAt",
        "adminCommand",
    }
    async with await ConversationStore.connect(cluster.uri) as store:
        await store.setup()
    with pytest.raises(OperationFailure, match="couldn't find valid index for shard key"):
        cluster.shard_collection("app.log", {"conversation": 1})
    workers = Workers(cluster.uri, [f"t{number}" for number in range(6)])
    async with asyncio.TaskGroup() as group:
        for thread in workers.answered:
            group.create_task(workers.work(thread))
        for name, arguments in commands:
            await workers.answer(2)
            await asyncio.to_thread(run, cluster, name, arguments)
        await workers.answer(2)
        workers.is_over = True
    await workers.check()
    assert cluster.owners("app.log") == [*SHARDS]
    assert cluster.moved > 0
    assert cluster.refused == []
    indexes = [set(cluster.shards[shard].app.log.index_information()) for shard in SHARDS]
    assert indexes[0] == indexes[1]
    for client in cluster.shards.values():
        state = client.app.log.find_one({"revision": {"$exists": True}})
        assert state is not None
        wanted = {"_id": state_id(state["conversation"]), "conversation": state["conversation"]}
        plan = client.app.log.find(wanted).explain()["executionStats"]
        assert plan["nReturned"] == 1
        assert plan["totalKeysExamined"] + plan["totalDocsExamined"] == 2


@pytest.mark.slow
async def test_every_call_works_on_a_sharded_cluster(cluster: ShardedCluster) -> None:
    """For a conversation on the first shard and for one on another; setting it up again changes nothing."""
    for name, arguments in commands_of_the_page():
        if cluster.owners("app.log") != [*SHARDS]:
            await asyncio.to_thread(run, cluster, name, arguments)
    before = cluster.shards[SHARDS[0]].app.log.index_information()
    again = await asyncio.to_thread(
        convstore, "migrate", "--sharded", "--json", CONVSTORE_URI=cluster.uri
    )
    assert json.loads(again.stdout)["shard_keys"] == []
    assert cluster.shards[SHARDS[0]].app.log.index_information() == before
    async with AsyncMongoClient[dict[str, Any]](cluster.uri) as client:
        for shard in SHARDS:
            store = summarizing(client["app"])
            number = 0
            while True:
                chat = store.conversation(user_id="ada", thread_id=f"{shard} {number}")
                await chat.update(title="Seals")
                if cluster.shard_of("app.log", (await chat.info()).conversation_id) == shard:
                    break
                number += 1
            ids = await prepared(chat)
            for call in CALLS.values():
                await call(chat, ids)
            assert (await store.list_conversations(user_id="ada")).conversations == []
            await store.close()
    assert cluster.refused == []


async def test_only_the_command_for_sharding_makes_its_indexes(
    server_uri: str, own_database: Any
) -> None:
    """`setup` makes none of them; `migrate --sharded` makes those that are missing, and --dry-run names them."""
    await ConversationStore(own_database).setup()
    uri = server_uri.replace("/?", f"/{own_database.name}?")
    answers = []
    for option in (["--dry-run"], [], []):
        result = await asyncio.to_thread(
            convstore, "migrate", "--sharded", "--json", *option, CONVSTORE_URI=uri
        )
        answers.append(json.loads(result.stdout)["shard_keys"])
    assert answers == [[*SHARD_KEYS], [*SHARD_KEYS], []]
    for name in OF_CONVERSATIONS:
        keys = [
            dict(index["key"]) for index in (await own_database[name].index_information()).values()
        ]
        assert {"conversation": 1, "_id": 1} in keys
    assert (await ConversationStore(own_database).verify()).findings == ()

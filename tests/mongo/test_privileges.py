"""The roles of examples/roles.js on a server that demands a login: what each of them can do, and what it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from canary import PASSWORD
from command_line import convstore
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from convstore import ConversationStore
from convstore.devserver import find_mongod
from convstore.exceptions import MissingPrivilegeError
from convstore.summarization import HeadTailSummarizer
from convstore.testing.samples import rag_turn
from convstore.values.policy import CompactionRule

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "roles.js"
RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=100, keep_last_turns=1)


def commands_of_the_script() -> list[dict[str, Any]]:
    """The commands that the script gives, as mongosh takes them."""
    script = SCRIPT.read_text(encoding="utf-8")
    return [
        json.loads(text)
        for text in re.findall(r"^db\.runCommand\((\{.*?\})\)$", script, re.MULTILINE | re.DOTALL)
    ]


@contextmanager
def guarded_server() -> Iterator[str]:
    """The address of a replica set of one node that demands a login, with a user who may do everything."""
    folder = Path(tempfile.mkdtemp())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    key = folder / "key"
    key.write_text("c2VjcmV0" * 4, encoding="ascii")
    key.chmod(0o600)
    command = [
        str(find_mongod()),
        "--replSet",
        "guarded",
        "--keyFile",
        str(key),
        "--dbpath",
        str(folder),
    ]
    options = [
        "--port",
        str(port),
        "--bind_ip",
        "127.0.0.1",
        "--nounixsocket",
        "--wiredTigerCacheSizeGB",
        "0.3",
    ]
    address = f"127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)  # noqa: S603
    try:
        with MongoClient[dict[str, Any]](address, directConnection=True) as client:
            client.admin.command(
                "replSetInitiate", {"_id": "guarded", "members": [{"_id": 0, "host": address}]}
            )
            while not client.admin.command("hello")["isWritablePrimary"]:
                time.sleep(0.05)
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        yield f"mongodb://root:{PASSWORD}@{address}/app?replicaSet=guarded&authSource=admin"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """The address for the user who may do everything; the roles of the script exist, and a user for each."""
    with guarded_server() as uri:
        with MongoClient[dict[str, Any]](uri) as client:
            for command in commands_of_the_script():
                client["app"].command(command)
            for name in ("convstoreServe", "convstoreMigrate", "convstoreCheck", "convstoreProbe"):
                client["app"].command("createUser", name, pwd=PASSWORD, roles=[name])
            roles = ["convstoreServe", "convstoreWatch"]
            client["app"].command("createUser", "application", pwd=PASSWORD, roles=roles)
            roles = ["convstoreServe", "convstoreMigrate", "convstoreCheck"]
            client["app"].command("createUser", "operator", pwd=PASSWORD, roles=roles)
        yield uri


def address_of(root: str, role: str) -> str:
    """The address for the user with a role."""
    return root.replace("root:", f"{role}:").replace("authSource=admin", "authSource=app")


@pytest.fixture
def database(root: str) -> Iterator[Any]:
    """The database, for the user who may do everything; dropped afterwards, users and roles excepted."""
    with MongoClient[dict[str, Any]](root) as client:
        yield client["app"]
        for name in client["app"].list_collection_names():
            client["app"].drop_collection(name)


@pytest.fixture
async def serving(root: str, database: Any) -> AsyncIterator[ConversationStore]:
    """A store of a user who may only serve, on a database that another user has set up."""
    migrated = await asyncio.to_thread(
        convstore, "migrate", "--uri", address_of(root, "convstoreMigrate")
    )
    assert migrated.exit_code == 0, migrated.stderr
    summarizer = HeadTailSummarizer(RULE)
    async with await ConversationStore.connect(
        address_of(root, "application"), summarizer=summarizer
    ) as store:
        yield store


async def test_a_serving_user_can_do_all_that_an_application_does(
    serving: ConversationStore, caplog: pytest.LogCaptureFixture
) -> None:
    """`setup` on a database that is up to date, every kind of write and read, the change stream, and all deletions."""
    await serving.setup()
    await serving.ping()
    chat = serving.conversation(user_id="ada", thread_id="t")
    turn = rag_turn("What about seals?")
    await chat.append(turn)
    async with await chat.turn("turn-1", human="And whales?") as work:
        await work.append(AIMessage("Whales, too."))
    await chat.append([HumanMessage("why " * 400), AIMessage("so")])
    assert (await chat.compact(force=True)).status == "done"
    await chat.annotate(str(turn[0].id), rating=1)
    await chat.state.update({"step": 1})
    await chat.update(title="On seals")
    assert (await chat.load_history()).messages
    assert await chat.search("seals")
    assert (await serving.search("seals", user_id="ada")).conversations
    assert await chat.get_tool_messages([str(message.id) for message in turn])
    await chat.rewind(before_id=str(turn[-1].id))
    await chat.undo_rewind()
    fork = await chat.fork(key="k", new_scope={"user_id": "ada", "thread_id": "fork"})
    assert (await serving.list_conversations(user_id="ada")).conversations
    assert (await serving.stats()).conversations == 2
    async for update in chat.watch():
        assert update.messages
        break
    await fork.delete()
    assert (await serving.erase(user_id="ada")).conversations == 1
    assert (await serving.erase(lost=True, dry_run=True)).conversations == 0
    assert not caplog.records


async def test_a_serving_user_who_finds_work_for_a_migration_is_told(
    root: str, database: Any
) -> None:
    """`setup` names `convstore migrate` and the privilege; `ping` says that nothing is set up."""
    async with await ConversationStore.connect(address_of(root, "convstoreServe")) as store:
        with pytest.raises(
            MissingPrivilegeError, match=r"convstore migrate.*not authorized on app"
        ) as caught:
            await store.setup()
        assert isinstance(caught.value.__cause__, MissingPrivilegeError | PyMongoError)
        with pytest.raises(MissingPrivilegeError, match="convstore migrate"):
            await store.setup(listings=[("thread_id", "user_id")])


async def test_a_user_without_privileges_is_told(root: str, database: Any) -> None:
    """`ping`, a read and a write raise the same error, which names the command and the collection."""
    database.command("createUser", "nobody", pwd=PASSWORD, roles=[])
    try:
        async with await ConversationStore.connect(address_of(root, "nobody")) as store:
            with pytest.raises(
                MissingPrivilegeError, match=r'find: "convstore_migrations".*operations\.md'
            ):
                await store.ping()
            with pytest.raises(MissingPrivilegeError, match="convstore_migrations"):
                await store.conversation(user_id="ada", thread_id="t").append(HumanMessage("hi"))
    finally:
        database.command("dropUser", "nobody")


async def test_a_checking_user_reads_everything_and_writes_nothing(
    serving: ConversationStore, root: str
) -> None:
    """The doctor and the commands that look end without an error; a repair and an erasure are refused."""
    chat = serving.conversation(user_id="ada", thread_id="t")
    await chat.append(rag_turn("What about seals?"))
    checking = ["--uri", address_of(root, "convstoreCheck")]
    looks = (
        ["doctor"],
        ["list"],
        ["show", "1"],
        ["search", "seals", "--scope", "user_id=ada"],
        ["stats"],
        ["export"],
    )
    for command in (*looks, ["erase", "--everything"], ["prune", "--older-than", "1d"]):
        result = await asyncio.to_thread(convstore, *command, *checking)
        assert (result.exit_code, "permit" in result.stderr) == (0, False), command
    result = await asyncio.to_thread(convstore, "erase", "--everything", "--yes", *checking)
    assert result.exit_code == 1
    assert "does not permit" in result.stderr
    assert (await chat.info()).message_count == 4


async def test_an_operator_repairs(serving: ConversationStore, database: Any, root: str) -> None:
    """The three roles together let the doctor create an index again and restore a head."""
    await serving.conversation(user_id="ada", thread_id="t").append(HumanMessage("hi"))
    database["log"].drop_index("ordinals")
    database["heads"].update_one({}, {"$set": {"written_at": 7}})
    uri = address_of(root, "operator")
    repaired = await asyncio.to_thread(convstore, "doctor", "--uri", uri, "--repair")
    assert (repaired.exit_code, "2 found, 2 repaired" in repaired.stdout) == (0, True)
    assert (await asyncio.to_thread(convstore, "doctor", "--uri", uri)).exit_code == 0


async def test_a_role_has_nothing_to_spare(root: str, database: Any) -> None:
    """A migrating user can neither read annotations nor change a log; a serving one cannot create an index."""
    migrating, serving = (
        MongoClient[dict[str, Any]](address_of(root, role))["app"]
        for role in ("convstoreMigrate", "convstoreServe")
    )
    for work in (
        migrating["annotations"].find_one,
        lambda: migrating["log"].delete_many({}),
        lambda: serving["log"].create_index("x"),
        lambda: serving["convstore_migrations"].insert_one({}),
        serving["others"].find_one,
    ):
        with pytest.raises(PyMongoError, match="not authorized"):
            work()
    migrating.client.close()
    serving.client.close()


def test_the_server_is_tried_by_its_own_role(root: str, database: Any) -> None:
    """Everything is tried with the role of the script; a user who may not drop collections leaves none."""
    result = convstore("doctor", "--server", "--json", "--uri", address_of(root, "convstoreProbe"))
    assert {part["status"] for part in json.loads(result.stdout)["constructs"]} == {"supported"}
    assert result.exit_code == 0
    result = convstore("doctor", "--server", "--uri", address_of(root, "convstoreMigrate"))
    assert (result.exit_code, "role convstoreProbe" in " ".join(result.stdout.split())) == (1, True)
    assert "supported" not in result.stdout
    assert database.list_collection_names() == []

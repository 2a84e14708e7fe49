"""One real MongoDB for all tests, and a database of each driver on it."""

from __future__ import annotations

import gc
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from canary import Address, Canary, sign_up
from counting import Commands
from fixture_types import Client
from hypothesis import HealthCheck, settings
from long_first import begin_with_long
from memory_folder import data_in_memory
from pymongo import AsyncMongoClient, MongoClient
from quick_memory import make_quick
from quick_run import is_quick, is_slow, is_slow_module
from rewriting import rewrite_before_workers_start
from routing import Routing

from convstore import Conversation, ConversationStore
from convstore.devserver import DevNode, DevServer
from convstore.search import across, sealer

# No deadline: the machine may be busy.
settings.register_profile(
    "quick", max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# The same examples each time, half of what each test asks for.
settings.register_profile(
    "whole", settings.get_profile("quick"), max_examples=50, derandomize=True, print_blob=True
)
settings.load_profile("whole" if os.environ.get("CI") else "quick")

# The machine may be busy: a search reads everything, and a store that is closed seals all that is due.
across._MAX_SECONDS = 600.0
sealer._CLOSE_SECONDS = 600.0

# Workers and programs that this run starts share what is compiled: without it each compiles all of the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_COMMANDS = Commands()


def pytest_configure(config: pytest.Config) -> None:
    """Fail each test that shows the password of the server's address, or whose store sends a command to all shards."""
    # Before the collection: what it imports and makes stays.
    gc.set_threshold(50_000, 20, 20)
    config.pluginmanager.register(Canary())
    config.pluginmanager.register(Routing())
    rewrite_before_workers_start(config)


def pytest_xdist_auto_num_workers() -> int | None:
    """Take one worker where there is one server for all: a test that makes commands fail would fail others."""
    return 1 if os.environ.get("CONVSTORE_TEST_URI") else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave modules of slow tests out of a quick run; None lets other plugins decide."""
    return (
        True
        if is_quick(config) and collection_path.is_file() and is_slow_module(collection_path)
        else None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item] | None:
    """Leave slow tests out of a quick run; None lets other plugins decide."""
    return (
        []
        if is_quick(collector.config) and name.lower().startswith("test") and is_slow(obj)
        else None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a costly test but the first one as slow, before pytest leaves out what is marked."""
    seen = set[tuple[object, str]]()
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("costly"):
            case = (item.parent, item.originalname)
            if case in seen:
                item.add_marker("slow")
            seen.add(case)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_begin_with_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin a run of slow tests with those that take longest."""
    if not is_quick(config):
        begin_with_long(config, items)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through modules and cases again and again: they stay to the end."""
    gc.collect()
    gc.freeze()


def _acknowledge_in_memory(node: DevNode) -> None:
    """Let a majority be one in memory unless a write asks for the journal: dropping a database takes 3 ms, not 100."""
    config = node.command("replSetGetConfig")["config"]
    config |= {"version": config["version"] + 1, "writeConcernMajorityJournalDefault": False}
    node.command("replSetReconfig", config)


@pytest.fixture(scope="session")
def server_uri() -> Iterator[str]:
    """The address of a real server: CONVSTORE_TEST_URI, or a private one that is started here, with a password."""
    if given := os.environ.get("CONVSTORE_TEST_URI"):
        yield Address(given)
        return
    server = DevServer()
    with data_in_memory():
        server.start()
    with server:
        _acknowledge_in_memory(server.nodes[0])
        yield sign_up(server.uri)


@pytest.fixture(scope="session")
def database_name(server_uri: str) -> Iterator[str]:
    """A database of this run, dropped at its end."""
    name = f"convstore_test_{uuid.uuid4().hex[:8]}"
    yield name
    with MongoClient[dict[str, Any]](server_uri) as client:
        client.drop_database(name)


@pytest.fixture(scope="session")
async def pymongo_client(server_uri: str, database_name: str) -> AsyncIterator[Client]:
    """A client that all tests share; the database of this run is set up."""
    async with AsyncMongoClient[dict[str, Any]](server_uri) as client:
        await ConversationStore(client[database_name]).setup()
        yield client


@pytest.fixture
def commands() -> Commands:
    """The commands of `client` in this test."""
    _COMMANDS.reset()
    return _COMMANDS


@pytest.fixture(scope="session")
async def client(server_uri: str, database_name: str) -> AsyncIterator[Client]:
    """A client whose commands are counted; one for all tests, as connecting and logging in takes time."""
    async with AsyncMongoClient[dict[str, Any]](server_uri, event_listeners=[_COMMANDS]) as client:
        await ConversationStore(client[database_name]).setup()
        yield client


@pytest.fixture
def database(pymongo_client: Client, database_name: str) -> Any:
    """The database of this run, which tests share: each has a scope of its own."""
    return pymongo_client[database_name]


@pytest.fixture
async def own_database(pymongo_client: Client, database_name: str) -> AsyncIterator[Any]:
    """A database for one test, dropped after it."""
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    yield pymongo_client[name]
    await pymongo_client.drop_database(name)


@pytest.fixture(scope="session")
async def _reused_database(pymongo_client: Client, database_name: str) -> AsyncIterator[Any]:
    """The database of `emptied_database`."""
    database = pymongo_client[f"{database_name}_reused"]
    await ConversationStore(database).setup()
    yield database
    await pymongo_client.drop_database(database.name)


@pytest.fixture
async def emptied_database(_reused_database: Any) -> AsyncIterator[Any]:
    """A database that is set up and empty, for tests that leave indexes as they are: a new one takes 100 ms."""
    yield _reused_database
    for name in await _reused_database.list_collection_names():
        if name != "convstore_migrations":
            await _reused_database[name].delete_many({})


@pytest.fixture
def quick_memory() -> Iterator[None]:
    """Let databases in memory be quick in a test of thousands of reads."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        yield


@pytest.fixture
async def store(database: Any) -> AsyncIterator[ConversationStore]:
    """A store on the database of this run, which is set up: another look at it would read a hundred heads."""
    store = ConversationStore(database)
    store._host.schema.is_ready = True
    yield store
    await store.close()


@pytest.fixture
def scope() -> dict[str, str]:
    """A conversation of its own for each test."""
    return {"user_id": "ada", "thread_id": uuid.uuid4().hex}


@pytest.fixture
def chat(store: ConversationStore, scope: dict[str, str]) -> Conversation:
    """An empty conversation of `store`."""
    return store.conversation(**scope)


@pytest.fixture
def seconds() -> list[float]:
    """The clock of a store, which a test moves."""
    return [100.0]

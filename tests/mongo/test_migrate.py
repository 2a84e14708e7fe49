"""Migrations: what they leave behind, however often and by however many they are run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fixture_types import Client
from langchain_core.messages import HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore, StoreUnavailableError
from convstore.exceptions import NotSetUpError, SchemaVersionError
from convstore.mongo import driver
from convstore.mongo import migrator as migrate
from convstore.mongo.indexes import Index, indexes_for
from convstore.mongo.keys import ANNOTATIONS, HEADS, LOG, MIGRATIONS, OF_CONVERSATIONS, SUMMARIES
from convstore.mongo.migrator import MigrationStep, Migrator, Target, discover

KEYS = ("user_id", "course_id")

NewStore = Callable[..., ConversationStore]


@pytest.fixture
async def server_database(pymongo_client: Client, database_name: str) -> AsyncIterator[Any]:
    """An empty database on a real server."""
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    yield pymongo_client[name]
    await pymongo_client.drop_database(name)


@pytest.fixture(params=["server", "memory"])
async def database(request: pytest.FixtureRequest, server_database: Any) -> Any:
    """An empty database, on a real server and in memory."""
    return server_database if request.param == "server" else AsyncMongoMockClient()["app"]


@pytest.fixture
def new_store(database: Any) -> NewStore:
    """Makes stores on the empty database."""
    return lambda **options: ConversationStore(database, **{"scope_keys": KEYS, **options})


async def applied(database: Any) -> list[str]:
    """Ids of everything that the runner keeps: applied migrations, and a lease if there is one."""
    return [
        document["_id"]
        for document in await database[MIGRATIONS].find({}).sort("_id", 1).to_list(None)
    ]


async def indexes_of(database: Any, collection: str) -> dict[str, tuple[Any, ...]]:
    """Keys, uniqueness and filter of each index, that of ``_id`` apart."""
    found = await database[collection].index_information()
    return {
        name: (
            tuple(tuple(key) for key in index["key"]),
            index.get("unique", False),
            filter_of(index),
        )
        for name, index in found.items()
        if name != "_id_"
    }


def filter_of(index: dict[str, Any]) -> dict[str, Any] | None:
    """The partial filter of an index as a plain dict."""
    found = index.get("partialFilterExpression")
    return {key: dict(value) for key, value in found.items()} if found else None


def expected(index: Index) -> tuple[Any, ...]:
    """Return an index of the schema as a server describes it."""
    return index.keys, index.unique, {index.present: {"$exists": True}} if index.present else None


async def snapshot(database: Any) -> dict[str, Any]:
    """Collections, their indexes and their documents."""
    names = await database.list_collection_names()
    return {
        name: (
            await indexes_of(database, name),
            await database[name].find({}).sort("_id", 1).to_list(None),
        )
        for name in sorted(names)
    }


def test_files_are_numbered_without_gaps() -> None:
    """Every migration has a number of its own and one sentence that says what it does."""
    found = discover()
    assert [migration.name[:4] for migration in found] == [
        f"{number:04d}" for number in range(1, len(found) + 1)
    ]
    assert [migration.name for migration in found if not migration.summary.endswith(".")] == []


async def test_a_fresh_server_has_exactly_the_indexes_of_the_schema(server_database: Any) -> None:
    """Names, keys, uniqueness and filters; nothing more."""
    await ConversationStore(server_database, scope_keys=KEYS).setup()
    assert sorted(await server_database.list_collection_names()) == sorted(
        [HEADS, MIGRATIONS, *OF_CONVERSATIONS]
    )
    assert await indexes_of(server_database, LOG) == {
        index.name: expected(index) for index in indexes_for([])["log"]
    }
    assert await indexes_of(server_database, HEADS) == {
        index.name: expected(index) for index in indexes_for(KEYS)["heads"]
    }


async def test_a_fresh_server_compresses_with_zstd(server_database: Any) -> None:
    """All collections are made with the better compressor, whatever the server's default is."""
    await ConversationStore(server_database, scope_keys=KEYS).setup()
    for name in (LOG, HEADS, ANNOTATIONS, SUMMARIES):
        stats = await server_database.command("collStats", name)
        assert "block_compressor=zstd" in stats["wiredTiger"]["creationString"]


async def test_a_fresh_log_is_clustered(server_database: Any) -> None:
    """The log lies in the order of its ids where the server can do that."""
    await ConversationStore(server_database, scope_keys=KEYS).setup()
    options = {name: await server_database[name].options() for name in (LOG, HEADS)}
    version = (await server_database.command("buildInfo"))["versionArray"]
    assert ("clusteredIndex" in options[LOG]) == (tuple(version[:2]) >= (5, 3))
    assert "clusteredIndex" not in options[HEADS]


async def test_in_memory_only_plain_indexes_are_made(new_store: NewStore) -> None:
    """The in-memory driver would take a unique partial index for a unique one, so it gets none."""
    database = AsyncMongoMockClient()["app"]
    await ConversationStore(database, scope_keys=KEYS).setup()
    plain = {index.name for index in indexes_for([])["log"] if not index.unique}
    assert set(await indexes_of(database, LOG)) == plain
    assert set(await indexes_of(database, HEADS)) == {
        index.name for index in indexes_for(KEYS)["heads"]
    }


async def test_every_name_begins_with_the_prefix(
    new_store: NewStore, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Setup makes only collections with the prefix, and does not set up a store without it."""
    with caplog.at_level("INFO", "convstore"):
        await new_store(collection_prefix="chat_").setup()
    lines = [record.getMessage() for record in caplog.records if record.name == "convstore"]
    assert lines == [
        f"migration {step.name} has run on database {database.name}" for step in discover()
    ]
    assert {name[:5] for name in await database.list_collection_names()} == {"chat_"}
    with pytest.raises(NotSetUpError):
        await new_store().list_conversations(everything=True)


@pytest.mark.costly
async def test_running_twice_changes_nothing(new_store: NewStore, database: Any) -> None:
    """The second run finds all done, by the same store and by a new one."""
    store = new_store()
    await store.setup()
    before = await snapshot(database)
    await store.setup()
    await new_store().setup()
    assert await snapshot(database) == before
    assert await applied(database) == [migration.name for migration in discover()]


@pytest.mark.costly
async def test_data_outlives_a_second_run(new_store: NewStore) -> None:
    """Setting up a database that is in use loses nothing."""
    store = new_store()
    await store.setup()
    await store.conversation(user_id="ada", course_id="ml").append(HumanMessage("hi", id="m1"))
    again = new_store()
    await again.setup()
    assert [m.id async for m in again.conversation(user_id="ada", course_id="ml").messages()] == [
        "m1"
    ]


@pytest.mark.costly
async def test_other_scope_keys_get_their_indexes(new_store: NewStore, database: Any) -> None:
    """A store with keys of its own adds what listing by them needs; nothing has to be migrated for that."""
    await new_store().setup()
    await new_store(scope_keys=("team",)).setup()
    names = {index.name for keys in (KEYS, ("team",)) for index in indexes_for(keys)["heads"]}
    assert set(await indexes_of(database, HEADS)) == names


async def test_two_stores_at_once_leave_one_record(new_store: NewStore, database: Any) -> None:
    """If two stores are set up at once, each migration is recorded once, and both stores work."""
    stores = [new_store() for _ in range(2)]
    await asyncio.gather(*(store.setup() for store in stores))
    assert await applied(database) == [migration.name for migration in discover()]
    for store in stores:
        assert (await store.list_conversations(everything=True)).conversations == []


@pytest.mark.costly
@pytest.mark.parametrize("run", ["setup", "stats"])
async def test_a_newer_database_is_refused(new_store: NewStore, database: Any, run: str) -> None:
    """A migration that this version does not know is an error that names it, and nothing is changed."""
    await new_store().setup()
    await database[MIGRATIONS].insert_one({"_id": "9999_later"})
    before = await snapshot(database)
    with pytest.raises(SchemaVersionError, match=r"9999_later.*upgrade"):
        await getattr(new_store(scope_keys=("team",)), run)()
    assert await snapshot(database) == before


async def test_the_lease_of_a_dead_runner_ends(new_store: NewStore, database: Any) -> None:
    """A lease that ran out is taken over at once and given back."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    await database[MIGRATIONS].insert_one({"_id": "lease", "owner": "dead", "until": past})
    await new_store().setup()
    assert await applied(database) == [migration.name for migration in discover()]


@pytest.mark.slow
async def test_a_live_lease_is_respected(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another runner works nothing is made; the waiting runner raises after a timeout, and the lease stays."""
    monkeypatch.setattr(migrate, "_WAIT_SECONDS", 0.5)
    until = datetime.now(UTC) + timedelta(seconds=60)
    await database[MIGRATIONS].insert_one({"_id": "lease", "owner": "alive", "until": until})
    with pytest.raises(StoreUnavailableError, match="another process"):
        await new_store().setup()
    assert await database.list_collection_names() == [MIGRATIONS]
    assert await applied(database) == ["lease"]


async def test_a_step_that_failed_is_run_again(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that failed is run again, and is recorded as applied only when it completes."""
    [first, *_] = discover()

    async def half(target: Target) -> None:
        await target.create("log")
        raise RuntimeError("killed")

    monkeypatch.setattr(
        migrate, "discover", lambda: (MigrationStep(first.name, first.summary, half),)
    )
    with pytest.raises(RuntimeError, match="killed"):
        await new_store().setup()
    assert await applied(database) == []
    monkeypatch.undo()
    await new_store().setup()
    assert await applied(database) == [migration.name for migration in discover()]
    assert set(await database.list_collection_names()) == {HEADS, MIGRATIONS, *OF_CONVERSATIONS}


@pytest.mark.costly
async def test_only_what_is_pending_is_run(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version runs its new steps on a database of an earlier one, in order, and keeps the records."""
    await new_store().setup()
    ran: list[str] = []

    def step(name: str) -> MigrationStep:
        async def up(_target: Target) -> None:
            ran.append(name)

        return MigrationStep(name, "A later step.", up)

    later = [step("9001_next"), step("9002_last")]
    known = (*discover(), *later)
    monkeypatch.setattr(migrate, "discover", lambda: known)
    await new_store().setup()
    assert ran == ["9001_next", "9002_last"]
    assert await applied(database) == [migration.name for migration in known]


USES = {
    "append": lambda store: store.conversation(user_id="a", course_id="b").append(
        HumanMessage("hi")
    ),
    "load_history": lambda store: store.conversation(user_id="a", course_id="b").load_history(),
    "get_tool_messages": lambda store: store.conversation(
        user_id="a", course_id="b"
    ).get_tool_messages(["m"]),
    "info": lambda store: store.conversation(user_id="a", course_id="b").info(),
    "update": lambda store: store.conversation(user_id="a", course_id="b").update(title="t"),
    "delete": lambda store: store.conversation(user_id="a", course_id="b").delete(),
    "list_conversations": lambda store: store.list_conversations(everything=True),
}


@pytest.mark.parametrize("use", USES)
async def test_nothing_works_before_setup(new_store: NewStore, database: Any, use: Any) -> None:
    """Each call says what to do, and makes no collection by accident."""
    with pytest.raises(NotSetUpError, match=r"setup\(\)"):
        await USES[use](new_store())
    assert await database.list_collection_names() == []


def later_step(up: Callable[[Target], Any]) -> tuple[MigrationStep, ...]:
    """Return the migrations of this version, and one more."""
    return (*discover(), MigrationStep("9001_long", "A long step.", up))


@pytest.mark.slow
async def test_a_long_step_keeps_its_lease(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it works the lease is renewed, so that no other runner begins the same."""
    await new_store().setup()
    ends: list[datetime] = []

    async def long(_target: Target) -> None:
        while len(ends) < 3:
            lease = await database[MIGRATIONS].find_one({"_id": "lease"})
            ends.extend([lease["until"]] if lease["until"] not in ends else [])
            await asyncio.sleep(0.01)

    known = later_step(long)
    monkeypatch.setattr(migrate, "discover", lambda: known)
    monkeypatch.setattr(migrate, "_RENEW_SECONDS", 0.2)
    await new_store().setup()
    assert ends == sorted(ends)
    assert await applied(database) == [migration.name for migration in known]


@pytest.mark.costly
async def test_a_step_stops_when_its_lease_is_lost(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that was not there for a minute does not work beside the one that took over."""
    await new_store().setup()
    stopped = asyncio.Event()

    async def long(_target: Target) -> None:
        await database[MIGRATIONS].update_one({"_id": "lease"}, {"$set": {"owner": "another"}})
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    known = later_step(long)
    monkeypatch.setattr(migrate, "discover", lambda: known)
    monkeypatch.setattr(migrate, "_RENEW_SECONDS", 0.2)
    with pytest.raises(StoreUnavailableError, match="took over"):
        await new_store().setup()
    assert stopped.is_set()
    assert "9001_long" not in await applied(database)
    assert (await database[MIGRATIONS].find_one({"_id": "lease"}))["owner"] == "another"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [60, 0])
async def test_a_renewal_that_fails_does_not_end_a_step(
    server_database: Any, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The step goes on until the lease would have ended since it was last renewed."""
    await ConversationStore(server_database, scope_keys=KEYS).setup()
    failed = asyncio.Event()

    async def long(_target: Target) -> None:
        data = {"failCommands": ["update"], "errorCode": 11600, "closeConnection": True}
        fails = {"configureFailPoint": "failCommand", "mode": {"times": 2}, "data": data}
        await server_database.client.admin.command(fails)
        try:
            await failed.wait()
        finally:  # a renewal that was given up by the client may have left one over
            await server_database.client.admin.command(
                {"configureFailPoint": "failCommand", "mode": "off"}
            )

    renew = Migrator._renew

    async def noted(self: Migrator, owner: str) -> bool:
        try:
            return await renew(self, owner)
        except StoreUnavailableError:
            failed.set()
            raise

    known = later_step(long)
    monkeypatch.setattr(migrate, "discover", lambda: known)
    monkeypatch.setattr(migrate, "_RENEW_SECONDS", 0.2)
    monkeypatch.setattr(migrate, "_LEASE_TIME", timedelta(seconds=seconds))
    monkeypatch.setattr(Migrator, "_renew", noted)
    setup = ConversationStore(server_database, scope_keys=KEYS).setup()
    if seconds:
        await setup
    else:
        with pytest.raises(StoreUnavailableError):
            await setup
    assert ("9001_long" in await applied(server_database)) == bool(seconds)


async def test_a_step_may_take_longer_than_a_command(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index over a large collection takes as long as it takes; other commands give up after 40 s."""
    asked: list[float | None] = []
    limit = driver.driver_errors

    def limited(*, seconds: float | None = driver.COMMAND_SECONDS) -> Any:
        asked.append(seconds)
        return limit(seconds=seconds)

    monkeypatch.setattr(driver, "driver_errors", limited)
    await new_store().setup()
    assert None in asked


@pytest.mark.costly
async def test_two_runners_do_a_step_once(
    new_store: NewStore, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits until the first is done, and finds nothing left to do."""
    await new_store().setup()
    ran: list[str] = []

    async def once(_target: Target) -> None:
        ran.append("begun")
        for _ in range(20):
            await database[MIGRATIONS].find_one({})
            await asyncio.sleep(0)

    known = later_step(once)
    monkeypatch.setattr(migrate, "discover", lambda: known)
    await asyncio.gather(*(new_store().setup() for _ in range(3)))
    assert ran == ["begun"]


@pytest.mark.costly
async def test_nothing_is_waited_for_when_nothing_is_to_do(
    new_store: NewStore, database: Any
) -> None:
    """A process that starts while another one migrates something else's keys does not stand still."""
    await new_store().setup()
    until = datetime.now(UTC) + timedelta(seconds=60)
    await database[MIGRATIONS].insert_one({"_id": "lease", "owner": "alive", "until": until})
    await new_store().setup()
    assert (await database[MIGRATIONS].find_one({"_id": "lease"}))["owner"] == "alive"

"""Rolling deployments: processes of two versions use one database while the newer one migrates it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from counting import STANDING
from langchain_core.messages import AIMessage, HumanMessage
from mongomock_motor import AsyncMongoMockClient
from server_kinds import refusing

from convstore import ConversationStore
from convstore.admin import retention
from convstore.exceptions import SchemaVersionError
from convstore.mongo import migrator as migrate
from convstore.mongo.keys import MIGRATIONS
from convstore.mongo.migrator import MigrationStep, Target, discover
from convstore.mongo.versions import LEVEL

CHAT = {"user_id": "ada", "thread_id": "seals"}
START = datetime(2026, 1, 5, tzinfo=UTC)

Steps = Callable[..., MigrationStep]


@pytest.fixture
def database() -> Any:
    """An empty database in memory; what depends on a server has a test on one."""
    return AsyncMongoMockClient()["app"]


@pytest.fixture
async def old(database: Any, seconds: list[float]) -> ConversationStore:
    """A process that has used the database; the test moves its clock."""
    store = ConversationStore(database, clock=replace(STANDING, monotonic=lambda: seconds[0]))
    await store.setup()
    await store.conversation(**CHAT).append(
        [HumanMessage("Why?", id="h1"), AIMessage("So.", id="a1")]
    )
    return store


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let this version have more migrations; their names are listed as they run."""
    ran: list[str] = []

    def step(name: str, **options: Any) -> MigrationStep:
        async def up(_target: Target) -> None:
            ran.append(name)

        return MigrationStep(name, "A later step.", up, **options)

    def add(**named: dict[str, Any]) -> list[str]:
        known = (*discover(), *(step(f"9{name}", **options) for name, options in named.items()))
        monkeypatch.setattr(migrate, "discover", lambda: known)
        monkeypatch.setattr("convstore.store.handle.discover", lambda: known)
        return ran

    return add


async def migrated(database: Any, *, level: int) -> None:
    """Let a newer version have run a migration, with the level that it asks for."""
    await database[MIGRATIONS].insert_one(
        {"_id": "9999_later", "applied_at": START, "level": level}
    )


CALLS: dict[str, Callable[[ConversationStore], Any]] = {
    "append": lambda store: store.conversation(**CHAT).append(HumanMessage("More?")),
    "resent": lambda store: store.conversation(**CHAT).append_history(HumanMessage("More?")),
    "annotate": lambda store: store.conversation(**CHAT).annotate("a1", rating=1),
    "update": lambda store: store.conversation(**CHAT).update(title="Seals"),
    "state": lambda store: store.conversation(**CHAT).state.update({"step": 1}),
    "rewind": lambda store: store.conversation(**CHAT).rewind(before_id="a1"),
    "undo_rewind": lambda store: store.conversation(**CHAT).undo_rewind(),
    "reserve": lambda store: store.conversation(**CHAT).reserve_source_ids(2),
    "turn": lambda store: store.conversation(**CHAT).turn("t1", human="More?"),
    "stop": lambda store: store.conversation(**CHAT).stop("h1"),
    "compact": lambda store: store.conversation(**CHAT).compact(),
    "delete": lambda store: store.conversation(**CHAT).delete(),
    "erase": lambda store: store.erase(user_id="ada"),
    "prune": lambda store: store.prune(older_than=timedelta(days=1)),
    "load": lambda store: store.conversation(**CHAT).load_history(),
    "list": lambda store: store.list_conversations(everything=True),
    "setup": lambda store: store.setup(),
    "migrations": lambda store: store.migrations(),
    "ping": lambda store: store.ping(),
}


async def test_a_running_process_learns_that_it_is_excluded(
    database: Any, old: ConversationStore, seconds: list[float]
) -> None:
    """Within 10 seconds every call is refused, before it writes; until then what it knows is at most so old."""
    await migrated(database, level=LEVEL + 1)
    assert len((await old.conversation(**CHAT).load_history()).messages) == 2
    seconds[0] += 11
    before = await database["log"].count_documents({})
    for call in CALLS.values():
        with pytest.raises(SchemaVersionError, match=r"9999_later.*upgrade"):
            await call(old)
    assert await database["log"].count_documents({}) == before


async def test_a_migration_that_asks_for_no_more_disturbs_nobody(
    database: Any, old: ConversationStore, seconds: list[float]
) -> None:
    """Unknown migrations are refused only by processes below what they ask for."""
    await migrated(database, level=LEVEL)
    seconds[0] += 11
    assert (await old.conversation(**CHAT).append(HumanMessage("More?"))).first == 3
    await ConversationStore(database).setup()


async def test_a_held_turn_is_not_written_to_by_an_older_process(
    database: Any, old: ConversationStore, seconds: list[float]
) -> None:
    """A turn may last for hours, so each of its writes asks again."""
    async with await old.conversation(**CHAT).turn("t1", human="More?") as turn:
        await migrated(database, level=LEVEL + 1)
        seconds[0] += 11
        with pytest.raises(SchemaVersionError, match="9999_later"):
            await turn.append(AIMessage("Then."))


@pytest.mark.usefixtures("old")
async def test_a_stream_ends_in_an_older_process(database: Any, seconds: list[float]) -> None:
    """No draft, renewal or release is written from then on, and the stream raises."""

    async def hurry(time: float) -> None:
        await asyncio.sleep(time / 200)

    async def words() -> AsyncIterator[str]:
        for _ in range(1_000):
            yield "word "
            await hurry(1)

    async def everything() -> list[Any]:
        return [await database[name].find().to_list(None) for name in ("log", "drafts")]

    async def answer() -> None:
        async with await store.conversation(**CHAT).turn("t1", human="More?") as turn:
            async for _ in turn.stream(words()):
                if not before and await database["drafts"].count_documents({}):
                    await migrated(database, level=LEVEL + 1)
                    seconds[0] += 11
                    before.extend(await everything())

    store = ConversationStore(
        database, clock=replace(STANDING, monotonic=lambda: seconds[0], sleep=hurry)
    )
    await store.ping()
    before: list[Any] = []
    with pytest.raises(SchemaVersionError, match="9999_later"):
        await answer()
    assert await everything() == before


async def test_an_older_process_does_not_go_on_erasing(
    database: Any, old: ConversationStore, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure of everything may last for hours, so it asks again at each conversation."""

    def wait(_: object) -> None:
        seconds[0] += 11

    monkeypatch.setattr(retention, "_BATCH", 1)
    await old.conversation(user_id="eve", thread_id="seals").append(HumanMessage("Why?"))
    await migrated(database, level=LEVEL + 1)
    with pytest.raises(SchemaVersionError, match="9999_later"):
        await old.erase(everything=True, progress=wait)
    assert await database["log"].count_documents({"first": 1}) == 1


async def test_an_older_process_does_not_go_on_watching(
    database: Any, old: ConversationStore, seconds: list[float]
) -> None:
    """A watch may last for days, so each of its reads asks again."""
    async with aclosing(old.conversation(**CHAT).watch()) as updates:
        await anext(updates)
        await migrated(database, level=LEVEL + 1)
        seconds[0] += 11
        async with asyncio.timeout(60):
            with pytest.raises(SchemaVersionError, match="9999_later"):
                await anext(updates)


async def test_a_step_of_the_phase_after_waits_for_the_end_of_the_deployment(
    database: Any, old: ConversationStore, steps: Any
) -> None:
    """The new version works without it; it is run when it is asked for."""
    ran = steps(_before={}, _after={"phase": "after"})
    store = ConversationStore(database)
    await store.setup()
    assert ran == ["9_before"]
    assert len((await store.conversation(**CHAT).load_history()).messages) == 2
    assert [
        (migration.name, migration.phase)
        for migration in await store.migrations()
        if not migration.is_applied
    ] == [("9_after", "after")]
    report = await store.verify(repair=True)
    assert (report.findings, ran) == ((), ["9_before"])
    await store.setup(after_deployment=True)
    await store.setup(after_deployment=True)
    assert ran == ["9_before", "9_after"]


async def test_a_new_database_gets_every_step_at_once(
    database: Any, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new database runs every step at once, because it has no older processes to wait for."""
    monkeypatch.setattr(migrate.Migrator, "_announce", None)
    ran = steps(_after={"phase": "after", "level": LEVEL + 1}, _last={})
    await ConversationStore(database).setup()
    assert ran == ["9_after", "9_last"]
    assert await database[MIGRATIONS].count_documents({"begins_at": {"$exists": True}}) == 0


async def test_a_step_that_a_needed_one_follows_is_run_before_it(
    database: Any, old: ConversationStore, steps: Any
) -> None:
    """An upgrade that skips a version runs what was left after the deployment of that version, in order."""
    ran = steps(_after={"phase": "after"}, _needed={}, _rest={"phase": "after"})
    await ConversationStore(database).setup()
    assert ran == ["9_after", "9_needed"]


async def announcement(database: Any, migrating: asyncio.Future[None]) -> Any:
    """The record of a step that is announced; the error of the runner if there is one."""
    while (found := await database[MIGRATIONS].find_one({"_id": "9_after"})) is None:
        await asyncio.sleep(0.01)
        assert not migrating.done(), migrating.result()
    return found


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_step_begins_when_older_writers_are_out(
    database: Any,
    old: ConversationStore,
    steps: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_killed: bool,
) -> None:
    """A step begins when every older process has learnt of it and the appends of older processes have ended.

    The time since the announcement counts, even if the process that made it was killed.
    """
    ran = steps(_after={"phase": "after", "level": LEVEL + 1})
    monkeypatch.setattr(migrate, "_POLL_SECONDS", 0.01)
    now = [START]
    store = ConversationStore(database, clock=replace(STANDING, now=lambda: now[0]))
    migrating = asyncio.ensure_future(store.setup(after_deployment=True))
    announced = await announcement(database, migrating)
    assert (announced["level"], announced.get("applied_at")) == (LEVEL + 1, None)
    if is_killed:
        migrating.cancel()
        await asyncio.wait({migrating})
    now[0] += timedelta(seconds=79)
    if is_killed:
        migrating = asyncio.ensure_future(store.setup(after_deployment=True))
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert ran == []
    now[0] += timedelta(seconds=2)
    await migrating
    assert ran == ["9_after"]
    assert "begins_at" not in (await database[MIGRATIONS].find_one({"_id": "9_after"}) or {})


async def test_a_new_database_waits_for_no_deployment(own_database: Any, steps: Any) -> None:
    """In a new database `setup` runs the steps of both phases, because there are no older processes."""
    ran = steps(_after={"phase": "after"})
    await ConversationStore(own_database).setup()
    assert ran == ["9_after"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "margin"),
    [(nullcontext, 0), pytest.param(refusing, 100, marks=pytest.mark.slow)],
    ids=["own", "measured"],
)
async def test_the_server_says_when_a_step_begins(
    own_database: Any, steps: Any, monkeypatch: pytest.MonkeyPatch, server: Any, margin: int
) -> None:
    """The server's clock measures the time between the announcement of a step and its beginning."""
    monkeypatch.setattr(migrate, "_OLDER_ARE_OUT", timedelta(milliseconds=50))
    monkeypatch.setattr(migrate, "SWEEP_MARGIN", timedelta(milliseconds=margin))
    with server():
        await ConversationStore(own_database).setup()
        ran = steps(_after={"phase": "after", "level": LEVEL + 1})
        begun = (await own_database.command("hello"))["localTime"]
        await ConversationStore(own_database).setup(after_deployment=True)
        ended = (await own_database.command("hello"))["localTime"]
    assert ran == ["9_after"]
    assert ended - begun >= timedelta(milliseconds=50 + margin)


def test_this_version_may_use_what_it_migrates() -> None:
    """No migration asks for more than the level of the version that has it."""
    assert [migration.name for migration in discover() if migration.level > LEVEL] == []


async def test_a_changed_migration_is_found(database: Any, old: ConversationStore) -> None:
    """Each records its checksum, and the doctor names those that ran in another form."""
    [first, *_] = discover()
    recorded = await database[MIGRATIONS].find_one({"_id": first.name})
    assert (recorded["phase"], recorded["checksum"]) == (first.phase, first.checksum)
    await database[MIGRATIONS].update_one({"_id": first.name}, {"$set": {"checksum": "other"}})
    report = await old.verify(repair=True)
    assert [
        (finding.kind, finding.document_id, finding.repaired) for finding in report.findings
    ] == [("migration", first.name, False)]

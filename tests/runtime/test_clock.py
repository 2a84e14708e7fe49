"""Time that passes while a machine sleeps counts, and leases and sweeps go by one clock, the server's."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage

from convstore import ConversationStore
from convstore.integration import host_of
from convstore.mongo.migrator import Migrator
from convstore.runtime.clock import Clock

AHEAD = timedelta(days=3)


def test_the_clock_counts_while_the_machine_sleeps() -> None:
    """The clock counts the time that the machine sleeps, where the system has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert abs(Clock().monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1


@pytest.mark.parametrize(
    ("boot", "wall", "is_within"),
    [
        (0, 0, True),
        (9, 9, True),
        (11, 11, False),
        (11, 0, False),
        (0, 11, False),
        (0, -11, False),
        (9, -1, True),
    ],
)
def test_either_clock_says_that_an_id_is_old(boot: float, wall: float, is_within: bool) -> None:
    """The wall clock jumps after a sleep that the other did not count; one that jumps back is not trusted."""
    clock = Clock(monotonic=lambda: 100.0, wall=lambda: 100.0)
    later = Clock(monotonic=lambda: 100.0 + boot, wall=lambda: 100.0 + wall)
    assert later.is_within(10, since=clock.moment()) == is_within


async def test_an_append_after_a_long_sleep_goes_to_the_new_conversation(
    client: Client, database_name: str, commands: Commands
) -> None:
    """The machine slept through a deletion and its sweeps; only its wall clock knows."""
    wall = [0.0]
    scope = {"user_id": "asleep", "thread_id": uuid.uuid4().hex}
    sleeper = ConversationStore(
        client[database_name], clock=replace(STANDING, wall=lambda: wall[0])
    )
    await sleeper.setup()
    chat = sleeper.conversation(**scope)
    await chat.append(HumanMessage("old"))
    await ConversationStore(client[database_name]).conversation(**scope).delete()
    wall[0] += 2 * 86_400
    await chat.append(HumanMessage("new"))
    assert [
        message.content
        async for message in ConversationStore(client[database_name])
        .conversation(**scope)
        .messages()
    ] == ["new"]
    wall[0] += 11
    with commands.counted():
        await chat.load_history()
    assert sorted(sent["find"] for _, sent in commands.sent) == [
        "convstore_migrations",
        "heads",
        "log",
    ]


@pytest.fixture
def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this process is three days ahead."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + AHEAD

    for module in ("runtime.clock", "mongo.driver", "mongo.migrator"):
        monkeypatch.setattr(f"convstore.{module}.datetime", Ahead)


@pytest.mark.usefixtures("wrong_clock")
async def test_a_process_with_a_wrong_clock_breaks_no_lease_of_a_migration(
    own_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is held by the server's time is held for everybody, until it has lapsed."""
    has_tried = asyncio.Event()
    is_taken = list[bool]()
    try_lease = Migrator._try_lease

    async def tried(migrator: Migrator, owner: str) -> bool:
        is_taken.append(await try_lease(migrator, owner))
        has_tried.set()
        return is_taken[-1]

    monkeypatch.setattr(Migrator, "_try_lease", tried)
    until = datetime.now(UTC) + timedelta(seconds=60)
    leases = own_database["convstore_migrations"]
    await leases.insert_one({"_id": "lease", "owner": "alive", "until": until})
    waiting = asyncio.ensure_future(ConversationStore(own_database).setup())
    await has_tried.wait()
    assert not any(is_taken)
    await leases.update_one(
        {"_id": "lease"}, {"$set": {"until": datetime.now(UTC) - timedelta(seconds=1)}}
    )
    await waiting
    assert await leases.find_one({"_id": "lease"}) is None


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_clock")
async def test_a_process_with_a_wrong_clock_takes_over_no_compaction(
    database: Any, scope: dict[str, str]
) -> None:
    """The lease in the state is dated by the server, and compared there."""
    log, found = database["log"], list[Any]()

    async def summarize(_messages: Any, _summary: str | None) -> str:
        other = ConversationStore(database, summarizer=summarize).conversation(**scope)
        state = {"conversation": (await other.info()).conversation_id, "lease": {"$exists": True}}
        found.append((await log.find_one(state))["lease"]["until"])
        found.append((await other.compact(force=True)).status)
        await log.update_one(
            state, {"$set": {"lease.until": datetime.now(UTC) - timedelta(seconds=1)}}
        )
        return "short"

    store = ConversationStore(database, summarizer=summarize)
    await store.setup()
    chat = store.conversation(**scope)
    for _ in range(6):
        await chat.append([HumanMessage("why " * 500), AIMessage("so " * 500)])
    await chat.compact(force=True)
    until = found[0].replace(tzinfo=UTC)
    assert timedelta(seconds=50) < until - datetime.now(UTC) <= timedelta(seconds=60)
    assert found[1] == "busy"


@pytest.mark.usefixtures("wrong_clock")
async def test_a_process_with_a_wrong_clock_sweeps_nothing_early(own_database: Any) -> None:
    """A tombstone is due 80 seconds after the deletion by the server's time, whatever the processes believe."""
    store = ConversationStore(own_database)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    await chat.delete()
    [tombstone] = await own_database["heads"].find({}).to_list(None)
    ahead = tombstone["sweep_at"].replace(tzinfo=UTC) - datetime.now(UTC)
    assert timedelta(seconds=70) < ahead <= timedelta(seconds=80)
    await (await host_of(store).services()).retention.sweep()
    assert await own_database["heads"].find({}).to_list(None) == [tombstone]

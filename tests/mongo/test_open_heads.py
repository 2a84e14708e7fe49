"""Heads that are open: what the timer costs and keeps alive, and listings after a writer was killed."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import uuid
import weakref
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore
from convstore.integration import host_of
from convstore.mongo.heads import HeadChange, Heads
from convstore.runtime import open_heads
from convstore.testing.listing import HandMovedTime

CRASH = Path(__file__).with_name("listing_crash.py")


@pytest.fixture
def time() -> HandMovedTime:
    """A clock at zero."""
    return HandMovedTime()


@pytest.fixture
def user() -> str:
    """A user whom no other test has."""
    return uuid.uuid4().hex


@pytest.fixture
async def counted(client: Client, database_name: str, time: HandMovedTime) -> AsyncIterator[ConversationStore]:
    """A store on the counted client, whose time the test moves."""
    store = ConversationStore(client[database_name], clock=time.clock)
    await store.setup()
    yield store
    await store.close()


async def question_and_answer(store: ConversationStore, user: str, thread: str) -> None:
    """A burst of two appends; the second one is owed."""
    chat = store.conversation(user_id=user, thread_id=thread)
    await chat.append(HumanMessage("q"))
    await chat.append(AIMessage("a"))


@pytest.mark.slow
async def test_a_listing_from_another_process_is_right_after_kill_9(server_uri: str, database: Any, user: str) -> None:
    """Two writers are killed in a burst; a third process lists all that is in the logs as soon as the burst is over."""
    await ConversationStore(database).setup()

    async def start(call: str, argument: str) -> asyncio.subprocess.Process:
        words = (str(CRASH), server_uri, database.name, call, user, argument)
        return await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)

    writers = [await start("write", name) for name in ("k", "o")]
    acknowledged: dict[str, str] = {}
    for writer in writers:
        assert writer.stdout
        for _ in range(20):
            thread, number = (await writer.stdout.readline()).decode().split()
            acknowledged[thread] = number
    for writer in writers:
        writer.kill()
        await writer.wait()
    heads = await database["heads"].find({"scope.user_id": user}).to_list(None)
    moment = max(head["open_until"] for head in heads).replace(tzinfo=UTC)
    lister = await start("list", moment.isoformat())
    listed = json.loads((await lister.communicate())[0])
    assert set(listed) == set(acknowledged) == {f"{name}{number}" for name in "ko" for number in range(3)}
    looker = ConversationStore(database)
    for thread, (count, text) in listed.items():
        log = [one.text async for one in looker.conversation(user_id=user, thread_id=thread).messages()]
        assert (count, text) == (len(log), log[-1])
        assert int(text) >= int(acknowledged[thread])
    assert any(head["totals"]["active"] < listed[head["scope"]["thread_id"]][0] for head in heads)


async def test_closing_many_heads_is_one_command(
    counted: ConversationStore, commands: Commands, time: HandMovedTime, user: str
) -> None:
    """By the timer and by `close`; and a store that owes nothing sends nothing."""
    for number in range(10):
        await question_and_answer(counted, user, f"t{number}")
    with commands.counted():
        await time.pass_by(10, counted)
    assert commands.names == ["update"]
    await question_and_answer(counted, user, "t0")
    await question_and_answer(counted, user, "t1")
    heads = (await host_of(counted).services()).open_heads
    with commands.counted():
        await heads.close()
    assert commands.names == ["update"]
    with commands.counted():
        await heads.close()
        await time.pass_by(30, counted)
    assert commands.names == []


async def test_a_listing_reads_the_log_of_late_heads_alone(  # noqa: PLR0917 - fixtures
    client: Client,
    database_name: str,
    counted: ConversationStore,
    commands: Commands,
    time: HandMovedTime,
    user: str,
) -> None:
    """One command for each of those on its page."""
    for number in range(6):
        await question_and_answer(counted, user, f"t{number}")
        time.seconds += 2
    other = ConversationStore(client[database_name], clock=time.clock)
    other._host.is_ready = True
    with commands.counted():
        page = await other.list_conversations(user_id=user)
    assert [info.message_count for info in page.conversations] == [1, 1, 1, 1, 2, 2]
    assert commands.names == ["find"] * 3
    with commands.counted():
        await other.list_conversations(user_id=user, limit=4)
    assert commands.names == ["find"]


async def test_a_timer_closes_500_heads_a_second(
    counted: ConversationStore, commands: Commands, time: HandMovedTime, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first; the others a second later."""
    monkeypatch.setattr(open_heads, "_BATCH", 2)
    for number in range(5):
        await question_and_answer(counted, user, f"t{number}")
    sent = []
    for seconds in (10, 0.5, 0.5, 1, 1):
        with commands.counted():
            await time.pass_by(seconds, counted)
        sent.append(len(commands.sent))
    assert sent == [1, 0, 1, 1, 0]


async def test_too_many_open_heads_are_closed_early(  # noqa: PLR0917 - fixtures
    client: Client,
    database_name: str,
    counted: ConversationStore,
    commands: Commands,
    time: HandMovedTime,
    user: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest; their next append opens them again, so that nothing is owed without a listing that looks."""
    monkeypatch.setattr(open_heads, "_BATCH", 2)
    monkeypatch.setattr(open_heads, "_MAXIMUM_OPEN", 4)
    for number in range(4):
        await counted.conversation(user_id=user, thread_id=f"t{number}").append(HumanMessage("q"))
    await (await host_of(counted).services()).open_heads.settled()
    heads = client[database_name]["heads"]
    query = {"scope.user_id": user, "open_until": {"$exists": True}}
    assert {head["scope"]["thread_id"] async for head in heads.find(query)} == {"t2", "t3"}
    chat = counted.conversation(user_id=user, thread_id="t0")
    with commands.counted():
        await chat.append(AIMessage("a"))
    assert commands.names == ["insert", "update"]
    head = await heads.find_one({"scope": chat.scope})
    assert head
    assert head["open_until"].replace(tzinfo=UTC) == time.now + timedelta(seconds=10)


async def test_the_timer_keeps_no_store_alive() -> None:
    """A store that nobody uses any more is collected, though its timer is set."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    await question_and_answer(store, "ada", "t")
    kept = weakref.ref((await host_of(store).services()).open_heads)
    assert kept()
    del store
    gc.collect()
    assert kept() is None


def test_each_event_loop_has_a_timer_that_does_not_keep_it(time: HandMovedTime) -> None:
    """A store in memory may be used on one loop after the other; what the first one owed the second one writes."""
    database = AsyncMongoMockClient()["app"]
    store = ConversationStore(database, clock=time.clock)

    async def use(thread: str) -> None:
        await store.setup()
        await question_and_answer(store, "ada", thread)

    async def see() -> list[int]:
        await use("t2")
        await time.pass_by(10, store)
        return sorted([head["totals"]["active"] async for head in database["heads"].find()])

    asyncio.run(use("t1"))
    assert len(time.timers) == 1
    time.timers.clear()
    assert asyncio.run(see()) == [2, 2]
    assert len((store._services.open_heads)._armed) == 0


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bursts end soon, and what would close their heads hangs; returns a counter of the attempts."""
    tried: list[int] = []

    async def hang(_: Heads, changes: Sequence[HeadChange]) -> None:
        tried.append(len(changes))
        await asyncio.Event().wait()

    monkeypatch.setattr(open_heads, "OPEN_SECONDS", 0.4)
    monkeypatch.setattr(Heads, "catch_up", hang)
    return tried


async def leave_a_burst() -> None:
    """Drop a store without closing it."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    await question_and_answer(store, "ada", "t")


def test_a_loop_that_stood_still_is_closed_without_a_word(hanging: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """The timer is overdue when the loop runs its last steps; it begins nothing that could not end."""
    with asyncio.Runner() as runner:
        runner.run(leave_a_burst())
        sleep(0.6)
    gc.collect()
    assert (hanging, caplog.messages) == ([], [])


@pytest.mark.filterwarnings("error")
def test_a_loop_that_is_closed_while_a_head_is_written_says_nothing(
    hanging: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody cancels its tasks; the head stays open, and listings read the log."""

    async def use() -> None:
        await leave_a_burst()
        while not hanging:  # noqa: ASYNC110 - the timer has no event
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    gc.collect()
    assert (hanging, caplog.messages) == ([1], [])


async def test_a_loop_that_stood_still_and_goes_on_closes_its_heads(hanging: list[int]) -> None:
    """A little later than it would have."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    await question_and_answer(store, "ada", "t")
    sleep(0.6)  # noqa: ASYNC251 - that is the point
    await asyncio.sleep(0.3)
    assert hanging == [1]

"""Times by the server's clock where the server does not compare them itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient
from refusing_server import RefusingServer, documentdb, forbidding, refusal

from convstore import ConversationStore, StoreUnavailableError
from convstore.exceptions import StoreError
from convstore.mongo.migrator import discover
from convstore.mongo.times import SERVER_TIME, SWEEP_MARGIN, ServerClock, Times

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class _Server:
    """A server with a clock of its own, whose answers take a while."""

    def __init__(self) -> None:
        self.seconds, self.ahead, self.connections, self.asked = 0.0, 0.0, 1, 0
        self.round_trips: Iterator[float] = iter(())
        self.clock = ServerClock(
            self.hello, connections=lambda: self.connections, monotonic=lambda: self.seconds
        )

    async def hello(self) -> Mapping[str, Any]:
        """Answer after a round trip; the answer is written in its middle."""
        self.asked += 1
        half = next(self.round_trips, 0.0) / 2
        self.seconds += half
        at = _EPOCH + timedelta(seconds=self.seconds + self.ahead)
        self.seconds += half
        return {"localTime": at.replace(tzinfo=None)}

    async def error(self) -> float:
        """Return by how many seconds the clock is wrong."""
        found = await self.clock.now()
        return round((found - _EPOCH).total_seconds() - self.seconds - self.ahead, 3)


async def test_the_servers_clock_is_measured_each_minute_and_after_a_reconnect() -> None:
    """By the middle of the round trip; the monotonic clock carries it on, and a longer trip is tried again."""
    server = _Server()
    server.round_trips = iter((0.4, 30.0, 0.6, 1.6, 0.2))
    assert (await server.error(), server.asked) == (0.0, 1)
    server.seconds += 59
    assert (await server.error(), server.asked) == (0.0, 1)
    server.seconds += 1
    server.ahead = 7.0
    assert (await server.error(), server.asked) == (0.0, 4)
    server.ahead = -7.0
    assert await server.error() == 14.0
    server.connections = 2
    assert (await server.error(), server.asked) == (0.0, 5)


async def test_a_clock_that_cannot_be_measured_is_an_error() -> None:
    """No lease is judged by a guess: not if each answer takes long, and not without a time in it."""
    server = _Server()
    server.round_trips = iter((9.0, 8.0, 7.0))
    with pytest.raises(StoreUnavailableError, match=r"took 7\.0 s to tell its time"):
        await server.clock.now()

    async def silent() -> Mapping[str, Any]:
        return {}

    clock = ServerClock(silent, connections=lambda: 0, monotonic=lambda: 0.0)
    with pytest.raises(StoreError, match=r"nor tells its time.*docs/releases\.md"):
        await clock.now()


async def test_a_server_that_refuses_pipelines_is_found_once_and_recorded(
    server_uri: str, own_database: Any
) -> None:
    """`setup()` records what is refused; a process that never calls it uses the replacements from its first call on."""
    with RefusingServer(server_uri, documentdb) as server:
        async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
            database = client[own_database.name]
            await ConversationStore(database).setup()
            record = await database["convstore_migrations"].find_one({"_id": "server"})
            assert record == {
                "_id": "server",
                "refused": ["join by a pipeline", "server time", "size of documents"],
            }
            server.refused.clear()
            store = ConversationStore(database)
            chat = store.conversation(user_id="ada", thread_id="t")
            async with await chat.turn("q1", human="Do orcas sleep?") as turn:
                await turn.append(AIMessage("One half of the brain at a time."))
            [info] = (await store.list_conversations(user_id="ada")).conversations
            stats = await store.stats(sizes=True)
            assert (info.message_count, stats.messages, dict(server.refused)) == (2, 2, {})
    plain = ConversationStore(own_database)
    plain._host.driver.refused.clear()
    plain._host.schema.is_ready = True
    assert (await plain.stats(sizes=True)).bytes == stats.bytes


async def test_a_lost_connection_is_not_a_refusal(server_uri: str, own_database: Any) -> None:
    """An answer that says nothing about the construct ends `setup()`, or lets it go on, and records nothing."""

    def shut_down(command: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return refusal(91, "The server is shutting down") if "update" in command else None

    for rules, error in (
        ((shut_down, documentdb), StoreUnavailableError),
        ((forbidding("aggregate"),), None),
    ):
        with RefusingServer(server_uri, *rules) as server:
            async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
                store = ConversationStore(client[own_database.name])
                with pytest.raises(error) if error else nullcontext():
                    await store.setup()
                assert store._host.driver.refused == set()
    assert await own_database["convstore_migrations"].find_one({"_id": "server"}) is None


async def test_a_database_that_was_moved_is_found_out_by_setup(
    server_uri: str, own_database: Any
) -> None:
    """Both ways: onto a server that refuses more than the record says, and with the next migration back."""
    await ConversationStore(own_database).setup()
    records = own_database["convstore_migrations"]
    with RefusingServer(server_uri, documentdb) as server:
        async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
            store = ConversationStore(client[own_database.name])
            with pytest.raises(
                StoreError,
                match=r"field must be a document; if .* moved .* run `convstore migrate`",
            ):
                await store.conversation(user_id="ada", thread_id="t").turn(
                    "q1", human="Do orcas sleep?"
                )
            await store.setup()
    assert SERVER_TIME in (await records.find_one({"_id": "server"}))["refused"]
    await records.delete_one({"_id": discover()[-1].name})
    store = ConversationStore(own_database)
    await store.setup()
    assert (await records.find_one({"_id": "server"}))["refused"] == []
    assert store._host.driver.refused == set()


async def test_a_refused_join_is_remembered(server_uri: str, own_database: Any) -> None:
    """Of two pages and a look at one conversation, the first one tries it; then come a find and one for each head."""
    store = ConversationStore(own_database)
    await store.setup()
    await store.conversation(user_id="ada", thread_id="t").append(HumanMessage("hi"))
    with RefusingServer(server_uri, documentdb) as server:
        async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
            other = ConversationStore(client[own_database.name])
            pages = [await other.list_conversations(user_id="ada") for _ in range(2)]
            info = await other.conversation(user_id="ada", thread_id="t").info()
            assert [listed.message_count for page in pages for listed in page.conversations] == [
                1,
                1,
            ]
            assert info.message_count == 1
            assert sum(server.refused.values()) == 1


async def test_times_have_a_margin_only_by_the_measured_clock() -> None:
    """2 s for leases and what is asked for else; an injected clock and a server's own have none."""
    server = _Server()
    refused = {SERVER_TIME}
    measured, injected = (
        Times(None, server.clock, refused),
        Times(lambda: _EPOCH, server.clock, refused),
    )
    for margin, options in ((2, {}), (60, {"margin": SWEEP_MARGIN})):
        past = {"$exists": True, "$lte": _EPOCH - timedelta(seconds=margin)}
        assert await measured.is_past("until", **options) == {"until": past}
        assert await injected.is_past("until", **options) == {"until": {"$lte": _EPOCH}}
    later = _EPOCH + timedelta(seconds=30)
    assert await measured.setting({"x": 1}, field="until", ahead=later - _EPOCH) == {
        "$set": {"x": 1, "until": later}
    }
    refused.clear()
    assert "$expr" in await measured.is_past("until")
    assert server.asked == 1

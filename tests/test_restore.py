"""A backup that is restored beneath running processes, on a real server: what it costs, and what is found."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from counting import Commands, cold
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient

from convstore import BrokenLogError, Conversation, ConversationStore
from convstore.exceptions import StoreUnavailableError
from convstore.services import reader
from convstore.services.clock import Clock
from convstore.testing.restoring import restore, saved, talk, texts

Client = AsyncMongoClient[dict[str, Any]]


@pytest.fixture
def seconds() -> list[float]:
    """The store's clock, which a test moves."""
    return [100.0]


@pytest.fixture
async def chat(client: Client, database_name: str, seconds: list[float]) -> Conversation:
    """A conversation on the counted client."""
    store = ConversationStore(client[database_name], clock=Clock(monotonic=lambda: seconds[0]))
    await store.setup()
    return store.conversation(user_id="restored", thread_id=uuid.uuid4().hex)


def turn() -> list[HumanMessage | AIMessage]:
    """A turn that was never appended."""
    return [HumanMessage("q", id=uuid.uuid4().hex), AIMessage("a", id=uuid.uuid4().hex)]


async def test_an_idle_store_reads_the_last_entry_while_it_checks_the_id(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """One command more in the same round trip; a young tail costs none."""
    await talk(chat, range(2))
    for idle, expected in ((9, ["insert"]), (11, ["find", "insert", "update"]), (0, ["insert"])):
        seconds[0] += idle
        with commands.counted():
            await chat.append(turn())
        assert commands.names == expected


async def test_an_old_tail_is_read_though_the_id_was_checked_since(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """A look-up by id checks the id alone."""
    await talk(chat, range(2))
    seconds[0] += 11
    await chat.get_tool_messages(["x"])
    with commands.counted():
        await chat.append(turn())
    assert commands.names == ["find", "insert", "update"]


async def test_an_idle_store_goes_on_behind_what_another_appended(
    chat: Conversation, client: Client, database_name: str, seconds: list[float]
) -> None:
    """A log that only has more is no other one."""
    await talk(chat, range(2))
    await talk(cold(client, database_name, chat), range(2, 5))
    seconds[0] += 11
    await talk(chat, range(5, 6))
    assert await texts(chat) == [f"q{number}" for number in range(6)]
    await chat.store.close()
    assert (await cold(client, database_name, chat).info()).message_count == 12
    assert (await cold(client, database_name, chat).store.verify(user_id="restored")).counts.get("head_totals") is None


@pytest.mark.parametrize("idle", [0, 5])
async def test_what_a_young_store_appends_is_found(
    chat: Conversation, client: Client, seconds: list[float], database: Any, idle: int
) -> None:
    """It is no part of a log that was restored beneath it; every reader says so and names the doctor."""
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await chat.load_history()
    await restore(database, backup)
    seconds[0] += idle
    assert (await chat.append(turn())).first == 21
    other = cold(client, database.name, chat)
    for one in (chat, other, chat, other):
        with pytest.raises(BrokenLogError, match=r"entry is missing.*doctor --repair"):
            await one.load_history()
        with pytest.raises(BrokenLogError, match="entry is missing"):
            _ = [message async for message in one.messages()]
        with pytest.raises(BrokenLogError, match="entry is missing"):
            await one.list_messages()


async def test_a_fork_without_a_hole_is_found(
    chat: Conversation, client: Client, database_name: str, database: Any
) -> None:
    """Another process filled all numbers meanwhile: the entries do not follow each other."""
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await restore(database, backup)
    other = cold(client, database_name, chat)
    await talk(other, range(20, 25))
    await chat.append(turn())
    for one in (chat, other, cold(client, database_name, chat)):
        with pytest.raises(BrokenLogError, match=r"does not follow the entry before it.*doctor --repair") as raised:
            await one.load_history()
        assert raised.value.document_id.endswith(f":{11:012d}")
        with pytest.raises(BrokenLogError, match="does not follow"):
            _ = [message async for message in one.messages()]


async def test_a_young_store_is_told_once_that_the_end_is_lost(
    chat: Conversation, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that was just elected may have less for a moment; then what is there counts."""
    monkeypatch.setattr(reader, "_PAUSES", (0.0, 0.0))
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await restore(database, backup)
    with pytest.raises(StoreUnavailableError, match="acknowledged before"):
        await chat.load_history()
    assert await texts(chat) == [f"q{number}" for number in range(5)]
    assert (await chat.append(turn())).first == 11

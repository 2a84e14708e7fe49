"""What calls cost beside many variants of a turn: commands, bytes, and documents that the server examines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

import pytest
from counting import Commands
from fixture_types import Client
from langchain_core.messages import AIMessage

from convstore import Conversation, ConversationStore
from convstore.ext.ui import ui_messages

_FEW, _MANY = 3, 1_000
_TEXT = "once " * 1_000


class Cost(NamedTuple):
    """Commands, bytes read, and documents that the dearest command examined."""

    commands: int
    bytes: int
    examined: int


@pytest.fixture
async def store(client: Client, database_name: str) -> AsyncIterator[ConversationStore]:
    """A store on the counted client."""
    store = ConversationStore(client[database_name])
    await store.setup()
    yield store
    await store.close()


async def _answer(chat: Conversation, key: str | None = None) -> None:
    async with await chat.turn("q", human=None if key else "Q", regenerate=key) as turn:
        await turn.append(AIMessage(_TEXT))


async def _update(chat: Conversation, commands: Commands, key: str) -> None:
    """Watch how another answer is shown; only the update is counted."""
    async with aclosing(chat.watch(limit=1)) as updates:
        await anext(updates)
        await _answer(chat, key)
        commands.reset()
        while not (await asyncio.wait_for(anext(updates), 30)).messages:
            pass


async def _costs(
    chat: Conversation, commands: Commands, client: Client, name: str, stem: str
) -> dict[str, Cost]:
    first, second = (await chat.variants("q"))[-2:]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "activate": lambda: chat.activate(first),
        "activate again": lambda: chat.activate(second),
        "get_turn": lambda: chat.get_turn("q"),
        "variants": lambda: chat.variants("q", limit=3),
        "page": lambda: ui_messages(chat),
        "regenerate": lambda: _answer(chat, f"{stem}-regenerate"),
        "watch": lambda: _update(chat, commands, f"{stem}-watch"),
    }
    found, database = dict[str, Cost](), client[name]
    for what, call in calls.items():
        await database.command("profile", 2)
        with commands.counted():
            await call()
        await database.command("profile", 0)
        seen = await database["system.profile"].find({"ns": {"$regex": r"\.log$"}}).to_list()
        examined = max((command.get("docsExamined", 0) for command in seen), default=0)
        found[what] = Cost(len(commands.names), commands.bytes, examined)
        await database.drop_collection("system.profile")
    return found


@pytest.mark.slow
async def test_many_variants_cost_what_few_cost(
    store: ConversationStore, commands: Commands, client: Client, database_name: str
) -> None:
    """At most twice the commands and bytes, 100 KB, and 200 documents for each command, with 1,000 of 5 KB."""
    chat = store.conversation(user_id="counted", thread_id="variants")
    await _answer(chat)
    for number in range(_FEW):
        await _answer(chat, f"few-{number}")
    few = await _costs(chat, commands, client, database_name, "few")
    assert few["activate"].commands <= 5
    assert few["regenerate"].commands <= 8
    for number in range(_MANY):
        await _answer(chat, f"many-{number}")
    many = await _costs(chat, commands, client, database_name, "many")
    for what, cost in many.items():
        assert cost.commands <= 2 * few[what].commands, (what, few[what], cost)
        most = 2 * few[what].bytes
        if what != "page":  # it has the whole question and answer
            most = min(100_000, most)
        assert cost.bytes <= most, (what, few[what], cost)
        assert cost.examined <= 200, (what, few[what], cost)

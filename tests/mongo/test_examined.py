"""No call of one user examines the documents of others, however many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from every_call import CALLS, NOT_TRIED, prepared, summarizing
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.integration import host_of
from convstore.mongo.keys import HEADS, OF_CONVERSATIONS

OTHERS = 60
"""Conversations of other users, each with as many documents as the user's largest one."""

MOST = 40
"""Documents of the user in the largest collection, or their keys in an index; about 20 with one command."""


def test_every_public_call_is_counted() -> None:
    """A call that is added later is added here, too."""
    public = {
        name
        for kind in (Conversation, ConversationStore)
        for name in vars(kind)
        if not name.startswith("_")
    }
    tried = {name.partition(", ")[0].removeprefix("store.") for name in CALLS}
    assert public - NOT_TRIED.keys() == tried - {"state"}


async def copied(database: Any, conversation: str) -> int:
    """Copy the documents of a conversation under other ids and for another user each; return their number."""
    number = 0
    for collection in (HEADS, *OF_CONVERSATIONS):
        stored = await database[collection].find({"conversation": conversation}).to_list()
        number += len(stored)
        copies = []
        for other in range(OTHERS):
            id_ = f"{other:024x}"
            for document in stored:
                key = (
                    document["_id"].replace(conversation, id_)
                    if collection != HEADS
                    else f"head {other}"
                )
                changed = {"_id": key, "conversation": id_}
                if "scope" in document:
                    changed["scope"] = {"user_id": f"user {other}", "thread_id": "t"}
                copies.append(document | changed)
        if copies:
            await database[collection].insert_many(copies, ordered=False)
    return number


@asynccontextmanager
async def examining_much(database: Any, most: int = MOST) -> AsyncIterator[list[str]]:
    """Collect the commands on a database that examine more documents or keys than `most`, until the block ends."""
    found = list[str]()
    much = {"$or": [{"docsExamined": {"$gt": most}}, {"keysExamined": {"$gt": most}}]}
    await database.command("profile", 1, filter=much)
    try:
        yield found
    finally:
        await database.command("profile", 0, filter="unset")
        for command in await database["system.profile"].find().to_list():
            found.append(
                f"{command['docsExamined']} documents, {command['keysExamined']} keys: {command['command']}"
            )
        await database.drop_collection("system.profile")


async def test_no_call_examines_the_documents_of_others(
    emptied_database: Any, client: Client
) -> None:
    """Each command of each call examines at most as many documents and keys as the user has, by the server's count."""
    database = client[emptied_database.name]
    store = summarizing(database)
    chat = store.conversation(user_id="ada", thread_id="t")
    ids = await prepared(chat)
    number = await copied(database, (await chat.info()).conversation_id)
    assert number * OTHERS > 5 * MOST
    async with examining_much(database) as problems:
        for call in CALLS.values():
            await call(chat, ids)
    assert not problems
    async with examining_much(database) as found:
        await store.stats()
    assert any("'aggregate': 'log'" in command for command in found)  # the server counts
    await store.close()


async def test_a_turn_is_read_by_its_range_and_one_look_up(
    emptied_database: Any, client: Client
) -> None:
    """However many entries stand between a question and the result that comes late."""
    database = client[emptied_database.name]
    store = ConversationStore(database)
    chat = store.conversation(user_id="ada", thread_id="t")
    call = {"name": "look", "args": {}, "id": "c1"}
    await chat.append([HumanMessage("?", id="q1"), AIMessage("", tool_calls=[call])])
    for number in range(MOST):
        await chat.append(HumanMessage(f"{number}?"))
    await chat.append(ToolMessage("5", tool_call_id="c1", id="late"))
    async with examining_much(database, MOST // 2) as problems:
        turn = await chat.get_turn("q1")
        [stored] = await chat.list_messages(limit=1)
    await store.close()
    assert not problems
    assert turn
    assert (turn.messages[-1].id, stored.turn_id) == ("late", "q1")


@pytest.mark.slow
async def test_entries_are_read_by_number_without_what_stands_between(
    emptied_database: Any, client: Client
) -> None:
    """At most 100 documents: a list of keys would make the server go through the whole collection."""
    store = ConversationStore(client[emptied_database.name])
    chat = store.conversation(user_id="ada", thread_id="t")
    last = 130
    for number in range(last):
        await chat.append(HumanMessage(f"{number}?"))
    conversation = (await chat.info()).conversation_id
    services = await host_of(store).services()
    log = services.reader.log
    for numbers, most in (({2, 3}, 3), ({1, last}, 1), ({2, 60, last}, 1), ({2, 90}, 100)):
        async with examining_much(client[emptied_database.name], most) as problems:
            assert set(await log.entries_numbered(conversation, numbers)) == numbers
        assert not problems
    await store.close()

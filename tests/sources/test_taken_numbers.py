"""Numbers of sources that tools give, in a conversation and its children."""

from __future__ import annotations

from typing import Any

from counting import Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.testing.samples import new_id


async def test_taken_numbers_are_found_by_an_index(
    database: Any, client: Client, commands: Commands
) -> None:
    """Taken source ids are found by an index: the server examines at most two documents, however long the logs are."""
    chat = ConversationStore(client[database.name]).conversation(user_id=new_id(), thread_id="t")
    child = chat.child("researcher")
    for number in range(10):
        await chat.append(HumanMessage(f"question {number}"))
        await child.append(HumanMessage(f"question {number}"))
    result = ToolMessage(
        "found", artifact=[{"source_id": 7, "content": "text"}], tool_call_id="c", name="search"
    )
    with commands.counted():
        await child.append(
            [AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "c"}]), result]
        )
    queries = [
        command["filter"]
        for name, command in commands.sent
        if name == "find" and "lookup" in command["filter"]
    ]
    assert queries
    for query in queries:
        plan = await database.command(
            {"explain": {"find": "log", "filter": query}, "verbosity": "executionStats"}
        )
        assert plan["executionStats"]["totalDocsExamined"] <= 2


async def test_a_worker_that_knows_a_deleted_conversation_numbers_in_the_new_one(
    database: Any,
) -> None:
    """Its sub-agent's numbers were those of the deleted one, which the new one gives, too: its append was refused."""
    scope = {"user_id": new_id(), "thread_id": "t"}
    old, new = (ConversationStore(database).conversation(**scope) for _ in range(2))
    await old.append(_search(old, range(1)))
    await old.child("finder").reserve_source_ids(1)
    await new.delete()
    await new.append(_search(new, await new.reserve_source_ids(4)))
    child = old.child("another finder")
    numbers = await child.reserve_source_ids(2)
    assert numbers == range(5, 7)
    receipt = await child.append(_search(child, numbers))
    assert receipt.source_ids == (5, 6)


def _search(chat: Conversation, numbers: range) -> list[BaseMessage]:
    found = [{"source_id": number, "content": f"{chat.scope} {number}"} for number in numbers]
    call = {"name": "search", "args": {}, "id": "c"}
    result = ToolMessage("hits", artifact=found, tool_call_id="c", name="search")
    return [HumanMessage("q"), AIMessage("", tool_calls=[call]), result]

"""Numbers of sources that tools give, in a conversation and its children."""

from __future__ import annotations

from typing import Any

from counting import Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore
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

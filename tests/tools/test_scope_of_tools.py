"""The tools of a graph take the scope of a run as its nodes do."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import (
    ConversationStore,
    number_sources,
    retrieve_previous_sources_tool,
    search_conversations_tool,
)
from convstore.exceptions import InvalidInputError, InvalidScopeError


def _search(query: str) -> list[dict[str, str]]:
    """Search the book."""
    return [{"title": query, "content": f"What the book says of {query}. " * 8}]


async def test_tools_take_the_scope_apart_from_the_thread(store: ConversationStore) -> None:
    """Numbering, read-back and search work where the thread id of the checkpointer is not that of the scope."""
    call: Any = {"name": "_search", "args": {"query": "owls"}, "id": "call-1", "type": "tool_call"}
    user = uuid.uuid4().hex
    context = {"user_id": user, "thread_id": "t1"}
    config: Any = {
        "configurable": {
            "thread_id": "ada:t1",
            "__pregel_runtime": SimpleNamespace(context=context),
        }
    }
    for thread, scope in (("t1", lambda run: run.context), ("t2", {**context, "thread_id": "t2"})):
        result = await number_sources(_search, store, scope=scope).ainvoke(call, config)
        assert "[1] owls" in result.text
        chat = store.conversation(user_id=user, thread_id=thread)
        await chat.append([HumanMessage("Owls?"), AIMessage("", tool_calls=[call]), result])
        read = retrieve_previous_sources_tool(store, scope=scope)
        assert "What the book says" in await read.ainvoke({"source_ids": "1"}, config)
        others = search_conversations_tool(store, scope=scope)
        found = await others.ainvoke({"find": "owls book"}, config)
        assert ("What the book says" in found) == (thread == "t2")
    eve = retrieve_previous_sources_tool(store, scope={"user_id": "eve", "thread_id": "t1"})
    assert "Not found: 1" in await eve.ainvoke({"source_ids": "1"}, config)
    with pytest.raises(InvalidScopeError, match="thread_id has different values"):
        await retrieve_previous_sources_tool(store).ainvoke({"source_ids": "1"}, config)


def test_a_scope_that_cannot_be_is_refused(store: ConversationStore) -> None:
    """The error comes where the tool is made."""
    chat = store.conversation(user_id="ada", thread_id="t")
    makers: list[Callable[[Any, Any], Any]] = [
        lambda owner, scope: number_sources(_search, owner, scope=scope),
        lambda owner, scope: search_conversations_tool(owner, scope=scope),
        lambda owner, scope: retrieve_previous_sources_tool(owner, scope=scope),
    ]
    for make in makers:
        with pytest.raises(InvalidInputError):
            make(chat, {"user_id": "ada"})
        for scope in ("ada", {"color": "red"}, {"user_id": {"$ne": ""}}):
            with pytest.raises(InvalidScopeError):
                make(store, scope)

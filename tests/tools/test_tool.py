"""The tool as LangChain sees it: its standard tests, its size for the model, its sync side."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from fixture_types import Client
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from mongomock_motor import AsyncMongoMockClient

from convstore import (
    SOURCES_PROMPT,
    ConversationStore,
    SourcePage,
    StoreUnavailableError,
    sources_prompt,
)
from convstore.exceptions import SyncUnsupportedError
from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.readback.request import Request
from convstore.testing import rag_turn
from convstore.tools.retrieval import make_retrieval_tool


def memory_store() -> ConversationStore:
    """A store in memory, made with connect, that a sync caller can use."""

    async def make() -> ConversationStore:
        store = await ConversationStore.connect("memory://")
        await store.setup()
        await store.conversation(user_id="ada", thread_id="t").append(rag_turn("What about seals?"))
        return store

    return asyncio.run(make())


class TestStandardUnit(ToolsUnitTests):
    """LangChain's unit tests of tools."""

    @property
    def tool_constructor(self) -> BaseTool:
        """The bound tool."""
        return (
            memory_store()
            .conversation(user_id="ada", thread_id="t")
            .retrieve_previous_sources_tool()
        )

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        """Return arguments as a model sends them."""
        return {"source_ids": "1-2"}


class TestStandardIntegration(ToolsIntegrationTests):
    """LangChain's integration tests of tools, sync and async."""

    @property
    def tool_constructor(self) -> BaseTool:
        """The bound tool."""
        return (
            memory_store()
            .conversation(user_id="ada", thread_id="t")
            .retrieve_previous_sources_tool()
        )

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        """Return arguments as a model sends them."""
        return {"source_ids": [1, 2]}


def test_the_tool_costs_a_model_little() -> None:
    """The description is under 150 tokens, the prompt fragment under 200."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    tool = store.conversation(user_id="a", thread_id="b").retrieve_previous_sources_tool()
    assert len(tool.description) / CHARACTERS_PER_TOKEN < 150
    assert len(SOURCES_PROMPT) / CHARACTERS_PER_TOKEN < 200
    assert "read_back" in sources_prompt("read_back")


async def test_a_sync_caller_is_served_by_a_connected_store(
    server_uri: str, database_name: str
) -> None:
    """From another thread, and inside a running loop, without a deadlock."""
    host, _, options = server_uri.rpartition("/")
    async with await ConversationStore.connect(f"{host}/{database_name}{options}") as store:
        await store.setup()
        chat = store.conversation(user_id="sync", thread_id=uuid.uuid4().hex)
        await chat.append(rag_turn("What about seals?"))
        tool = chat.retrieve_previous_sources_tool()
        answers = await asyncio.gather(
            *(asyncio.to_thread(tool.invoke, {"source_ids": [1]}) for _ in range(8))
        )
        assert {*answers, tool.invoke({"source_ids": [1]})} == {
            await tool.ainvoke({"source_ids": [1]})
        }


async def test_a_sync_call_on_the_callers_client_says_what_to_do(
    pymongo_client: Client, database_name: str
) -> None:
    """A typed error that names connect and ainvoke."""
    store = ConversationStore(pymongo_client[database_name])
    tool = store.conversation(user_id="a", thread_id="b").retrieve_previous_sources_tool()
    with pytest.raises(SyncUnsupportedError, match=r"ainvoke.*connect"):
        tool.invoke({"source_ids": [1]})


async def test_a_store_that_can_not_answer_is_a_message_for_the_model() -> None:
    """A tool message with an error status; the agent goes on."""

    async def read(_: Request) -> tuple[str, SourcePage]:
        raise StoreUnavailableError("no primary")

    tool = make_retrieval_tool(lambda _: (read, lambda _: pytest.fail("not called")))
    result = await tool.ainvoke(
        {"type": "tool_call", "id": "c", "name": tool.name, "args": {"source_ids": [1]}}
    )
    assert isinstance(result, ToolMessage)
    assert (result.status, result.content) == ("error", "The store cannot answer now: no primary")

"""Which results are numbered: what the model is shown and what the log has are the same numbers, at each door."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command
from scripted_agents import ScriptedModel

from convstore import ConversationStore
from convstore.exceptions import InvalidInputError
from convstore.ext.langchain import ConversationMiddleware

ADA = {"user_id": "ada", "thread_id": "t"}


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


def _records(name: str) -> list[dict[str, str]]:
    return [{"title": f"{name} {n}", "content": f"{name}, part {n}. " * 9} for n in (1, 2)]


@tool(response_format="content_and_artifact")
def counted() -> tuple[str, list[dict[str, str]]]:
    """Count records."""
    found = _records("counted")
    return "\n".join(f"[{n}] {each['content']}" for n, each in enumerate(found, 1)), found


@tool
def documents() -> list[Document]:
    """Return documents as they are."""
    return [
        Document(each["content"], metadata={"title": each["title"]})
        for each in _records("documents")
    ]


@tool
def handed(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Hand documents over in a command."""
    found = [Document(each["content"], metadata={"acl": "SECRET"}) for each in _records("handed")]
    content = "\n\n".join(each.page_content for each in found)
    return Command(
        update={"messages": [ToolMessage(content, artifact=found, tool_call_id=call_id)]}
    )


@tool
def tickets() -> str:
    """List tickets, which are records, not sources."""
    return json.dumps({"results": _records("tickets")})


TOOLS = [counted, documents, handed, tickets]


async def run(store: ConversationStore, **options: Any) -> dict[str, ToolMessage]:
    """Let an agent call each tool, and return what its model was shown."""
    asked = [{"name": each.name, "args": {}, "id": f"call-{each.name}"} for each in TOOLS]
    model = ScriptedModel(replies=[AIMessage("", tool_calls=asked), AIMessage("Done.")])
    middleware = ConversationMiddleware(store, **options)
    agent = create_agent(model, TOOLS, middleware=[middleware])
    await agent.ainvoke({"messages": [("user", "All?")]}, {"configurable": ADA})
    return {
        shown.tool_call_id.removeprefix("call-"): shown
        for shown in model.shown[-1]
        if isinstance(shown, ToolMessage)
    }


async def numbers_of(store: ConversationStore, shown: ToolMessage) -> tuple[list[int], list[int]]:
    """Return the numbers that the model was shown, and those of the log."""
    [record] = await store.conversation(**ADA).get_tool_messages([str(shown.id)])
    assert record.content == shown.content
    found = re.findall(r"\[(\d+)\]|\"source_id\": (\d+)", str(shown.content))
    return [int(mark or field) for mark, field in found], [
        each.source_id for each in record.sources
    ]


async def test_what_says_that_it_is_sources_is_numbered(store: ConversationStore) -> None:
    """Marks, documents and those in a command have the log's numbers; a list of records has none for the model."""
    await store.conversation(**ADA).reserve_source_ids(7)
    shown = await run(store)
    for name in ("counted", "documents", "handed"):
        seen, logged = await numbers_of(store, shown[name])
        assert seen == logged
        assert len(logged) == 2
        assert min(logged) > 7
    assert shown["documents"].text.startswith("[")
    assert "SECRET" not in shown["handed"].text
    seen, logged = await numbers_of(store, shown["tickets"])
    assert (seen, len(logged)) == ([], 2)


async def test_an_application_adds_tools_or_turns_numbers_off(
    store: ConversationStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A named tool is numbered; with () each content stays, and the log names the tool whose marks mislead, once."""
    shown = await run(store, number_sources=("tickets",))
    seen, logged = await numbers_of(store, shown["tickets"])
    assert seen == logged != []
    await store.conversation(**ADA).delete()
    with caplog.at_level(logging.INFO, logger="convstore"):
        for _ in range(2):
            shown = await run(store, number_sources=())
            assert shown["counted"].content == counted.invoke({})
            await store.conversation(**ADA).delete()
    warned = [record for record in caplog.records if "marks" in record.getMessage()]
    assert len(warned) == 1
    assert "'counted'" in warned[0].getMessage()
    with pytest.raises(InvalidInputError, match="'serach', but the agent has no such tool"):
        await run(store, number_sources=("serach",))

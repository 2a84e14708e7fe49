"""Smoke test for the lowest versions: a store, its tool, an agent, a graph's node and the command line, in memory."""

import asyncio
import subprocess
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import load_node

SCOPE = {"user_id": "ada", "thread_id": "lowest"}


class Model(GenericFakeChatModel):
    """Answers what it was given."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - the base class has it
        """Take any tools."""
        return self


async def main() -> None:
    """Append a result, read it back, ask an agent, and load by a node."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        call = {"name": "search", "args": {"q": "\ud800"}, "id": "c1"}
        sources = [Document("Orcas sleep with one half of the brain. " * 60, metadata={"title": "Orcas"})]
        result = ToolMessage(sources[0].page_content, tool_call_id="c1", name="search", artifact=sources, id="r1")
        turn = [HumanMessage("Do orcas sleep?"), AIMessage("", tool_calls=[call]), result, AIMessage("Half.")]
        await chat.append(turn)
        assert [message async for message in chat.messages()] == turn
        assert "source_ids" in (await chat.load_history()).messages[2].content
        page = await chat.retrieve_previous_sources_tool().ainvoke({"tool_message_ids": ["r1"]})
        assert "one half of the brain" in str(page)
        agent = create_agent(Model(messages=iter(["Yes."])), middleware=[ConversationMiddleware(store)])
        answer = await agent.ainvoke({"messages": [HumanMessage("Sure?")]}, {"configurable": SCOPE})
        assert answer["messages"][-1].text == "Yes."
        assert load_node(store)
        assert len([message async for message in chat.messages()]) == 6


asyncio.run(main())
for arguments, code in ((["demo"], 0), (["--help"], 0), (["migrate", "--help"], 0), (["migrate"], 2)):
    command = [sys.executable, "-m", "convstore", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    assert ended.returncode == code, ended

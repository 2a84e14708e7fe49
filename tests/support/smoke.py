"""Smoke test of an installed package: turns, the tool, the command line, and what else is installed, in memory."""

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore

SCOPE = {"user_id": "ada", "thread_id": "smoke"}


class Model(GenericFakeChatModel):
    """Answers what it was given."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - the base class has it
        """Take any tools."""
        return self


async def main() -> None:
    """Append a result, run a turn, read the result back, and ask an agent."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        call = {"name": "search", "args": {"q": "\ud800"}, "id": "c1"}
        sources = [
            Document("Orcas sleep with one half of the brain. " * 60, metadata={"title": "Orcas"})
        ]
        result = ToolMessage(
            sources[0].page_content, tool_call_id="c1", name="search", artifact=sources, id="r1"
        )
        messages = [
            HumanMessage("Do orcas sleep?"),
            AIMessage("", tool_calls=[call]),
            result,
            AIMessage("Half."),
        ]
        await chat.append(messages)
        assert [message async for message in chat.messages()] == messages
        await answer(chat)
        page = await chat.retrieve_previous_sources_tool().ainvoke({"tool_message_ids": ["r1"]})
        assert "one half of the brain" in str(page)
        assert await chat.search("brain")
        if find_spec("langchain"):
            await ask_agent(store)


async def answer(chat: Conversation) -> None:
    """Run a turn, whose view has the old result as a stub."""
    async with await chat.turn("request-1", human="Both halves?") as turn:
        history = await turn.load_history()
        assert "source_ids" in str(history.messages[2].content)
        await turn.append(AIMessage("One at a time [1]."))
    assert turn.answer is not None
    assert turn.answer.text == "One at a time [1]."


async def ask_agent(store: ConversationStore) -> None:
    """Ask an agent of LangChain's, whose messages the log has then."""
    from langchain.agents import create_agent  # noqa: PLC0415 - an extra

    from convstore.ext.langchain import ConversationMiddleware  # noqa: PLC0415 - likewise
    from convstore.ext.langgraph import load_node  # noqa: PLC0415 - likewise

    agent = create_agent(Model(messages=iter(["Yes."])), middleware=[ConversationMiddleware(store)])
    found = await agent.ainvoke({"messages": [HumanMessage("Sure?")]}, {"configurable": SCOPE})
    assert found["messages"][-1].text == "Yes."
    assert load_node(store)
    assert len([message async for message in store.conversation(**SCOPE).messages()]) == 8


asyncio.run(main())
for arguments, code in ((["demo"], 0), (["--help"], 0), (["migrate", "-h"], 0), (["migrate"], 2)):
    command = [sys.executable, "-m", "convstore", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    assert ended.returncode == code, ended

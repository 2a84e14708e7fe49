"""LangChain's create_agent with a store attached in one line: three questions, one of them asked twice.

    python examples/create_agent.py [mongodb://localhost:27017/app]

The address defaults to CONVSTORE_URI, then to memory. Only the model is scripted; it prints the messages that it gets.
The agent searches. At the next question the result is a stub, and the agent reads it again. Then a client that lost
its connection repeats the first question and gets the answer from the log. At the end the state of the agent holds one
turn, and the log all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from convstore import ConversationStore
from convstore.ext.langchain import ConversationMiddleware

QUESTIONS = {
    "q1": "How much water does a tomato need?",
    "q2": "And what was that about mulch?",
    "q3": "Thank you!",
}
PASSAGES = {
    "Watering": "A tomato in fruit drinks one to two litres a day. Water the soil and not the leaves, in the morning, "
    "and evenly: a dry week followed by a wet one splits the fruit.",
    "Mulch": "A hand's breadth of straw or grass cuttings keeps half of the water in the soil, keeps it cool, and "
    "keeps its fungi off the lower leaves when it rains.",
    "Pots": "In a pot a tomato needs water twice a day in summer. Ten litres of soil are the least; twenty forgive a "
    "day that was forgotten.",
}


@tool(response_format="content_and_artifact")
def search(query: str) -> tuple[str, list[dict[str, str]]]:
    """Search the garden book; finds three passages."""
    found = [{"title": title, "content": text} for title, text in PASSAGES.items()]
    shown = [f"[{n}] {each['title']}\n{each['content']}" for n, each in enumerate(found, 1)]
    return "\n\n".join([f"3 passages on {query}", *shown]), found


class ScriptedModel(BaseChatModel):
    """A scripted model: call a tool for each question that needs one, and answer from the result."""

    calls: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:  # noqa: ARG002 - as below
        """Ignore the tools; the script already knows them."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - likewise
        **_: Any,
    ) -> ChatResult:
        self.calls += 1
        print("  The model is shown:", ", ".join(map(_describe, messages)))
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])


def _describe(message: BaseMessage) -> str:
    """Describe a message in a word or two."""
    if isinstance(message, ToolMessage):
        return (
            "stub"
            if message.text.startswith('{"success"')
            else f"result of {len(message.text)} characters"
        )
    return (
        "system"
        if message.type == "system"
        else "call"
        if getattr(message, "tool_calls", ())
        else message.type
    )


def _reply(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return a reply that a model might give to these messages."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        found = [line for line in last.text.splitlines() if line.startswith("[")]
        wanted = "Mulch" if last.name != "search" else "Watering"
        number = next(line for line in found if wanted in line).split("]")[0] + "]"
        says = {
            "Mulch": "Straw keeps half of the water in the soil",
            "Watering": "One to two litres a day",
        }
        return AIMessage(f"{says[wanted]} {number}.")
    if last.text == QUESTIONS["q1"]:
        return _call("search", query="water")
    if last.text == QUESTIONS["q2"]:
        stub = next(message for message in messages if isinstance(message, ToolMessage))
        return _call(
            "retrieve_previous_sources", tool_message_ids=[json.loads(stub.text)["tool_message_id"]]
        )
    return AIMessage("You are welcome.")


def _call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": name, "args": arguments, "id": f"call_{uuid.uuid4().hex[:8]}"}]
    )


async def main(uri: str) -> None:
    """Ask three questions, and the first one again."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        model = ScriptedModel()
        agent = create_agent(
            model,
            tools=[search],
            system_prompt="You know about gardens. Cite sources by their numbers.",
            middleware=[ConversationMiddleware(store)],
            checkpointer=InMemorySaver(),
        )
        # from your authentication, never from the model
        scope = {
            "user_id": "ada",
            "thread_id": uuid.uuid4().hex,
        }
        result: dict[str, Any] = {}
        for request in ("q1", "q2", "q3", "q1"):
            calls, question = model.calls, QUESTIONS[request]
            print(f"\nHuman: {question}")
            result = await agent.ainvoke(
                {"messages": [HumanMessage(question, id=request)]}, {"configurable": scope}
            )
            print(
                f"Agent: {result['messages'][-1].text}  [calls of the model: {model.calls - calls}]"
            )

        chat = store.conversation(**scope)
        log = [message async for message in chat.messages()]
        print(f"\nThe agent's state holds {len(result['messages'])} messages, the log {len(log)}.")
        await chat.delete()


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )

"""An agent as a service: streamed answers, repeated requests, another answer, a stop, and an approved tool call.

    python examples/agent_service.py [mongodb://localhost:27017/app]

Every endpoint streams `answer`. `main` calls it as the endpoints would; docs/fastapi.md lists the endpoints.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from convstore import Conversation, ConversationStore
from convstore.exceptions import TurnClosedError
from convstore.ext.langchain import ConversationMiddleware
from convstore.types import TurnSession


class Model(BaseChatModel):
    """A scripted model in place of yours."""

    answers: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - the base class has it
        """Ignore the tools; the script already knows them."""
        return self

    def _reply(self, messages: list[BaseMessage]) -> AIMessage:
        self.answers += 1
        if messages[-1].type == "tool":
            return AIMessage(messages[-1].text)
        if "refund" in messages[-1].text:
            return AIMessage(
                "", tool_calls=[{"name": "refund", "args": {"euros": 90}, "id": "call-1"}]
            )
        return AIMessage(
            "Fish, " * 999 if "story" in messages[-1].text else f"Answer {self.answers}."
        )

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        reply = self._reply(messages)
        for word in reply.text.split(" "):
            await asyncio.sleep(0.01)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        if reply.tool_calls:
            yield ChatGenerationChunk(
                message=AIMessageChunk(content="", tool_calls=reply.tool_calls)
            )


@tool
def refund(euros: int) -> str:
    """Refund money."""
    return f"Refunded {euros} euros."


def agent_of(store: ConversationStore, saver: Any) -> Any:
    """Return the agent; a worker creates one for all its requests."""
    review: Any = HumanInTheLoopMiddleware({"refund": True})
    own = ConversationMiddleware(store, scope=lambda run: run.context, review=review, drafts=True)
    return create_agent(Model(), [refund], middleware=[own], checkpointer=saver)


def thread_of(chat: Conversation) -> str:
    """Return a thread id for the checkpointer that is unique to this user."""
    return ":".join(map(quote, chat.scope.values()))


async def answer(agent: Any, chat: Conversation, turn: TurnSession) -> AsyncGenerator[str]:
    """Stream the answer of a turn, or yield the stored one; the stream is empty if a call waits for a person."""
    async with turn:
        if not turn.is_running:
            yield turn.answer.text if turn.answer else ""
            return
        work = {"messages": turn.messages[:1]}  # steps in the log do not run again
        config = {"configurable": {"thread_id": thread_of(chat)}}
        stream = agent.astream(work, config, context=chat.scope, stream_mode="messages")
        try:
            async with aclosing(stream) as parts:
                async for part, _ in parts:
                    if isinstance(part, AIMessageChunk):
                        yield part.text
        except TurnClosedError:  # stopped before the first word
            return


async def main(uri: str) -> None:
    """Call `answer` as the endpoints of a service do."""
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        saver = InMemorySaver()  # in production, one that all workers share
        agent, chat = agent_of(store, saver), store.conversation(user_id="ada", thread_id="orcas")

        async def say(turn: TurnSession) -> str:
            return "".join([word async for word in answer(agent, chat, turn)]).strip()

        for _ in range(2):  # a repeated request is answered from the log
            print("asked:", await say(await chat.turn("r1", human="What do orcas eat?")))
        print("another answer:", await say(await chat.turn("r1", regenerate="click-1")))

        telling = asyncio.ensure_future(say(await chat.turn("r2", human="Tell me a story.")))
        while not ((running := await chat.get_turn("r2")) and running.draft):  # noqa: ASYNC110 - stored once a second
            await asyncio.sleep(0.05)
        print("stopped:", await chat.stop("r2"))
        told = await telling
        kept = await chat.get_turn("r2")
        print(
            "kept what was said:", kept is not None and kept.messages[-1].text.strip() == told != ""
        )

        print("waits:", await say(await chat.turn("r3", human="I want a refund.")) == "")
        async with aclosing(chat.watch()) as updates:
            state = (await anext(updates)).turn  # a page gets this state, also after a reload
        if state is not None:
            for call in state.waiting_calls:
                print("approved:", call.name, call.args)
                await chat.decide(state.turn_id, call.result_id, "approve", by="bob")
            print(
                "then:",
                await say(await chat.turn(state.turn_id, regenerate=state.variant_id or None)),
            )

        print([stored.message.text[:18] for stored in await chat.list_messages()])
        await chat.delete()
        await saver.adelete_thread(thread_of(chat))


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONVSTORE_URI", "memory://"))
    )

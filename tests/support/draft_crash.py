"""``python draft_crash.py URI DATABASE THREAD JOURNAL TURN``: an agent that streams words until it is killed.

Each word is in the journal before it is yielded. With TURN "1" the agent works in a turn that its caller has entered.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from pymongo import AsyncMongoClient
from scripted_agents import ScriptedModel

from convstore import ConversationStore
from convstore.ext.langchain import ConversationMiddleware


class Talking(ScriptedModel):
    """Yields words without an end."""

    journal: Path

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for number in itertools.count():
            with self.journal.open("a") as file:
                file.write(f"word{number} ")
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"word{number} "))
            await asyncio.sleep(random.uniform(0, 0.1))


async def main(uri: str, database: str, thread: str, journal: str, turn: str) -> None:
    """Ask, and talk."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client, AsyncExitStack() as stack:
        store = ConversationStore(client[database])
        chat = store.conversation(user_id="ada", thread_id=thread)
        middleware = ConversationMiddleware(store, drafts=True)
        agent: Any = create_agent(Talking(journal=Path(journal)), middleware=[middleware])
        if turn == "1":
            await stack.enter_async_context(await chat.turn("r1", human="Talk."))
        asked = {"messages": [HumanMessage("Talk.", id="r1")]}
        async for _ in agent.astream(asked, {"configurable": chat.scope}, stream_mode="messages"):
            pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Processes that append and list; started by test_killed_writers, which kills some of them.

``write`` appends to three conversations in turn and prints a line for each acknowledged append, until it is killed.
``list`` prints what a listing says.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from typing import Any

from langchain_core.messages import HumanMessage
from pymongo import AsyncMongoClient

from convstore import ConversationStore


async def write(store: ConversationStore, user: str, name: str) -> None:
    """Append until the end."""
    for number in count():
        thread = f"{name}{number % 3}"
        await store.conversation(user_id=user, thread_id=thread).append(HumanMessage(f"{number}"))
        sys.stdout.write(f"{thread} {number}\n")
        sys.stdout.flush()


async def show(store: ConversationStore, user: str) -> None:
    """Print count and last text of each conversation."""
    page = await store.list_conversations(user_id=user)
    figures = {
        info.scope["thread_id"]: [
            info.message_count,
            info.last_message.text if info.last_message else "",
        ]
        for info in page.conversations
    }
    sys.stdout.write(json.dumps(figures))


async def main(uri: str, database: str, call: str, user: str, argument: str) -> None:
    """Do one of the two."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        if call == "write":
            await write(ConversationStore(client[database]), user, argument)
        else:
            await show(ConversationStore(client[database]), user)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

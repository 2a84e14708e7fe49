"""One process of many that work on one conversation at once; started by test_concurrency, which reads its report.

A writer has four tasks that append batches of one to six messages, repeat some of them and cancel some in the middle;
a reader reads the log over and over and reports every length and the ids of the longest one it saw.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore
from convstore.messages.tool_calls import check_pairing

TASKS = 4


def make_batch(name: str, number: int, size: int) -> list[BaseMessage]:
    """A batch whose ids name its writer, some with a result that has a payload."""
    batch: list[BaseMessage] = [HumanMessage(f"{name} {number}", id=f"{name}/{number}/0")]
    for index in range(1, size):
        if index % 2:
            batch.append(AIMessage("said", id=f"{name}/{number}/{index}"))
        else:
            batch.append(ToolMessage("r" * 3_000, tool_call_id=f"c{number}", id=f"{name}/{number}/{index}"))
    return batch


async def append_until_acknowledged(chat: Conversation, batch: list[BaseMessage], *, cancel: bool) -> dict[str, Any]:
    """Append, perhaps cancelled at a random moment and then repeated; gives the receipt."""
    if cancel:
        task = asyncio.create_task(chat.append(batch))
        await asyncio.sleep(random.uniform(0, 0.02))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    receipt = await chat.append(batch)
    return {"ids": list(receipt.message_ids), "ordinals": list(receipt.ordinals)}


async def write(chat: Conversation, name: str, until: float) -> list[dict[str, Any]]:
    """Append batch after batch; every fifth is cancelled first, every seventh repeated afterwards."""
    done: list[dict[str, Any]] = []
    number = 0
    while time.time() < until:
        number += 1
        batch = make_batch(name, number, random.randint(1, 6))
        done.append(await append_until_acknowledged(chat, batch, cancel=number % 5 == 0))
        if number % 7 == 0:
            again = await chat.append(batch)
            assert again.written == 0
            assert list(again.ordinals) == done[-1]["ordinals"]
    return done


async def read(chat: Conversation, until: float) -> dict[str, Any]:
    """Read log and view over and over; every log must begin with the one before."""
    longest: list[str] = []
    reads = 0
    while time.time() < until:
        ids = [str(message.id) async for message in chat.messages()]
        assert ids[: len(longest)] == longest, "a log that was read changed"
        assert check_pairing((await chat.load_history()).messages) == []
        longest = ids
        reads += 1
    return {"reads": reads, "ids": longest}


async def main(role: str, uri: str, database: str, thread: str, until: float) -> None:
    """Work for some seconds and print a report."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        chat = ConversationStore(client[database]).conversation(user_id="crowd", thread_id=thread)
        until = time.time() + until  # counted from here: importing takes long when many processes do it
        if role == "reader":
            report: Any = await read(chat, until)
        else:
            done = await asyncio.gather(*(write(chat, f"{role}.{task}", until) for task in range(TASKS)))
            report = [receipt for receipts in done for receipt in receipts]
        sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])))

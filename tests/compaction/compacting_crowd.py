"""One process of many that append to one conversation and summarise it; started by test_compaction_crowd.

It appends turns, compacts, cancels some compactions in the middle, and loads views; its summarizer notes every call in
the database, takes a while and fails now and then. The one that is called victim begins a call and never ends it. It
reports what became of its compactions and what its views held.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore
from convstore.compaction import compactor
from convstore.messages.tool_calls import check_pairing
from convstore.values.policy import CompactionRule

RULE = CompactionRule(max_tokens_before_summary=600, max_summary_tokens=50, keep_last_turns=2)


class Writer:
    """A summarizer whose summaries name the call that made them."""

    name = "crowd"
    rule = RULE

    def __init__(self, calls: Any, role: str) -> None:
        self.calls, self.role, self.made = calls, role, 0

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        """Notes the call first, so that nothing that happens later hides it."""
        self.made += 1
        call = uuid.uuid4().hex
        shown = [message.id for message in messages]
        await self.calls.insert_one({"_id": call, "role": self.role, "shown": shown, "earlier": summary})
        if self.role == "victim":
            await asyncio.Event().wait()
        await asyncio.sleep(random.uniform(0, 0.1))
        if random.random() < 0.1:
            raise RuntimeError("no answer today")
        return f"call {call}"


def make_turn(name: str) -> list[BaseMessage]:
    """A turn, sometimes one that is never finished."""
    batch: list[BaseMessage] = [HumanMessage("why " * 20, id=f"{name}/q")]
    for index in range(random.randint(0, 3)):
        call = {"name": "run", "args": {}, "id": f"c{index}"}
        batch.append(AIMessage("", id=f"{name}/c{index}", tool_calls=[call]))
        batch.append(ToolMessage("found " * 30, id=f"{name}/r{index}", tool_call_id=f"c{index}"))
    return batch if len(batch) > 1 and random.random() < 0.3 else [*batch, AIMessage("said", id=f"{name}/a")]


async def compact(chat: Conversation, *, cancel: bool) -> str:
    """Return the result of a compaction."""
    task = asyncio.create_task(chat.compact())
    if cancel:
        await asyncio.sleep(random.uniform(0, 0.1))
        task.cancel()
    await asyncio.wait({task})
    return "cancelled" if task.cancelled() else task.result().status


async def view(chat: Conversation) -> tuple[str, bool, list[str]]:
    """The summary, whether turns after it are left out for the budget, and the ids of what is shown."""
    history = await chat.load_history()
    assert check_pairing(history.messages) == []
    shown = history.messages[1:] if history.summary else history.messages
    cut = history.report.left_out_turns > 0  # for seconds nobody summarises, while the victim has its lease
    shown = shown[cut:]
    assert not any("convstore" in message.additional_kwargs for message in shown)
    return history.summary or "", cut, [str(message.id) for message in shown]


async def work(chat: Conversation, writer: Writer, until: float) -> dict[str, Any]:
    """Append, compact and load, over and over."""
    views, ended, number = [], dict[str, int](), 0
    while time.time() < until:
        number += 1
        if writer.role != "victim":  # which is only after a lease
            await chat.append(make_turn(f"{writer.role}.{number}"))
        made = writer.made
        status = await compact(chat, cancel=writer.role != "victim" and random.random() < 0.05)
        if writer.made > made:
            ended[status] = ended.get(status, 0) + 1
        views.append(await view(chat))
    return {"views": views, "ended": ended}


async def main(role: str, uri: str, database: str, thread: str, seconds: float) -> None:
    """Work for some seconds and print a report."""
    compactor._LEASE, compactor._RENEW_SECONDS = timedelta(seconds=3), 0.5
    compactor._FIRST_WAIT = timedelta(seconds=0.05)
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        writer = Writer(client[database][f"calls-{thread}"], role)
        store = ConversationStore(client[database], summarizer=writer)
        report = await work(store.conversation(user_id="crowd", thread_id=thread), writer, time.time() + seconds)
        sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])))

"""Promise 9 under load: many processes append to one conversation and summarise it, and one of them is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from compacting_crowd import RULE, Writer
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage

from convstore import ConversationStore

WORKERS = 8
SECONDS = float(os.environ.get("CONVSTORE_CROWD_SECONDS", "8"))
"""The long form takes 30."""

CROWD = Path(__file__).with_name("compacting_crowd.py")


async def start(role: str, *arguments: str) -> asyncio.subprocess.Process:
    """One process of the crowd."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, str(CROWD), role, *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, cwd=CROWD.parents[2])


async def report(process: asyncio.subprocess.Process) -> Any:
    """Return the report of a process that ended."""
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3_000:]
    return json.loads(out)


async def kill_in_call(process: asyncio.subprocess.Process, calls: Any) -> int:
    """Kill the victim while it waits for its model; gives how many calls there were before."""
    while not await calls.find_one({"role": "victim"}):
        assert process.returncode is None
        await asyncio.sleep(0.02)
    made = int(await calls.count_documents({}))
    process.kill()
    await process.communicate()
    return made


async def go_on(chat: Any, store: ConversationStore) -> dict[str, int]:
    """Summarise once more, now that the lease of the killed one ends by itself; gives what became of its calls.

    It appends more turns than the rule keeps, for the last one of the crowd may have left none to fold.
    """
    last, ended = store.conversation(**chat.scope), Counter[str]()
    for _ in range(RULE.keep_last_turns + 1):
        await last.append([HumanMessage("why " * 20), AIMessage("said")])
    async with asyncio.timeout(20):
        while not ended["done"]:
            status = (await last.compact(force=True)).status
            assert status in {"done", "failed", "busy"}
            ended.update([status] if status != "busy" else [])  # before its call: the lease is another process's
            await asyncio.sleep(0.1)
    return ended


@pytest.mark.slow
async def test_a_crowd_summarises_every_message_once(
    server_uri: str, database_name: str, pymongo_client: Client
) -> None:
    """Ranges neither skip nor overlap, nobody pays twice, and every view goes on where its summary ends.

    When a process is killed in the middle of its call another goes on.
    """
    thread, database = uuid.uuid4().hex, pymongo_client[database_name]
    store = ConversationStore(database)
    await store.setup()
    arguments = (server_uri, database_name, thread, str(SECONDS))
    victim, *others = await asyncio.gather(*(start(role, *arguments) for role in ["victim", *"1234567"[: WORKERS - 1]]))
    calls = database[f"calls-{thread}"]
    before, *reports = await asyncio.gather(kill_in_call(victim, calls), *map(report, others))
    chat = store.conversation(user_id="crowd", thread_id=thread)
    last = await go_on(chat, ConversationStore(database, summarizer=Writer(calls, "last")))
    log = [str(message.id) async for message in chat.messages()]
    made = {str(call["_id"]): call for call in await calls.find({}).to_list(None)}
    await check_summaries(chat, log, made, before)
    check_calls(made, len(await chat.summaries()), [*(one["ended"] for one in reports), last])
    indexes = {id_: index for index, id_ in enumerate(log)}
    assert len(indexes) == len(log), "a message is in the log twice"
    for summary, cut, shown in itertools.chain.from_iterable(one["views"] for one in reports):
        begin = indexes[made[call_of(summary)]["shown"][-1]] + 1 if summary else 0
        first = indexes[shown[0]] if cut else begin
        assert first >= begin
        assert shown == log[first : first + len(shown)], "a view does not go on where its summary ends"


def call_of(text: str) -> str:
    """The call that wrote a summary."""
    found = re.match("call ([0-9a-f]{32})", text)
    assert found
    return found[1]


async def check_summaries(chat: Any, log: list[str], made: dict[str, Any], before_kill: int) -> None:
    """Each committed summary begins right after its parent's range, and its messages were shown to the model once."""
    summaries = await chat.summaries()
    assert before_kill > 0
    last = 0
    for version, summary in enumerate(summaries, 1):
        shown = made[call_of(summary.text)]["shown"]
        assert (summary.version, summary.first) == (version, 1)
        assert shown == log[last : summary.last], "a range skips or overlaps"
        last = summary.last
    assert [message.id for message in await chat.expand_summary(len(summaries))] == log[:last]
    assert last > len(log) / 2
    earlier = [made[call_of(summary.text)]["earlier"] for summary in summaries]
    assert earlier == [None, *(summary.text for summary in summaries[:-1])]


def check_calls(made: dict[str, Any], committed: int, ended: list[dict[str, int]]) -> None:
    """One call for each committed summary, but for those that failed, were cancelled, killed or lost their lease."""
    total = {status: sum(one.get(status, 0) for one in ended) for status in ("done", "failed", "cancelled", "busy")}
    killed = sum(call["role"] == "victim" for call in made.values())
    assert killed >= 1  # more if it got no time, lost its lease and began again before it was killed
    # A cancellation may come before the call was counted.
    assert sum(total.values()) - total["cancelled"] <= len(made) - killed <= sum(total.values())
    # A cancellation may come right after the commit, and a process that gets no time may lose its lease.
    assert total["done"] <= committed <= total["done"] + total["cancelled"]
    assert total["busy"] <= 2
    assert total["failed"] < committed

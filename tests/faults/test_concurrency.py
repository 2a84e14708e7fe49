"""Promises 2, 3 and 4 under load: many processes append to one conversation while others read it."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Client

from convstore import ConversationStore

WRITERS, READERS, SECONDS = 8, 2, 10.0
CROWD = Path(__file__).with_name("crowd.py")


async def run(role: str, uri: str, database: str, thread: str, until: float) -> Any:
    """One process of the crowd; gives its report."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CROWD), role, uri, database, thread, str(until)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=CROWD.parents[2],
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3_000:]
    return json.loads(out)


@pytest.mark.slow
async def test_a_crowd_leaves_no_hole_and_loses_nothing(
    store: ConversationStore,
    server_uri: str,
    database_name: str,
    pymongo_client: Client,
) -> None:
    """8 processes of 4 tasks for 10 s: in order, whole, once; replays and cancelled appends included."""
    thread, until = uuid.uuid4().hex, SECONDS
    roles = [*(f"w{number}" for number in range(WRITERS)), *["reader"] * READERS]
    reports = await asyncio.gather(*(run(role, server_uri, database_name, thread, until) for role in roles))
    chat = store.conversation(user_id="crowd", thread_id=thread)
    log = [str(message.id) async for message in chat.messages()]
    receipts = [receipt for report in reports[:WRITERS] for receipt in report]
    acknowledged = [id_ for receipt in receipts for id_ in receipt["ids"]]
    assert len(log) == len(set(log)), "a message is in the log twice"
    assert set(acknowledged) == set(log), "a message was lost, or nobody appended it"
    for receipt in receipts:
        first = receipt["ordinals"][0]
        assert receipt["ordinals"] == list(range(first, first + len(receipt["ids"]))), "a batch is not in one piece"
        assert log[first - 1 : first - 1 + len(receipt["ids"])] == receipt["ids"], "an ordinal is not the place"
    assert all(report["ids"] == log[: len(report["ids"])] for report in reports[WRITERS:])
    assert min(report["reads"] for report in reports[WRITERS:]) > 1
    head = await pymongo_client[database_name]["heads"].find_one({"scope.thread_id": thread})
    await assert_no_orphan_chunks(pymongo_client[database_name]["log"], head["conversation"])


async def assert_no_orphan_chunks(log: Any, conversation: str) -> None:
    """Chunks that no entry refers to come only from cancelled appends, a few of thousands."""
    entries = await log.find({"_id": {"$gte": f"{conversation}:", "$lt": f"{conversation};"}}).to_list(None)
    used = {
        f"{conversation}#{payload['token']}#{payload['chunk']:06d}"
        for entry in entries
        for message in entry.get("messages", [])
        if (payload := message.get("payload"))
    }
    chunks = await log.find({"_id": {"$gte": f"{conversation}#", "$lt": f"{conversation}:"}}, {"_id": 1}).to_list(None)
    stored = {chunk["_id"] for chunk in chunks}
    assert used <= stored, "a stub leads nowhere"
    assert len(stored - used) <= len(used) / 4, "chunks are left behind"

"""Listings after their writers were killed."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from convstore import ConversationStore

pytestmark = pytest.mark.slow

CRASH = Path(__file__).with_name("listing_crash.py")


async def test_a_listing_from_another_process_is_right_after_kill_9(
    server_uri: str, database: Any
) -> None:
    """Two writers are killed at work; a third process lists all that is in the logs at once."""
    user = uuid.uuid4().hex
    await ConversationStore(database).setup()

    async def start(call: str, argument: str) -> asyncio.subprocess.Process:
        words = (str(CRASH), server_uri, database.name, call, user, argument)
        return await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE
        )

    writers = [await start("write", name) for name in ("k", "o")]
    acknowledged: dict[str, str] = {}
    for writer in writers:
        assert writer.stdout
        for _ in range(20):
            thread, number = (await writer.stdout.readline()).decode().split()
            acknowledged[thread] = number
    for writer in writers:
        writer.kill()
        await writer.wait()
    lister = await start("list", "")
    listed = json.loads((await lister.communicate())[0])
    assert (
        set(listed)
        == set(acknowledged)
        == {f"{name}{number}" for name in "ko" for number in range(3)}
    )
    looker = ConversationStore(database)
    for thread, (count, text) in listed.items():
        log = [
            message.text
            async for message in looker.conversation(user_id=user, thread_id=thread).messages()
        ]
        assert (count, text) == (len(log), log[-1])
        assert int(text) >= int(acknowledged[thread])

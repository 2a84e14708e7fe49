"""A process that is killed while it seals loses nothing and doubles nothing."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from convstore import ConversationStore
from convstore.testing.samples import rag_turn

CRASH = Path(__file__).with_name("sealing_crash.py")
MOST_WRITES = 2
"""The segment, and the removal of those that it covers."""


async def hits(database: Any, user: str, **options: Any) -> list[Any]:
    """The hits of another process."""
    chat = ConversationStore(database, **options).conversation(user_id=user, thread_id="t")
    return [await chat.search(text, limit=50) for text in ("orcas", "passage 2", "number 3")]


@pytest.mark.parametrize("die_at", range(1, 2 * MOST_WRITES + 1))
async def test_a_kill_at_any_step_of_a_seal(database: Any, server_uri: str, die_at: int) -> None:
    """Searches give what a scan gives, and the next seal goes on; segments are whole and cover all."""
    user = uuid.uuid4().hex
    store = ConversationStore(database)
    await store.setup()
    chat = store.conversation(user_id=user, thread_id="t")
    for number in range(4):
        await chat.append(rag_turn(f"Number {number}: what about orcas?", words=40))
        arguments = (server_uri, database.name, user, str(die_at if number else 99))
        process = await asyncio.create_subprocess_exec(sys.executable, str(CRASH), *arguments)
        assert await process.wait() == (-9 if number else 0)
        assert await hits(database, user) == await hits(database, user, search_index=False)
    services = await store.services()
    assert services.sealer is not None
    await services.sealer.seal((("user_id", user), ("thread_id", "t")), force=True)
    assert await hits(database, user) == await hits(database, user, search_index=False)
    head = await database["heads"].find_one({"scope.user_id": user})
    segments = await database["search"].find({"conversation": head["conversation"]}).sort("_id", 1).to_list(None)
    assert segments[-1]["until"] == 4
    assert (await store.verify(user_id=user)).ok
    await store.close()

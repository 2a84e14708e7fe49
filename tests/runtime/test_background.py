"""Work in the background neither outlives its event loop noisily nor hides an error."""

from __future__ import annotations

import asyncio
import gc

import pytest
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore
from convstore.runtime.background import retrieve_cancellation
from convstore.testing.samples import rag_turn


def test_the_end_of_the_loop_cancels_a_seal_and_a_refresh_of_heads_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """A script that does not close its store prints nothing when it ends."""

    async def main() -> None:
        store = ConversationStore(AsyncMongoMockClient()["background"], search_index="across")
        await store.setup()
        await store.conversation(user_id="ada", thread_id="1").append(rag_turn("What do orcas eat?"))
        services = await store.services()
        services.sealer.schedule((("user_id", "ada"), ("thread_id", "1")), "an id")
        services.open_heads.ring()

    asyncio.run(main())
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_an_error_of_unawaited_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It is a defect, so the event loop names it."""

    async def fail() -> None:
        raise ValueError("a defect")

    async def main() -> None:
        asyncio.gather(fail()).add_done_callback(retrieve_cancellation)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a defect"]

"""Work in the background neither outlives its event loop noisily nor hides an error."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore
from convstore.exceptions import StoreError
from convstore.integration import host_of
from convstore.mongo.segments import Segments, StoredSegment
from convstore.runtime.background import Background, retrieve_cancellation, settle
from convstore.runtime.clock import Clock
from convstore.testing.samples import rag_turn


@pytest.mark.slow
def test_the_end_of_the_loop_cancels_a_seal_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """A script that does not close its store prints nothing when it ends."""

    async def main() -> None:
        store = ConversationStore(AsyncMongoMockClient()["background"])
        await store.setup()
        await store.conversation(user_id="ada", thread_id="1").append(
            rag_turn("What do orcas eat?")
        )
        services = await host_of(store).services()
        services.sealer.schedule((("user_id", "ada"), ("thread_id", "1")), "an id")

    asyncio.run(main())
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_seal_that_fails_is_logged_and_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed seal is logged and tried again after ten minutes. Other conversations are sealed meanwhile."""
    seconds, failed = 0.0, list[str]()
    put = Segments.put

    async def fail(
        self: Segments, conversation: str, segment: StoredSegment, **options: Any
    ) -> bool:
        if segment.characters < 100_000:
            return await put(self, conversation, segment, **options)
        failed.append(conversation)
        raise StoreError("the document is too large")

    monkeypatch.setattr(Segments, "put", fail)
    clock = Clock(monotonic=lambda: seconds)
    database = AsyncMongoMockClient()["background"]
    store = ConversationStore(database, clock=clock)
    await store.setup()
    bad, good = (store.conversation(user_id="ada", thread_id=thread) for thread in ("bad", "good"))
    await bad.append(HumanMessage("whale " * 30_000))
    await good.append(HumanMessage("whale " * 15_000))
    sealer = (await host_of(store).services()).sealer
    for later, tries in ((0.0, 1), (0.0, 1), (700.0, 2)):
        seconds += later
        assert len([await chat.search("whale") for chat in (good, bad)]) == 2
        await sealer.wait()
        assert len(failed) == len(caplog.records) == tries
        assert (caplog.records[-1].name, caplog.records[-1].levelname) == ("convstore", "WARNING")
        assert "cannot be sealed (StoreError)" in caplog.records[-1].getMessage()
    assert await database["search"].count_documents({}) == 1
    await store.close()


async def test_conversations_are_sealed_in_the_order_in_which_they_were_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Conversations are sealed in the order of their scheduling, even one scheduled when the work is about to end."""
    store, order = ConversationStore(AsyncMongoMockClient()["background"]), list[str]()
    await store.setup()
    sealer = (await host_of(store).services()).sealer

    async def seal(due: Any, *_: Any) -> bool:
        order.append(due.scope[0][1])
        if len(order) == 3:
            asyncio.current_task().add_done_callback(
                lambda _: sealer.schedule((("user_id", "d"),), "d")
            )
        return False

    monkeypatch.setattr(sealer, "_seal_piece", seal)
    for name in "abc":
        sealer.schedule((("user_id", name),), name)
    await sealer.wait()
    assert order == ["a", "b", "c", "d"]
    await store.close()


def test_an_error_of_unawaited_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The event loop logs an error of work that is not awaited."""

    async def fail() -> None:
        raise ValueError("a defect")

    async def main() -> None:
        asyncio.gather(fail()).add_done_callback(retrieve_cancellation)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a defect"]


async def test_a_task_that_has_just_ended_is_not_waited_for() -> None:
    """A task that has ended is not waited for, even if its callbacks have not run yet.

    Since Python 3.12 such a wait never let the event loop run the callbacks.
    """
    background, ended = Background(), asyncio.get_running_loop().create_future()
    background._tasks.add(ended)
    ended.add_done_callback(background._tasks.discard)
    ended.set_result(None)
    await background.wait()
    await background.close()


async def test_work_that_is_cancelled_before_it_begins_wakes_its_caller() -> None:
    """Whoever cancels all tasks but the caller does not leave it waiting for ever."""

    async def work() -> None:
        """Never begins."""

    before = asyncio.all_tasks()
    caller = asyncio.ensure_future(settle(work()))
    await asyncio.sleep(0)
    [inner] = asyncio.all_tasks() - before - {caller}
    inner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 5)

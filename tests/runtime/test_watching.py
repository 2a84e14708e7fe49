"""What it costs to watch conversations, and random changes under pages that follow them."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import ConversationDeletedError, StoreError, StoreUnavailableError
from convstore.mongo.driver import Driver
from convstore.runtime.clock import Clock
from convstore.testing.fixtures import ahead
from convstore.types import StoredMessage

_PATIENCE = 60.0


@pytest.fixture
async def chat(client: Client, database_name: str) -> AsyncIterator[Conversation]:
    """A conversation on the counted client, of a store that waits a hundred times shorter where it polls."""
    async with ConversationStore(client[database_name], clock=ahead(0, hurry=100)) as store:
        await store.setup()
        yield store.conversation(user_id=uuid.uuid4().hex, thread_id="watched")


@pytest.fixture
def elsewhere(chat: Conversation, database: Any) -> Conversation:
    """The conversation in another process, whose commands are not counted."""
    return ConversationStore(database).conversation(**chat.scope)


async def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(_PATIENCE):
        while not is_so():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_watchers_of_a_store_share_a_change_stream(
    chat: Conversation, elsewhere: Conversation, commands: Commands
) -> None:
    """Opened by the first, closed after the last; whoever follows another conversation reads nothing."""
    changes = (await chat._services()).changes
    other = chat.store.conversation(user_id=chat.scope["user_id"], thread_id="other")
    await other.append(HumanMessage("hi"))
    await chat.append(HumanMessage("q0"))
    watching = [conversation.watch() for conversation in (chat, chat, chat, other)]
    for watch in watching:
        await anext(watch)
    following = [asyncio.ensure_future(anext(each)) for each in watching]
    await wait_for(lambda: changes._is_live)
    streams = [
        command for _, command in commands.sent if "$changeStream" in str(command.get("pipeline"))
    ]
    assert len(streams) == 1
    await elsewhere.append(HumanMessage("q1"))
    async with asyncio.timeout(_PATIENCE):
        told = await asyncio.gather(*following[:3])
    assert [[message.message.text for message in update.messages] for update in told] == [
        ["q1"]
    ] * 3
    assert not following[3].done()
    following[3].cancel()
    await asyncio.wait(following)
    for watch in watching:
        await watch.aclose()
    await wait_for(lambda: not changes._is_live)
    assert not changes._all


async def test_a_watcher_reads_again_when_the_change_stream_opens(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher reads again when the change stream opens, because the stream has no earlier changes."""
    is_open, never = asyncio.Event(), asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await never.wait()

    async def changes(_self: Driver, *_: str) -> AsyncIterator[str]:
        await is_open.wait()
        yield ""
        await never.wait()

    monkeypatch.setattr(Driver, "changes", changes)
    watching, clock = (await chat._services()).changes, Clock(sleep=sleep)
    monkeypatch.setattr(watching, "_clock", clock)
    with watching.watched() as watched:
        watched.conversation = "any"
        waiting = asyncio.ensure_future(watching.wait(watched))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        is_open.set()
        await asyncio.wait_for(waiting, 5)


async def test_a_server_without_change_streams_is_logged_once(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason; one that is down is not, as each read reports it."""
    reasons = [
        StoreUnavailableError("down"),
        StoreError("only on replica sets"),
        StoreError("only on replica sets"),
    ]

    async def changes(_self: Driver, *_: str) -> AsyncIterator[str]:
        raise reasons.pop(0)
        yield ""

    monkeypatch.setattr(Driver, "changes", changes)
    following = (await chat._services()).changes
    for _ in range(3):
        await following._follow()
    lines = [record.getMessage() for record in caplog.records if record.name == "convstore"]
    assert lines == [
        "conversations are watched by reading them once a second: only on replica sets"
    ]


async def test_an_append_costs_a_watcher_five_commands(
    chat: Conversation, elsewhere: Conversation, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the log, its new entries, their annotations, the lease and the draft; one if nothing changed.

    Three more before a turn is told as interrupted.
    """
    changes, looks = (await chat._services()).changes, asyncio.Queue[None]()
    monkeypatch.setattr(changes, "wait", lambda _watched: looks.get())
    await chat.append(HumanMessage("q0"))
    async with aclosing(chat.watch()) as watching:
        await anext(watching)
        following = asyncio.ensure_future(anext(watching))
        await elsewhere.append([HumanMessage("q1"), AIMessage("a1")])
        commands.reset()
        looks.put_nowait(None)
        await following
        assert commands.names == ["find"] * 5


@pytest.mark.costly
@pytest.mark.parametrize("is_over", [False, True])
async def test_a_turn_that_begins_while_a_watcher_reads_is_not_told_as_interrupted(
    chat: Conversation, elsewhere: Conversation, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """It begins after the lease was read, and before the log is; it may be over before the lease is read again."""
    await chat.append(HumanMessage("Hi"))
    leases, turns = (await chat._services()).watcher._leases, list[Any]()
    holder, looks = leases.holder, list[str]()

    async def late(conversation: str) -> Any:
        if turns and turns[0].is_running and is_over:
            await turns[0].append(AIMessage("They do."))
            await turns[0].__aexit__(None, None, None)
        found = await holder(conversation)
        looks.append(conversation)
        if len(looks) > 2 and not turns:
            turns.append(await elsewhere.turn("r1", human="Do seals sleep?"))
            await turns[0].__aenter__()
        return found

    monkeypatch.setattr(leases, "holder", late)
    states = list[str]()
    async with asyncio.timeout(_PATIENCE), aclosing(chat.watch()) as watching:
        async for update in watching:
            states.append(update.turn.status if update.turn else "")
            if states[-1] == ("finished" if is_over else "running"):
                break
    assert states == ["interrupted", "running", *(["finished"] if is_over else [])]
    if not is_over:
        await turns[0].__aexit__(None, None, None)


@pytest.mark.costly
@pytest.mark.parametrize("is_again", [False, True], ids=["first answer", "another answer"])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("read", ["holder", "find", "snapshot", "listed", "pending"])
async def test_a_worker_that_leaves_while_a_watcher_reads_has_not_broken_off(
    chat: Conversation, elsewhere: Conversation, read: str, side: str, is_again: bool
) -> None:
    """A turn that ends between two reads of a watcher is never told as broken off or with an old answer.

    Its states are running, then finished, with the new answer.
    """
    turn = await elsewhere.turn("r1", human="Do seals sleep?")
    if is_again:
        async with turn:
            await turn.append(AIMessage("Ask me later."))
        turn = await elsewhere.turn("r1", regenerate="again")
    await turn.__aenter__()
    watcher = (await chat._services()).watcher
    readers: dict[str, Any] = {
        "holder": watcher._leases,
        "find": watcher._drafts,
        "snapshot": watcher._reader,
    }
    reader = readers.get(read) or (watcher._records if read == "listed" else watcher._variants)
    original = getattr(reader, read)

    async def finish() -> None:
        if turn.is_running:
            await turn.append(AIMessage("They do."))
            await turn.__aexit__(None, None, None)

    async def late(*arguments: Any, **options: Any) -> Any:
        await finish() if side == "before" else None
        found = await original(*arguments, **options)
        await finish()
        return found

    setattr(reader, read, late)
    page, states = list[StoredMessage](), list[str]()
    async with asyncio.timeout(_PATIENCE), aclosing(chat.watch()) as watching:
        async for update in watching:
            page = [
                stored for stored in page if stored.ordinal < update.replaces_from
            ] + update.messages
            states.append(update.turn.status if update.turn else "")
            if states[-1] != "running":
                break
            await finish()  # without another answer, the watcher looks up none
    assert [stored.message.text for stored in page] == ["Do seals sleep?", "They do."]
    assert states[-1] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("has_stream", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_a_page_shows_what_is_there_whatever_happened(
    chat: Conversation,
    elsewhere: Conversation,
    database: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seed: int,
    has_stream: bool,
) -> None:
    """Two workers append, rewind, undo that, ask again, switch and delete, under a page that began in the middle."""
    if not has_stream:

        async def refused(_self: Driver, *_: str) -> AsyncIterator[str]:
            raise StoreError("not on a standalone server")
            yield ""

        monkeypatch.setattr(Driver, "changes", refused)
    chance, page = random.Random(seed), list[StoredMessage]()

    async def follow() -> None:
        async with aclosing(chat.watch(full=True)) as updates:
            async for update in updates:
                page[:] = [
                    message for message in page if message.ordinal < update.replaces_from
                ] + update.messages

    async def is_done(step: Callable[[Conversation], Awaitable[object]]) -> bool:
        try:
            await step(chance.choice([chat, elsewhere]))
        except ConversationDeletedError:  # by the other worker, up to ten seconds ago
            return False
        return True

    async def rewind(worker: Conversation) -> None:
        if found := await worker.list_messages():
            await worker.rewind(before_id=str(chance.choice(found).message.id))

    async def ask_again(worker: Conversation) -> None:
        if turns := await worker.outline():
            async with await worker.turn(
                chance.choice(turns).turn_id, regenerate=uuid.uuid4().hex
            ) as turn:
                await turn.append(AIMessage("another"))

    async def switch(worker: Conversation) -> None:
        if turns := await worker.outline():
            await worker.activate(
                chance.choice(await worker.variants(chance.choice(turns).turn_id))
            )

    steps: list[Callable[[Conversation], Awaitable[object]]] = [
        lambda worker: worker.append([HumanMessage("q"), AIMessage("a")]),
        lambda worker: worker.append(
            [HumanMessage(str(number)) for number in range(chance.randrange(1, 30))]
        ),
        rewind,
        ask_again,
        switch,
        lambda worker: worker.undo_rewind(),
        lambda worker: (
            worker.delete() if chance.random() < 0.1 else worker.append(HumanMessage("more"))
        ),
    ]
    await elsewhere.append(HumanMessage("first"))
    following = asyncio.ensure_future(follow())
    for _ in range(40):
        step = chance.choice(steps)
        while not await is_done(step):
            pass
        if chance.random() < 0.3:
            await asyncio.sleep(0.02)
    there = (
        await ConversationStore(database)
        .conversation(**chat.scope)
        .list_messages(limit=1_000, full=True)
    )
    await wait_for(lambda: page == there or following.done())
    following.cancel()
    await asyncio.wait({following})
    assert page == there

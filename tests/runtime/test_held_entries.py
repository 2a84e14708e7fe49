"""Cached ends of logs: entries never change, so a warm load reads only new ones."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from counting import STANDING, Commands, cold
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.exceptions import StoreUnavailableError
from convstore.messages.tokens import approximate_tokens
from convstore.runtime import cache as known
from convstore.testing import rag_turn
from convstore.view.load import Load

Client = AsyncMongoClient[dict[str, Any]]
_WHOLE = HistoryPolicy(max_tokens=None)


@pytest.fixture
async def store(client: Client, database_name: str) -> ConversationStore:
    """A store that is set up, on the counted client."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    return store


@pytest.fixture
async def chat(store: ConversationStore, scope: dict[str, str]) -> Conversation:
    """A conversation of twenty turns, which was loaded."""
    chat = store.conversation(**scope)
    await talk(chat, range(20))
    await chat.load_history()
    return chat


async def talk(chat: Conversation, numbers: range) -> None:
    """A turn for each number."""
    for number in numbers:
        await chat.append([HumanMessage(f"q{number} " * 20), AIMessage(f"a{number} " * 20)])


async def questions(chat: Conversation, policy: HistoryPolicy | None = None) -> list[str]:
    """The first words of the human messages of a view."""
    messages = (await chat.load_history(policy)).messages
    return [message.text.split()[0] for message in messages if message.type == "human"]


async def test_a_warm_load_reads_what_was_added(chat: Conversation, commands: Commands) -> None:
    """The state, and the log from the last entry on that is known: whatever the view shows."""
    for added in (0, 3):
        await talk(chat, range(added))
        with commands.counted():
            report = (await chat.load_history()).report
        assert (commands.names, commands.documents) == (["find"], 1 + added + 1)
        assert (report.round_trips, report.documents) == (1, 1 + added + 1)
        assert report.bytes < 1_500 * (added + 1)


@pytest.mark.slow
async def test_a_view_of_what_is_held_is_the_view_of_what_is_read(
    chat: Conversation, client: Client, database_name: str
) -> None:
    """Under policies in turns, across a rewind, and whatever a caller does to the messages of a view."""
    policies = [HistoryPolicy(), HistoryPolicy(max_turns=3), HistoryPolicy(max_tokens=400), _WHOLE]
    for step in range(8):
        if step == 4:
            await chat.rewind(before_id=str((await chat.list_messages(limit=6))[0].message.id))
        await chat.append(rag_turn(f"What about fish {step}?"))
        for policy in policies:
            history = await chat.load_history(policy)
            fresh = await cold(client, database_name, chat).load_history(policy)
            assert history.messages == fresh.messages
            for message in history.messages:
                message.content = "changed"


@pytest.mark.slow
async def test_more_than_a_load_asks_for_was_added(
    chat: Conversation, client: Client, database_name: str
) -> None:
    """Cached entries are not joined to entries that do not follow them."""
    await talk(cold(client, database_name, chat), range(20, 70))
    assert await questions(chat) == [f"q{number}" for number in range(70)]


@pytest.mark.slow
async def test_what_is_held_is_bounded_over_all_conversations(
    client: Client, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes: the conversations that were used least recently are read again, the last ones are not."""
    monkeypatch.setattr(known, "_MAXIMUM_BYTES", 100_000)
    seconds = [100.0]
    store = ConversationStore(
        client[database_name], clock=replace(STANDING, monotonic=lambda: seconds[0])
    )
    await store.setup()
    chats = [store.conversation(user_id="held", thread_id=uuid.uuid4().hex) for _ in range(8)]
    for chat in chats:
        await talk(chat, range(10))
        await chat.load_history()
        assert store._known.size <= 100_000
    assert (await chats[-1].load_history()).report.documents == 2
    report = (await chats[0].load_history()).report
    # its messages were dropped, but not its id
    assert (report.documents, report.round_trips) == (
        1 + 10,
        1,
    )
    seconds[0] += known.ID_LIFETIME + 1
    report = (await chats[1].load_history()).report
    # the head too, in parallel: its id is old
    assert (report.documents, report.round_trips) == (
        1 + 1 + 10,
        1,
    )
    large = store.conversation(user_id="held", thread_id=uuid.uuid4().hex)
    await talk(large, range(40))
    await large.load_history()
    assert (await large.load_history()).report.documents == 1 + 40
    for chat in [*chats, large]:
        await chat.delete()
    assert store._known.size == 0


async def test_the_conversation_that_was_used_last_keeps_its_messages(
    client: Client, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load counts as a use: of two conversations, the one that was not loaded since makes room for the third."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    first, second, third = (
        store.conversation(user_id="used", thread_id=uuid.uuid4().hex) for _ in range(3)
    )
    for chat in (first, second):
        await talk(chat, range(10))
        await chat.load_history()
    monkeypatch.setattr(known, "_MAXIMUM_BYTES", store._known.size + 10_000)
    await first.load_history()
    await talk(third, range(10))
    await third.load_history()
    assert [(await chat.load_history()).report.documents for chat in (first, second)] == [2, 1 + 10]


@pytest.mark.slow
async def test_conversations_without_messages_count_too(
    client: Client, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they alone exceed the limit, those that were used least recently are dropped whole."""
    monkeypatch.setattr(known, "_MAXIMUM_BYTES", 40_000)
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    chats = [store.conversation(user_id="held", thread_id=uuid.uuid4().hex) for _ in range(12)]
    for chat in chats:
        await talk(chat, range(1))
        assert store._known.size <= 40_000
    assert len(store._known.all()) < len(chats)
    assert [(await chat.load_history()).report.round_trips for chat in (chats[-1], chats[0])] == [
        1,
        2,
    ]
    for chat in chats:
        await chat.delete()
    assert store._known.size == 0


@pytest.mark.slow
async def test_entries_before_the_start_of_a_view_are_released(
    chat: Conversation, store: ConversationStore
) -> None:
    """Entries that no policy shows any more leave the cache, however long the log becomes."""
    policy, sizes = HistoryPolicy(max_tokens=1_000), []
    store._known.forget(store._known.all()[0])
    for number in range(20, 60):
        await talk(chat, range(number, number + 1))
        await chat.load_history(policy)
        sizes.append(store._known.size)
    assert max(sizes[20:]) <= 1.05 * max(sizes[:20])  # a few decoded messages more or less


async def test_a_load_that_fails_leaves_nothing_behind(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one reads all anew."""

    async def fails(*_args: Any) -> Any:
        raise StoreUnavailableError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(Load, "show", fails)
        with pytest.raises(StoreUnavailableError):
            await chat.load_history()
    assert (await chat.load_history()).report.documents == 1 + 20
    assert (await chat.load_history()).report.documents == 2


async def test_loads_at_the_same_time_are_each_whole(chat: Conversation) -> None:
    """Concurrent loads are each complete, although only one of them may use the cached entries."""
    views = await asyncio.gather(*(questions(chat) for _ in range(5)))
    assert views == [[f"q{number}" for number in range(20)]] * 5
    assert (await chat.load_history()).report.documents == 2


async def test_what_another_counter_wrote_is_counted_once_and_in_a_thread(
    chat: Conversation, client: Client, database_name: str
) -> None:
    """A warm load asks the counter about what was added alone; counting does not keep the event loop."""
    threads: list[int] = []

    def slow(messages: Sequence[BaseMessage]) -> int:
        threads.append(threading.get_ident())
        return approximate_tokens(messages)

    other = ConversationStore(client[database_name], token_counter=slow, token_counter_name="slow")
    other._host.schema.is_ready = True
    theirs, asked = other.conversation(**chat.scope), []
    for added in (0, 0, 1):
        await talk(chat, range(added))
        threads.clear()
        await theirs.load_history()
        asked.append(len(threads))
        assert threads.count(threading.get_ident()) <= 1  # a note that a view may need
    assert asked[0] >= 40
    assert asked[1] == 0
    assert asked[2] <= 4  # the sums and the entry


def payload_bytes(store: ConversationStore) -> int:
    """The memory that the cached payloads of all conversations take."""
    return sum(conversation.payload_size for conversation in store._known.all())


@pytest.mark.slow
async def test_payloads_of_idle_conversations_make_room(
    store: ConversationStore, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn in progress has its payloads in memory, however many turns broke off before it."""
    assert known._MAXIMUM_BYTES == 32_000_000
    monkeypatch.setattr(known, "_MAXIMUM_BYTES", 800_000)
    for number in range(12):
        chat = store.conversation(user_id="idle", thread_id=uuid.uuid4().hex)
        await chat.append(rag_turn(f"What about fish {number}?", words=13_000)[:3])
        assert store._known.size <= 800_000
        with commands.counted():
            await chat.load_history()
        assert commands.names == ["find"]
    assert payload_bytes(store) > 575_000


async def test_a_turn_that_is_answered_keeps_no_payload(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """No load will ask for it in full."""
    chat = store.conversation(**scope)
    *begun, answer = rag_turn("What about fish?")
    await chat.append(begun)
    assert payload_bytes(store) > 0
    await chat.append(answer)
    assert payload_bytes(store) == 0
    await chat.append(rag_turn("And orcas?"))
    assert payload_bytes(store) == 0


async def test_what_a_caller_does_to_a_view_does_not_reach_the_next_one(
    store: ConversationStore,
) -> None:
    """Messages of a view share no list or dict with those that the store keeps."""
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    call = {"name": "look", "args": {"deep": {"list": [1]}}, "id": "c"}
    await chat.append(
        [HumanMessage([{"type": "text", "text": "q"}]), AIMessage("", tool_calls=[call])]
    )
    await chat.append(
        [ToolMessage("r", tool_call_id="c"), AIMessage("a", response_metadata={"model_name": "m"})]
    )
    before = [message.model_dump_json() for message in (await chat.load_history()).messages]
    human, asked, _, answer = (await chat.load_history()).messages
    human.content[0]["text"] = "changed"
    asked.tool_calls[0]["args"]["deep"]["list"].append(2)
    answer.response_metadata["model_name"] = "changed"
    assert [message.model_dump_json() for message in (await chat.load_history()).messages] == before

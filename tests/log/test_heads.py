"""Refreshes of the head, which listings, policies and deletions read, and leftovers of interrupted calls."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from counting import Commands
from fastapi.encoders import jsonable_encoder
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from mongomock_motor import AsyncMongoMockClient
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from convstore.integration import host_of
from convstore.runtime.clock import Clock, as_of
from convstore.summarization import HeadTailSummarizer
from convstore.values.policy import CompactionRule

RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=100, keep_last_turns=1)


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def clock(self) -> Clock:
        """Return the clock of a store; the date of an import takes precedence."""
        return Clock(monotonic=lambda: self.seconds)


@pytest.fixture
def time() -> Time:
    """A clock at zero."""
    return Time()


@pytest.fixture
def open_chat(client: Client, database_name: str, time: Time, store: ConversationStore) -> Any:
    """Makes the conversation of a test as another process has it, on the counted client."""
    scope = {**store.conversation(user_id="ada", thread_id=uuid.uuid4().hex).scope}

    def make(**options: Any) -> Conversation:
        other = ConversationStore(client[database_name], clock=time.clock, **options)
        other._host.is_ready = True
        return other.conversation(**scope)

    return make


OpenChat = Callable[..., Conversation]


def fails(*_: Any, **__: Any) -> Any:
    """A command that gets no answer."""
    raise StoreUnavailableError("no answer")


async def test_a_store_that_only_read_does_not_refresh_the_head(open_chat: OpenChat, commands: Commands) -> None:
    """A worker that loads and is shut down writes nothing, and listings show the last message as before."""
    chat = open_chat()
    await chat.append([HumanMessage("q"), AIMessage("said last")])
    reader = open_chat()
    await reader.load_history()
    with commands.counted():
        await reader.store.close()
    assert commands.sent == []
    [found] = (await chat.store.list_conversations(**chat.scope)).conversations
    assert found.last_message is not None
    assert found.last_message.text == "said last"


async def test_a_listing_is_one_command(open_chat: OpenChat, commands: Commands) -> None:
    """Whatever this store or another one appended before."""
    chat, other = open_chat(), open_chat()
    await chat.append(HumanMessage("q"))
    await other.append(AIMessage("answered"))
    for store in (chat.store, other.store, open_chat().store):
        with commands.counted():
            [found] = (await store.list_conversations(**chat.scope)).conversations
        assert (found.message_count, found.last_message and found.last_message.text) == (2, "answered")
        assert commands.names == ["aggregate"]


async def test_messages_without_text_cost_one_command(open_chat: OpenChat, commands: Commands) -> None:
    """A log without any text to show in a listing is appended to like any other."""
    chat, image = open_chat(), {"type": "image_url", "image_url": {"url": "https://images.example/1"}}
    for _ in range(2):
        await chat.append(HumanMessage([image]))
    with commands.counted():
        await chat.append(HumanMessage([image]))
    assert commands.names == ["insert"]


async def test_a_store_that_learns_of_a_deletion_starts_over(open_chat: OpenChat, time: Time) -> None:
    """The append on whose way it was deleted goes with it; the next one begins a new conversation."""
    chat = open_chat()
    await chat.append(HumanMessage("old"))
    time.seconds += 11
    await chat.load_history()
    await open_chat().delete()
    time.seconds += 2
    await chat.append(HumanMessage("on its way"))
    assert (await chat.append(HumanMessage("new"))).first == 1
    assert [message.text async for message in open_chat().messages()] == ["new"]


async def test_an_append_without_its_refresh_is_not_acknowledged(
    open_chat: OpenChat, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a policy could end a conversation that is in use; a refresh that succeeds at the second try is enough."""
    chat = open_chat()

    async def grow_old() -> None:
        """Let the head be known and its last refresh be old."""
        time.seconds += 11
        await chat.load_history()
        time.seconds += 2

    await chat.append(HumanMessage("first"))
    heads = (await host_of(chat).services()).writer._heads
    refresh, tried = heads.refresh, []

    async def once(*arguments: Any, **named: Any) -> bool:
        tried.append(named)
        return bool(await refresh(*arguments, **named)) if len(tried) > 1 else fails()

    await grow_old()
    monkeypatch.setattr(heads, "refresh", once)
    assert (await chat.append(HumanMessage("second"))).first == 2
    await grow_old()
    monkeypatch.setattr(heads, "refresh", fails)
    message = HumanMessage("third")
    with pytest.raises(StoreUnavailableError):
        await chat.append(message)
    monkeypatch.undo()
    assert (await chat.append(message)).written == 0
    assert [one.text async for one in chat.messages()] == ["first", "second", "third"]


async def test_an_insert_that_failed_is_not_listed(
    open_chat: OpenChat, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next append takes the number of the entry that was lost, and the head names it."""
    chat = open_chat()
    await chat.append(HumanMessage("first"))
    log = (await host_of(chat).services()).writer._log

    async def is_lost(*_: Any, **__: Any) -> None:
        fails()

    time.seconds += 11
    monkeypatch.setattr(log, "insert", is_lost)
    with pytest.raises(StoreUnavailableError):
        await chat.append([HumanMessage("a long question " * 100), AIMessage("lost")])
    monkeypatch.undo()
    await chat.append(HumanMessage("second"))
    [found] = (await open_chat().store.list_conversations(**chat.scope)).conversations
    assert (found.message_count, found.last_message and found.last_message.text) == (2, "second")
    assert (await chat.store.verify(**chat.scope)).findings == ()


async def test_after_an_import_the_head_is_refreshed_with_new_messages_only(
    open_chat: OpenChat, commands: Commands
) -> None:
    """An import dates it long ago, by which a policy would end the conversation."""
    chat = open_chat()
    with as_of(datetime(2020, 1, 1, tzinfo=UTC)):
        await chat.append(HumanMessage("old"))
        with commands.counted():
            await chat.append(AIMessage("old, too"))
        assert commands.names == ["insert"]
    await chat.append(HumanMessage("new"))
    updated_at = (await open_chat().store.list_conversations(**chat.scope)).conversations[0].updated_at
    assert updated_at > datetime.now(UTC) - timedelta(minutes=1)
    with commands.counted():
        await chat.append(AIMessage("newer"))
    assert commands.names == ["insert"]


async def test_a_rewind_that_broke_off_is_finished_by_its_repetition(
    open_chat: OpenChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head names the summary that fits, as after one that did not break off."""
    chat = open_chat(summarizer=HeadTailSummarizer(RULE))
    for number in range(2):
        for turn in range(4):
            await chat.append([HumanMessage(f"q{number}{turn}", id=f"q{number}{turn}"), AIMessage("so " * 400)])
        assert (await chat.compact()).status == "done"
    whole = await chat.load_history()
    monkeypatch.setattr((await host_of(chat).services()).rewinder, "_reselect", fails)
    with pytest.raises(StoreUnavailableError):
        await chat.rewind(before="q10")
    monkeypatch.undo()
    assert await chat.rewind(before="q10") == 0
    assert [(one.version, one.is_current) for one in await chat.summaries()] == [(1, True), (2, False)]
    assert await chat.undo_rewind(before="q10") == 8
    assert (await chat.load_history()).messages == whole.messages


async def test_chunks_that_can_not_be_removed_change_no_outcome(
    open_chat: OpenChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that lost a race ends as it would have: in its error, or acknowledged."""
    chat, other = open_chat(), open_chat()
    await chat.append(HumanMessage("q", id="q"))
    await other.append([HumanMessage("z" * 20_000, id="z"), AIMessage("first")])
    monkeypatch.setattr((await host_of(chat).services()).writer._log, "drop_chunks", fails)
    with pytest.raises(ContentConflictError):
        await chat.append([HumanMessage("other", id="q"), HumanMessage("p" * 20_000)])
    await other.append(AIMessage("second"))
    assert (await chat.append(HumanMessage("z" * 20_000, id="z"))).written == 0


async def test_junk_of_a_model_is_not_carried_on(open_chat: OpenChat, database: Any) -> None:
    """The name and the id of a call that has no result are in every entry that follows, so they are cut."""
    chat = open_chat()
    await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[{"name": "n" * 300_000, "args": {}, "id": "1"}])])
    call = {"name": "search", "args": {}, "id": "i" * 300_000}
    await chat.append([HumanMessage("hello"), AIMessage("", tool_calls=[call]), AIMessage("hi", id="last")])
    await chat.append(ToolMessage("found", tool_call_id="1", id="late"))
    last = await database["log"].find_one({"messages.id": "late", "first": 6})
    assert len(bson.encode(last)) < 2_000
    assert (await chat.get_tool_messages(["late"]))[0].tool == "n" * 200


async def test_annotations_are_bounded_together(open_chat: OpenChat) -> None:
    """So that neither the server refuses them nor a listing reads gigabytes; what is replaced does not count."""
    chat, text = open_chat(), "😀" * 90_000
    await chat.append(HumanMessage("q", id="q"))
    await chat.annotate("q", a=text, b=text)
    with pytest.raises(InvalidInputError, match=r"1,080,00\d bytes; the limit is 1,000,000"):
        await chat.annotate("q", c=text)
    await chat.annotate("q", a=None, c=text)
    assert sorted((await chat.annotations(["q"]))["q"]) == ["b", "c"]


async def test_what_a_clients_codec_does_is_its_own(server_uri: str, database_name: str, open_chat: OpenChat) -> None:
    """The store reads plain values whatever options its client has."""
    chat = open_chat()
    await chat.append([HumanMessage("q"), AIMessage("a")])
    options = {"datetime_conversion": DatetimeConversion.DATETIME_MS, "tz_aware": False}
    async with AsyncMongoClient[dict[str, Any]](server_uri, **options) as strange:
        store = ConversationStore(strange[database_name])
        await store.setup()
        assert len((await store.conversation(**chat.scope).load_history()).messages) == 2
    async with AsyncMongoClient[dict[str, Any]](server_uri) as client:
        database = client.get_database(database_name, codec_options=CodecOptions(document_class=bson.SON))
        assert len(await ConversationStore(database).conversation(**chat.scope).list_messages()) == 2


def test_another_event_loop_is_named(server_uri: str, database_name: str) -> None:
    """A client belongs to one loop: the error says so and what to do."""

    async def begin() -> ConversationStore:
        store = await ConversationStore.connect(server_uri)
        await store.setup()
        return store

    async def finish(store: ConversationStore) -> None:
        with pytest.raises(StoreError, match=r"of its first use.*asyncio\.run"):
            await store.conversation(user_id="ada", thread_id="t").load_history()

    with asyncio.Runner() as runner:
        store = runner.run(begin())
        asyncio.run(finish(store))
        runner.run(store.close())


@pytest.mark.parametrize("prefix", ["x$y", "\ud800", 7, "a" * 101, "../x"])
def test_a_prefix_is_checked(prefix: Any) -> None:
    """Before any command."""
    with pytest.raises(InvalidInputError, match="collection_prefix"):
        ConversationStore(AsyncMongoMockClient()["app"], collection_prefix=prefix)


async def test_what_is_returned_from_an_endpoint_is_whole(open_chat: OpenChat) -> None:
    """Messages are dumped with the fields of their own class: calls, results, artifacts and usage."""
    chat = open_chat()
    usage = UsageMetadata(input_tokens=10, output_tokens=5, total_tokens=15)
    call = {"name": "search", "args": {"q": 1}, "id": "call-1"}
    messages = [
        HumanMessage("q", id="q"),
        AIMessage("", id="a", tool_calls=[call], usage_metadata=usage),
        ToolMessage("found", id="t", tool_call_id="call-1", artifact=[1]),
    ]
    await chat.append(messages)
    history, listed, turn = await chat.load_history(), await chat.list_messages(full=True), await chat.get_turn("q")
    assert turn is not None
    for dumped in (
        jsonable_encoder(history)["messages"],
        [one["message"] for one in jsonable_encoder(listed)],
        turn.model_dump()["messages"],
    ):
        assert dumped == [message.model_dump() for message in messages]


async def test_a_closed_client_is_named(server_uri: str, database_name: str) -> None:
    """And that the store is to be closed first."""
    client = AsyncMongoClient[dict[str, Any]](server_uri)
    store = ConversationStore(client[database_name])
    await store.setup()
    await client.close()
    with pytest.raises(StoreClosedError, match=r"closed.*close the store before its client"):
        await store.list_conversations(everything=True)

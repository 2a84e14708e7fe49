"""What interrupted calls leave, what is bounded in what is stored, and clients with options of their own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from counting import STANDING
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
    StoreError,
    StoreUnavailableError,
)
from convstore.integration import host_of
from convstore.summarization import HeadTailSummarizer
from convstore.values.policy import CompactionRule

RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=100, keep_last_turns=1)


@pytest.fixture
def open_chat(client: Client, database_name: str, store: ConversationStore) -> Any:
    """Makes the conversation of a test as another process has it, on the counted client."""
    scope = {**store.conversation(user_id="ada", thread_id=uuid.uuid4().hex).scope}

    def make(**options: Any) -> Conversation:
        other = ConversationStore(client[database_name], clock=STANDING, **options)
        other._host.schema.is_ready = True
        return other.conversation(**scope)

    return make


OpenChat = Callable[..., Conversation]


def fails(*_: Any, **__: Any) -> Any:
    """A command that gets no answer."""
    raise StoreUnavailableError("no answer")


@pytest.mark.slow
async def test_a_rewind_that_broke_off_is_finished_by_its_repetition(
    open_chat: OpenChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head names the summary that fits, as after one that did not break off."""
    chat = open_chat(summarizer=HeadTailSummarizer(RULE))
    for number in range(2):
        for turn in range(4):
            await chat.append(
                [HumanMessage(f"q{number}{turn}", id=f"q{number}{turn}"), AIMessage("so " * 400)]
            )
        assert (await chat.compact()).status == "done"
    whole = await chat.load_history()
    monkeypatch.setattr((await host_of(chat).services()).rewinder, "reselect", fails)
    with pytest.raises(StoreUnavailableError):
        await chat.rewind(before_id="q10")
    monkeypatch.undo()
    assert await chat.rewind(before_id="q10") == 0
    assert [(summary.version, summary.is_current) for summary in await chat.summaries()] == [
        (1, True),
        (2, False),
    ]
    assert await chat.undo_rewind(before_id="q10") == 8
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
    await chat.append(
        [
            HumanMessage("q"),
            AIMessage("", tool_calls=[{"name": "n" * 300_000, "args": {}, "id": "1"}]),
        ]
    )
    call = {"name": "search", "args": {}, "id": "i" * 300_000}
    await chat.append(
        [HumanMessage("hello"), AIMessage("", tool_calls=[call]), AIMessage("hi", id="last")]
    )
    await chat.append(ToolMessage("found", tool_call_id="1", id="late"))
    last = await database["log"].find_one({"messages.id": "late", "first": 6})
    assert len(bson.encode(last)) < 2_000
    assert (await chat.get_tool_messages(["late"]))[0].tool == "n" * 200


async def test_annotations_are_bounded_together(open_chat: OpenChat) -> None:
    """The annotations of a message are bounded together. A replaced value does not count."""
    chat, text = open_chat(), "😀" * 90_000
    await chat.append(HumanMessage("q", id="q"))
    await chat.annotate("q", a=text, b=text)
    with pytest.raises(InvalidInputError, match=r"1,080,00\d bytes; the limit is 1,000,000"):
        await chat.annotate("q", c=text)
    await chat.annotate("q", a=None, c=text)
    assert sorted((await chat.annotations(["q"]))["q"]) == ["b", "c"]


async def test_what_a_clients_codec_does_is_its_own(
    server_uri: str, database_name: str, open_chat: OpenChat
) -> None:
    """The store reads plain values whatever options its client has."""
    chat = open_chat()
    await chat.append([HumanMessage("q"), AIMessage("a")])
    options = {"datetime_conversion": DatetimeConversion.DATETIME_MS, "tz_aware": False}
    async with AsyncMongoClient[dict[str, Any]](server_uri, **options) as strange:
        store = ConversationStore(strange[database_name])
        await store.setup()
        assert len((await store.conversation(**chat.scope).load_history()).messages) == 2
    async with AsyncMongoClient[dict[str, Any]](server_uri) as client:
        database = client.get_database(
            database_name, codec_options=CodecOptions(document_class=bson.SON)
        )
        assert (
            len(await ConversationStore(database).conversation(**chat.scope).list_messages()) == 2
        )


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
    history, listed, turn = (
        await chat.load_history(),
        await chat.list_messages(full=True),
        await chat.get_turn("q"),
    )
    assert turn is not None
    for dumped in (
        jsonable_encoder(history)["messages"],
        [message["message"] for message in jsonable_encoder(listed)],
        turn.model_dump()["messages"],
    ):
        assert dumped == [message.model_dump() for message in messages]

"""Attacks that once broke the store; a test keeps each of them fixed."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from canary import sign_up
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from pymongo import AsyncMongoClient
from pymongo.errors import BulkWriteError
from scripted_agents import log_of

from convstore import Conversation, ConversationStore, HistoryPolicy, StoreUnavailableError
from convstore.devserver import DevServer
from convstore.exceptions import (
    CorruptDocumentError,
    InvalidCursorError,
    InvalidInputError,
    StoreClosedError,
    StoreError,
)
from convstore.integration import host_of
from convstore.mongo.log import Log
from convstore.runtime import background, clock
from convstore.runtime.clock import Clock
from convstore.testing import rag_turn, same_messages


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def clock(self) -> Clock:
        """Return the clock of a store."""
        start = datetime.now(UTC).replace(microsecond=0)
        return Clock(
            now=lambda: start + timedelta(seconds=self.seconds), monotonic=lambda: self.seconds
        )


@pytest.fixture
def time() -> Time:
    """A clock at zero."""
    return Time()


@pytest.fixture
async def store(pymongo_client: Client, database_name: str, time: Time) -> ConversationStore:
    """A store that is set up."""
    store = ConversationStore(pymongo_client[database_name], clock=time.clock)
    await store.setup()
    return store


@pytest.fixture
def again(pymongo_client: Client, database_name: str, time: Time) -> Any:
    """Makes the same conversation as another process has it."""

    def make(chat: Conversation) -> Conversation:
        return ConversationStore(pymongo_client[database_name], clock=time.clock).conversation(
            **chat.scope
        )

    return make


@pytest.mark.slow
async def test_many_reservations_do_not_hide_the_view(chat: Conversation, again: Any) -> None:
    """Entries without messages are no end of the log."""
    turn = rag_turn("What about seals?")
    await chat.append(turn)
    for _ in range(70):
        await chat.reserve_source_ids(1)
    assert len((await chat.load_history()).messages) == 4
    assert len((await again(chat).load_history(HistoryPolicy(max_turns=3))).messages) == 4


@pytest.mark.slow
async def test_a_deletion_that_broke_off_does_not_end_the_conversation_later(time: Time) -> None:
    """The caller got an error; nothing that is appended afterwards is lost."""
    with DevServer() as server:
        async with AsyncMongoClient[dict[str, Any]](sign_up(server.uri)) as client:
            store = ConversationStore(client["app"], clock=time.clock)
            await store.setup()
            chat = store.conversation(user_id="u", thread_id="t")
            await chat.append(rag_turn("What about seals?"))
            failing = {"failCommands": ["findAndModify"], "closeConnection": True}
            server.primary().command(
                "configureFailPoint", "failCommand", mode={"times": 2}, data=failing
            )
            with pytest.raises(StoreUnavailableError):
                await chat.delete()
            await chat.append(rag_turn("And orcas?"))
            time.seconds += 1_000
            await store.setup()
            assert len(await log_of(chat)) == len((await chat.load_history()).messages) == 8
            await chat.delete()
            assert await log_of(chat) == []


@pytest.mark.slow
async def test_a_missing_entry_is_named(
    chat: Conversation, again: Any, pymongo_client: Client, database_name: str
) -> None:
    """A hole is never skipped, however far back the view has to be read."""
    for number in range(60):
        await chat.append([HumanMessage(f"q{number} " * 50), AIMessage("a")])
    log = pymongo_client[database_name]["log"]
    newest = await log.find_one(
        {"conversation": (await _head(chat, log))["conversation"], "first": 41}
    )
    await log.delete_one({"_id": newest["_id"]})
    for policy in (HistoryPolicy(), HistoryPolicy(max_tokens=None)):
        with pytest.raises(CorruptDocumentError, match=newest["_id"]):
            await again(chat).load_history(policy)
    with pytest.raises(CorruptDocumentError, match=newest["_id"]):
        await log_of(chat)


async def _head(chat: Conversation, log: Any) -> dict[str, Any]:
    found: dict[str, Any] = await log.database["heads"].find_one({"scope": chat.scope})
    return found


async def test_reading_goes_on_while_many_others_are_read(
    chat: Conversation, store: ConversationStore
) -> None:
    """A conversation that falls out of the store's memory is read to its end all the same."""
    turns = [rag_turn(f"Fish {number}?") for number in range(3)]
    for turn in turns:
        await chat.append(turn)
    reading = chat.messages(rewound=True)
    read = [await anext(reading)]
    for number in range(1_001):
        store._known.add((("user_id", "x"), ("thread_id", str(number))), "0" * 24)
    read += [message async for message in reading]
    assert same_messages(read, [message for turn in turns for message in turn])


@pytest.mark.slow
async def test_a_conversation_deleted_during_a_load_is_loaded_again(
    chat: Conversation, again: Any
) -> None:
    """No error and nothing of the old one: the scope's new, empty conversation."""
    for number in range(40):
        await chat.append([HumanMessage(f"q{number} " * 900), AIMessage("a")])
        await chat.load_history()
    other = again(chat)
    parts = await host_of(other.store).services()
    heads = parts.loader._ends._heads
    find, calls = heads.find_listed, []

    async def find_and_delete(scope: dict[str, str]) -> Any:
        head = await find(scope)
        if not calls:
            calls.append(1)
            await chat.delete()
        return head

    heads.find_listed = find_and_delete
    assert (await other.load_history()).messages == []


@pytest.mark.slow
async def test_sync_callers_do_not_hang_when_the_store_is_closed(
    server_uri: str, database_name: str
) -> None:
    """Every waiting caller gets an answer, if only StoreClosedError."""
    host, _, options = server_uri.rpartition("/")
    store = await ConversationStore.connect(f"{host}/{database_name}{options}")
    await store.setup()
    tool = store.conversation(
        user_id="a", thread_id=uuid.uuid4().hex
    ).retrieve_previous_sources_tool()
    loop, stop, answered = (
        asyncio.get_running_loop(),
        threading.Event(),
        [asyncio.Event() for _ in range(4)],
    )

    def ask(first: asyncio.Event) -> None:
        while not stop.is_set():
            tool.invoke(
                {"type": "tool_call", "id": "c", "name": tool.name, "args": {"source_ids": [1]}}
            )
            loop.call_soon_threadsafe(first.set)

    askers = [asyncio.create_task(asyncio.to_thread(ask, first)) for first in answered]
    for first in answered:
        await first.wait()
    await store.close()
    stop.set()
    await asyncio.wait_for(asyncio.gather(*askers), 20)


async def test_payloads_of_one_append_are_read_together(
    server_uri: str, database_name: str, chat: Conversation
) -> None:
    """A hundred results of one batch cost two commands."""
    results = [
        ToolMessage("r" * 3_000, id=uuid.uuid4().hex, tool_call_id=f"c{number}")
        for number in range(100)
    ]
    await chat.append(results)
    log = (await host_of(chat).services()).reader.log
    found, ranges = log._chunks, []

    async def counted(conversation: Any, sizes: Any) -> Any:
        ranges.append(len(sizes))
        return await found(conversation, sizes)

    log._chunks = counted
    records = await chat.get_tool_messages([str(result.id) for result in results])
    assert [record.content for record in records] == [result.content for result in results]
    assert ranges == [100]


async def test_a_client_that_was_closed_first_is_named(server_uri: str, database_name: str) -> None:
    """The caller closed its client before the store: a typed error says so on every call, and what to do."""
    async with AsyncMongoClient(server_uri) as client:
        store = ConversationStore(client[database_name])
        await store.setup()
        chat = store.conversation(user_id="closed", thread_id="client")
    for call in (chat.append(HumanMessage("Hello")), chat.load_history(), chat.info()):
        with pytest.raises(
            StoreClosedError,
            match=r"client of this store was closed.*close the store before its client",
        ):
            await call


async def test_a_load_is_not_disturbed_by_an_append_that_ends_the_turn(
    chat: Conversation, store: ConversationStore, again: Any
) -> None:
    """Payloads that this store remembers are shown, although they are forgotten while others are read."""
    turn = rag_turn("What about seals?")[:3]
    await chat.append(turn)
    await again(chat).append(ToolMessage("r" * 3_000, id="other", tool_call_id="c"))
    reader = (await host_of(store).services()).loader._reader
    found = reader.payloads

    async def payloads_and_append(known: Any, refs: Any) -> Any:
        texts = await found(known, refs)
        await chat.append(HumanMessage("next"))
        return texts

    reader.payloads = payloads_and_append
    history = await chat.load_history()
    assert [message.content for message in history.messages] == [
        message.content for message in turn
    ]


async def never(*_values: Any, **_options: Any) -> None:
    """A command without an answer."""
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda chat: chat.append(HumanMessage("again")), "repeat it with the same arguments"),
        (lambda chat: chat.rewind(before_id="q"), "may or may not have taken effect"),
    ],
    ids=["append", "rewind"],
)
async def test_a_write_without_an_answer_is_given_up(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, call: Any, advice: str
) -> None:
    """After the longest append time it raises an error that says what may have happened."""
    await chat.append(HumanMessage("Hello", id="q"))
    monkeypatch.setattr(clock, "APPEND_SECONDS", 0.05)
    monkeypatch.setattr(background, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(Log, "insert", never)
    with pytest.raises(StoreUnavailableError, match=advice):
        await asyncio.wait_for(call(chat), 10)


async def test_an_insert_without_an_answer_keeps_the_chunks_of_an_earlier_try(
    chat: Conversation, again: Any, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry may be in the log, with a payload that was sent when another writer took its number."""
    await chat.append(HumanMessage("Hello"))
    await again(chat).append(AIMessage("Hi!"))
    log, tries = (await host_of(store).services()).writer._log, [0]
    insert = log.insert

    async def lost_answer(*values: Any, **options: Any) -> None:
        tries[0] += 1
        await insert(*values, **options)
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(log, "insert", lost_answer)
    text = "What do orcas eat? " * 2_000
    with pytest.raises(StoreUnavailableError):
        await chat.append(HumanMessage(text, id="long"))
    assert tries == [2]
    [record] = await again(chat).get_tool_messages(["long"])
    assert record.content == text


async def test_an_append_that_waits_while_its_conversation_is_deleted_starts_over(
    chat: Conversation, store: ConversationStore
) -> None:
    """Appends acknowledged after the deletion are in the scope's new conversation."""
    await chat.append(HumanMessage("old"))
    known = store._known.get(tuple(chat.scope.items()))
    assert known
    async with known.lock:
        waiting = asyncio.create_task(chat.append(HumanMessage("new", id="new")))
        await chat.delete()
    assert (await waiting).first == 1
    assert [message.id for message in await log_of(chat)] == ["new"]


async def test_what_a_deleted_conversation_has_shown_was_never_shown(
    chat: Conversation, again: Any, time: Time
) -> None:
    """An id that is older than ten seconds is checked before a text is looked up by it, too."""
    await chat.append(rag_turn("What about seals?", sources=1))
    [source] = (await chat.get_sources([1])).sources
    assert await chat.find_shown_sources([source.content]) == [1]
    await again(chat).delete()
    time.seconds += 11
    assert await chat.find_shown_sources([source.content]) == [None]


async def test_payloads_of_a_turn_are_forgotten_when_the_next_one_begins(
    chat: Conversation, store: ConversationStore
) -> None:
    """A store that only appends keeps the payloads of one turn of each conversation, and has its room back after."""
    await chat.append(rag_turn("What about seals?")[:3])
    known = store._known.get(tuple(chat.scope.items()))
    assert known
    assert known.payloads
    await chat.append(HumanMessage("And orcas?"))
    assert not known.payloads


async def test_what_a_store_remembers_is_bounded(
    chat: Conversation, store: ConversationStore
) -> None:
    """A thousand conversations: those that were used longest ago go first."""
    await chat.append(rag_turn("What about seals?")[:3])
    scope = tuple(chat.scope.items())
    for number in range(1_200):
        store._known.add((("user_id", "x"), ("thread_id", str(number))), "0" * 24)
        assert store._known.get(scope)
    assert len(store._known.all()) == 1_000


async def test_a_chunk_that_is_not_ours_is_no_collision(
    pymongo_client: Client, database_name: str
) -> None:
    """Only a number or an id of the entry may be taken; any other refusal is an error, and nothing is written."""
    token = "0" * 24
    store = ConversationStore(pymongo_client[database_name], clock=Clock(token=lambda: token))
    await store.setup()
    chat, log = (
        store.conversation(user_id="eve", thread_id=uuid.uuid4().hex),
        pymongo_client[database_name]["log"],
    )
    await chat.append(HumanMessage("Hello"))
    conversation = (await _head(chat, log))["conversation"]
    await log.insert_one(
        {"_id": f"{conversation}#{token}#000000", "conversation": conversation, "data": b"other"}
    )
    with pytest.raises(StoreError, match="refused"):
        await chat.append(rag_turn("What about seals?"))
    assert len(await log_of(chat)) == 1


async def test_only_chunks_that_no_entry_needs_are_dropped(chat: Conversation, again: Any) -> None:
    """A batch that is partly stored leaves the payload between those of the others."""
    results = [ToolMessage(f"{letter * 3_000}", id=letter, tool_call_id=letter) for letter in "abc"]
    await again(chat).append(HumanMessage("Hello"))
    await chat.load_history()
    await chat.append(HumanMessage("And now?"))
    await again(chat).append([results[0], results[2]])
    assert (await chat.append(results)).written == 1
    records = await chat.get_tool_messages(["a", "b", "c"])
    assert [record.content[0] for record in records] == ["a", "b", "c"]


async def test_a_collision_that_no_majority_confirmed_is_no_collision(
    chat: Conversation, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that may be rolled back yet are not taken for written."""
    await chat.append(HumanMessage("Hello"))
    log = (await host_of(store).services()).writer._log

    async def refused(documents: list[dict[str, Any]], *, ordered: bool) -> None:
        failure = {"index": len(documents) - 1, "code": 11000, "errmsg": "duplicate key"}
        concern = {"code": 64, "errmsg": "waiting for replication timed out"}
        raise BulkWriteError({"writeErrors": [failure], "writeConcernErrors": [concern]})

    monkeypatch.setattr(log._log.driver_collection, "insert_many", refused)
    with pytest.raises(StoreUnavailableError, match="repeat the call"):
        await chat.append(rag_turn("What about seals?"))


@pytest.mark.parametrize("tail_is", ["learnt by a load", "old"])
async def test_the_same_batch_at_once_in_memory_is_written_once(
    monkeypatch: pytest.MonkeyPatch, tail_is: str
) -> None:
    """No index guards ids there: whatever comes in between the looks of an append is seen by one of them."""
    database = AsyncMongoMockClient()["app"]
    await ConversationStore(database).setup()
    chat, other = (
        ConversationStore(database).conversation(user_id="ada", thread_id="t") for _ in range(2)
    )
    await chat.append([HumanMessage("Hello")])
    await other.reserve_source_ids(1)
    if tail_is == "learnt by a load":
        await chat.load_history()
    log, looks = (await host_of(chat).services()).writer._log, [0]
    looked, batch = (
        log.messages_by_id,
        [AIMessage("", id="a", tool_calls=[{"name": "run", "args": {}, "id": "c"}])],
    )

    async def interrupted(*asked: Any) -> Any:
        found = await looked(*asked)
        looks[0] += 1
        if looks[0] == 1:
            await other.append(batch)
        return found

    last_totals = log.last_totals

    async def late(conversation: str, **how: Any) -> Any:
        for _ in range(100):  # after whatever is asked for beside it
            await asyncio.sleep(0)
        return await last_totals(conversation, **how)

    monkeypatch.setattr(log, "messages_by_id", interrupted)
    monkeypatch.setattr(log, "last_totals", late)
    assert (await chat.append(batch)).written == 0
    assert looks[0] >= 2
    assert [str(message.id) async for message in chat.messages(rewound=True)][1:] == ["a"]


def _nested() -> list[Any]:
    found: list[Any] = []
    for _ in range(10_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    [_nested(), 10**5_000, "x" * 1_000_000, {"$ne": ""}],
    ids=["nested", "digits", "long", "operator"],
)
async def test_an_error_about_any_value_is_short(
    chat: Conversation, store: ConversationStore, value: Any
) -> None:
    """Quoting a value of many levels or digits failed, and a long one was quoted whole."""
    await chat.append(rag_turn("What about seals?"))
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: chat.reserve_source_ids(value),
        lambda: chat.expand_summary(value),
        lambda: anext(chat.items(after=value)),
        lambda: chat.get_sources([1], cursor=value),
        lambda: chat.decide("q", "c", value),
        lambda: store.list_conversations(user_id="ada", cursor=value),
        lambda: store.list_conversations(user_id="ada", limit=value),
    ]
    for ask in asked:
        with pytest.raises((InvalidInputError, InvalidCursorError)) as caught:
            await ask()
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("id_", [{"$ne": ""}, "\ud800", ["q"], "x" * 1_000_000])
@pytest.mark.parametrize("field", ["turn_id", "variant_id"])
async def test_ids_of_an_unchecked_variant_are_checked(
    chat: Conversation, field: str, id_: Any
) -> None:
    """An application that builds it from a request without validation gets our error, not one of the driver."""
    await chat.append([HumanMessage("Hello", id="q"), AIMessage("Hi!")])
    [variant] = await chat.variants("q")
    with pytest.raises(InvalidInputError, match=f"variant.{field} must be"):
        await chat.activate(variant.model_copy(update={field: id_}))

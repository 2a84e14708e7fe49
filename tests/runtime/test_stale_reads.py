"""Acknowledged writes are read, also from a new primary that does not show all of them yet."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bson.errors import InvalidDocument
from cases import each_case
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pymongo.errors import (
    BulkWriteError,
    ExecutionTimeout,
    NotPrimaryError,
    OperationFailure,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from convstore import Conversation, ConversationStore
from convstore.exceptions import (
    ConversationDeletedError,
    CorruptDocumentError,
    StoreError,
    StoreUnavailableError,
)
from convstore.log.entry import Entry, Totals
from convstore.mongo.driver import driver_errors
from convstore.mongo.log import Log
from convstore.mongo.states import States
from convstore.runtime.cache import CachedConversation


@pytest.fixture
async def chat(pymongo_client: Client, database_name: str) -> Conversation:
    """A conversation of three entries, all appended by this store."""
    store = ConversationStore(pymongo_client[database_name])
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    for number in range(3):
        await chat.append(
            [HumanMessage(f"q{number}", id=f"q{number}"), AIMessage(f"a{number}", id=f"a{number}")]
        )
    return chat


WAYS: tuple[str, ...] = ("read_end", "entries", "entries_around", "last_totals", "messages_by_id")


class Behind:
    """Lets reads miss the last entry: a given number of times, for each kind of read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = dict.fromkeys(WAYS, times)
        for name in self.left:
            room = States if name == "read_end" else Log
            monkeypatch.setattr(room, name, self._missing(name, getattr(room, name)))

    def _missing(
        self, name: str, read: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def behind(log: Log | States, conversation: str, *values: Any, **options: Any) -> Any:
            found = await read(log, conversation, *values, **options)
            if not self.left[name]:
                return found
            self.left[name] -= 1
            return self._less(found)

        return behind

    def _less(self, found: Any) -> Any:
        if isinstance(found, tuple):
            return found[0], self._less(found[1]), *found[2:]
        if isinstance(found, dict):
            return {id_: row for id_, row in found.items() if row.entry.number < 3}
        if isinstance(found, Totals):
            return Totals(entries=2, messages=4, active=4)
        kept: list[Entry] = [entry for entry in found if entry.number < 3]
        return kept


READS: dict[str, Callable[[Conversation], Awaitable[list[str]]]] = {}


def read(
    function: Callable[[Conversation], Awaitable[list[str]]],
) -> Callable[[Conversation], Awaitable[list[str]]]:
    """A way to read that gives the ids it finds."""
    READS[function.__name__] = function
    return function


@read
async def load_history(chat: Conversation) -> list[str]:
    """The view."""
    return [str(message.id) for message in (await chat.load_history()).messages]


@read
async def messages(chat: Conversation) -> list[str]:
    """The log."""
    return [str(message.id) async for message in chat.messages(rewound=True)]


@read
async def list_messages(chat: Conversation) -> list[str]:
    """A page; like the log, it reads the end first, and then all up to there, perhaps from another primary."""
    return [str(stored.message.id) for stored in await chat.list_messages()]


@read
async def said_of_messages(chat: Conversation) -> list[str]:
    """By id: what was said of all six messages."""
    ids = [f"{kind}{number}" for number in range(3) for kind in "qa"]
    for id_ in ids:
        await chat.annotate(id_, seen=True)
    return list(await chat.annotations(ids))


@pytest.mark.costly
@pytest.mark.parametrize("name", READS)
async def test_a_store_reads_what_was_acknowledged_to_it(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A read that misses an acknowledged entry is repeated."""
    behind = Behind(monkeypatch, 1)
    found = await READS[name](chat)
    assert found == ["q0", "a0", "q1", "a1", "q2", "a2"]
    assert list(behind.left.values()) != [1] * 5


async def test_a_message_that_a_new_primary_lacked_is_found_once_it_has_it(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary has caught up when the end of the log is compared, so that shows nothing of the read before."""
    Behind(monkeypatch, 1).left |= dict.fromkeys(WAYS, 0) | {"messages_by_id": 1}
    assert await chat.rewind(before_id="a2") == 1


async def test_a_message_that_a_new_primary_lacks_is_waited_for(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that a new primary lacks is looked for again, as long as the end of the log is missing too."""
    behind, find = Behind(monkeypatch, 0), Log.messages_by_id
    behind.left["last_totals"] = 1

    async def found(log: Log, *values: Any) -> Any:
        return {} if behind.left["last_totals"] else await find(log, *values)

    monkeypatch.setattr(Log, "messages_by_id", found)
    assert await chat.rewind(before_id="a2") == 1


PAYLOAD_READS: dict[str, Callable[[Conversation], Awaitable[object]]] = {
    "messages": lambda chat: chat.get_tool_messages(["r"]),
    "sources": lambda chat: chat.get_sources([1]),
    "views": lambda chat: chat.load_history(),
    "listings": lambda chat: chat.list_messages(full=True),
    "searches": lambda chat: chat.search("walrus"),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", PAYLOAD_READS)
async def test_a_chunk_that_a_new_primary_lacks_is_read_again(
    chat: Conversation, database: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A chunk that a new primary lacks is read again. A chunk that stays missing is damage."""
    call = {"name": "search", "args": {}, "id": "c"}
    sources = [{"content": "A walrus. " * 2_000}]
    result = ToolMessage(str(sources), id="r", tool_call_id="c", artifact=sources)
    await chat.append([HumanMessage("q"), AIMessage("", tool_calls=[call]), result])
    elsewhere, chunks, read_chunks = (
        ConversationStore(database).conversation(**chat.scope),
        list[int](),
        Log._chunks,
    )

    async def lacking(log: Log, conversation: str, *values: Any) -> Any:
        chunks.append(1)
        if len(chunks) <= missing:
            raise CorruptDocumentError("a chunk", "is missing")
        return await read_chunks(log, conversation, *values)

    monkeypatch.setattr(Log, "_chunks", lacking)
    missing = 1
    await PAYLOAD_READS[name](elsewhere)
    assert len(chunks) > 1
    missing = 1_000
    with pytest.raises(CorruptDocumentError):
        await PAYLOAD_READS[name](ConversationStore(database).conversation(**chat.scope))


async def test_a_log_that_is_deleted_is_not_waited_for(
    chat: Conversation, pymongo_client: Client, database_name: str
) -> None:
    """Less than was acknowledged is no riddle when the conversation is gone."""
    other = ConversationStore(pymongo_client[database_name])
    await other.conversation(**chat.scope).delete()
    with pytest.raises(ConversationDeletedError):
        await messages(chat)
    assert await load_history(chat) == []


@pytest.mark.parametrize("what", ["reservation", "call"])
async def test_a_tail_that_a_load_read_is_good_enough(
    chat: Conversation, pymongo_client: Client, database_name: str, what: str
) -> None:
    """Loads leave out what listings show of the last message; an append that has no text itself keeps it."""
    other = ConversationStore(pymongo_client[database_name]).conversation(**chat.scope)
    await other.load_history()
    if what == "reservation":
        await other.reserve_source_ids(3)
    else:
        await other.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}]))
    last = (await chat.info()).last_message
    assert last
    assert last.text == "a2"


def _labelled() -> OperationFailure:
    error = OperationFailure("shutdown", 9999)
    error._add_error_label("RetryableWriteError")
    return error


ERRORS: dict[str, tuple[Exception, type[StoreError]]] = {
    "one write": (WriteError("Not primary while writing", 189), StoreUnavailableError),
    "one of many writes": (
        BulkWriteError(
            {"writeErrors": [{"index": 0, "code": 189, "errmsg": "Not primary while writing"}]}
        ),
        StoreUnavailableError,
    ),
    "no majority yet": (OperationFailure("no snapshot", 134), StoreUnavailableError),
    "a command": (NotPrimaryError("not primary"), StoreUnavailableError),
    "another write": (WriteError("document validation failed", 121), StoreError),
    "a write without a majority": (
        WriteConcernError("waiting for replication", 64),
        StoreUnavailableError,
    ),
    "writes without a majority": (
        BulkWriteError(
            {"writeErrors": [], "writeConcernErrors": [{"code": 64, "errmsg": "waiting"}]}
        ),
        StoreUnavailableError,
    ),
    "a write that took too long": (WTimeoutError("timed out", 64), StoreUnavailableError),
    "a command that took too long": (
        ExecutionTimeout("operation exceeded time limit", 50),
        StoreUnavailableError,
    ),
    "what the driver would try again": (_labelled(), StoreUnavailableError),
    "a number that is too large": (
        OverflowError("MongoDB can only handle up to 8-byte ints"),
        StoreError,
    ),
    "what BSON cannot hold": (InvalidDocument("cannot encode object"), StoreError),
}


@each_case("said", ERRORS)
async def test_every_error_of_a_driver_is_ours(said: str) -> None:
    """Errors distinguish unknown outcomes, such as a primary that steps down, from refusals; the cause is kept."""
    error, expected = ERRORS[said]
    with pytest.raises(StoreError) as raised:
        async with driver_errors():
            raise error
    assert type(raised.value) is expected
    assert raised.value.__cause__ is error


def miss_the_marker(monkeypatch: pytest.MonkeyPatch, *, behind_at: int) -> dict[str, int]:
    """The first read of a rewind entry misses it, and one read of the tail is stale; counts the calls of both."""
    entry, last_totals, calls = Log.entry, Log.last_totals, {"entry": 0, "last_totals": 0}

    async def no_entry(log: Log, conversation: str, number: int) -> Entry:
        calls["entry"] += 1
        if calls["entry"] == 1:
            raise CorruptDocumentError(f"{conversation}:{number:012d}", "the entry is missing")
        return await entry(log, conversation, number)

    async def old_totals(log: Log, conversation: str, **how: Any) -> Totals:
        calls["last_totals"] += 1
        is_behind = calls["last_totals"] == behind_at
        return (
            Totals(entries=3, messages=6, active=6)
            if is_behind
            else await last_totals(log, conversation, **how)
        )

    monkeypatch.setattr(Log, "entry", no_entry)
    monkeypatch.setattr(Log, "last_totals", old_totals)
    return calls


async def test_a_marker_that_is_not_shown_yet_is_waited_for(
    chat: Conversation,
    pymongo_client: Client,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rewound ranges are in an entry of their own, which a new primary may not show yet."""
    other = ConversationStore(pymongo_client[database_name]).conversation(**chat.scope)
    await other.rewind(before_id="q2")
    calls = miss_the_marker(monkeypatch, behind_at=2)  # the first read of the tail names the entry
    assert [message.message.id for message in await chat.list_messages()] == [
        "q0",
        "a0",
        "q1",
        "a1",
    ]
    assert min(calls.values()) >= 2


def test_what_is_known_of_a_log_never_goes_back() -> None:
    """A read that began before an append was acknowledged, and ends after it, changes nothing in the cache."""
    known = CachedConversation((("user_id", "ada"),), "c", verified_at=(0.0, 0.0))
    known.advance(Totals(entries=2))
    known.advance(Totals(entries=1))
    assert known.tail == Totals(entries=2)
    assert known.entries == 2


async def test_a_rewind_that_an_append_hears_of_is_waited_for(
    chat: Conversation,
    pymongo_client: Client,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tail that names a rewind entry was read of a log that has it, so a read that misses it is stale."""
    other = ConversationStore(pymongo_client[database_name]).conversation(**chat.scope)
    await other.rewind(before_id="q2")
    calls = miss_the_marker(monkeypatch, behind_at=2)
    assert (await chat.append(HumanMessage("q0", id="q0"))).written == 0
    assert calls["entry"] == 2


async def test_entries_that_a_tail_counts_are_read(
    chat: Conversation,
    pymongo_client: Client,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store reads what another process appended once it has heard of it."""
    other = ConversationStore(pymongo_client[database_name]).conversation(**chat.scope)
    await other.append(HumanMessage("q3", id="q3"))
    assert [message.message.id for message in await chat.list_messages(limit=1)] == ["q3"]
    newest, calls = States.read_end, list[int]()

    async def without_the_last(states: States, conversation: str, **options: Any) -> Any:
        calls.append(1)
        state, entries, sent = await newest(states, conversation, **options)
        return state, entries[:-1] if len(calls) == 1 else entries, sent

    monkeypatch.setattr(States, "read_end", without_the_last)
    assert (await load_history(chat))[-1] == "q3"


async def test_messages_that_a_store_appended_are_found_by_id(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is looked for again if the log has fewer entries than were acknowledged."""
    Behind(monkeypatch, 1)
    assert [record.tool_message_id for record in await chat.get_tool_messages(["q2", "a0"])] == [
        "q2",
        "a0",
    ]


async def test_a_server_that_answers_nothing_is_given_up() -> None:
    """A server that never answers raises StoreUnavailableError, where a driver alone would wait for ever."""

    async def command() -> None:
        async with driver_errors(seconds=0.01):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(StoreUnavailableError, match="no answer"):
        await asyncio.wait_for(command(), 10)


async def test_a_state_that_is_older_than_one_seen_is_read_again(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a log that is shorter than it was: a newly elected primary may show an earlier revision for a moment."""
    await chat.load_history()
    [cached] = chat.store._known.all()
    cached.revision = 1
    read_end, calls = States.read_end, list[int]()

    async def newer_at_last(states: States, conversation: str, **options: Any) -> Any:
        calls.append(1)
        state, *found = await read_end(states, conversation, **options)
        return {**state, "revision": len(calls)} if state and len(calls) > 1 else state, *found

    monkeypatch.setattr(States, "read_end", newer_at_last)
    assert len(await load_history(chat)) == 6
    assert (len(calls), cached.revision) == (2, 2)
